"""Checks of a schedule's content that need no expansion: names, tensor types, literals, references, operators, ranges.

What needs the whole graph (does a name exist, do types agree, is a recomputation legal) is checked by `expand`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from types import MappingProxyType
from typing import Any

import msgspec

from ..errors import ScheduleError
from ..operators.tables import NAMESPACES, permissible
from .digest_check import DigestCheck
from .distributed import Distributed, Sharded
from .distributed_check import check_collective, check_distributed, check_mesh, check_ranks, check_sharded
from .enough import EnoughFaultsError
from .limits import (
    MAX_DIMS,
    MAX_FAULTS,
    MAX_INTEGER,
    MAX_NAME,
    MAX_NAMESPACES,
    MAX_OUTPUTS,
    MAX_PARAMETERS,
    MAX_TEXT,
)
from .literals import check_argument, check_elements
from .live_range import check_live, range_fault
from .number_text import number_fault
from .operator_check import operator_fault
from .part_check import check_parts
from .plan_check import check_lane, check_page, check_recompute, check_split, check_top
from .schedule import (
    BASELINE,
    Block,
    Compiled,
    Constant,
    Digest,
    Dimension,
    Instance,
    Lane,
    Live,
    Model,
    ModuleGroup,
    Operation,
    Page,
    Recompute,
    Schedule,
    Settings,
    Solve,
    Split,
    Statement,
)
from .settings_check import check_settings, check_solved
from .signature import escape, unescape
from .size_check import SizeCheck, dimension_fault, unsolved
from .size_limits import limit_fault
from .tree_check import TreeCheck

_NAME = re.compile(r"[A-Za-z0-9_~-]+(?:\.[A-Za-z0-9_~-]+)*")
_REFERENCE = re.compile(r"%[A-Za-z0-9_~-]+(?:\.[A-Za-z0-9_~-]+)*(?::[0-9]{1,5})?")
_NAMESPACE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+){0,2}")
_SOURCE = re.compile(r"[^/\\:\x00-\x1f]+(?::[^/\\:\x00-\x1f]+\+[0-9]{1,9})?")
_HASH = re.compile(r"[0-9a-f]{16}")
_FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}")
_FIGURES = ("budget", "peak", "time", "baseline_peak", "baseline_time", "lower_bound")
_NO_DIMS: Mapping[str, Dimension] = MappingProxyType({})
_NAME_HINT = "letters, digits and _ ~ - joined by single dots"


class SemanticCheck:
    """Collects faults. `schedule` checks a whole file, `struct` one object on its own (not the objects in it)."""

    def __init__(
        self,
        namespaces: Collection[str] = (),
        dims: Mapping[str, Dimension] = _NO_DIMS,
        ranks: Collection[str] = (),
    ) -> None:
        """namespaces: what the file itself says that its operators are of, beyond the usual ones. dims: the sizes that
        it names. ranks: its mesh dimensions."""
        self._ranks = ranks
        self.faults: list[ScheduleError] = []
        self._sizes = SizeCheck(dims)
        self._namespaces = NAMESPACES.union(islice(namespaces, MAX_NAMESPACES))
        self._operators: dict[str, tuple[str, str, str] | None] = {}
        self._digest = DigestCheck(self)
        self._checks: dict[type, Callable[[Any, str], None]] = {
            Schedule: self._schedule,
            Model: self._model,
            Dimension: self._dimension,
            Distributed: lambda layout, where: check_distributed(self, layout, where),
            Sharded: lambda sharded, where: check_sharded(self, sharded, where),
            Live: lambda live, where: self._fault(range_fault(live), where),
            Solve: self._solve,
            Compiled: self._compiled,
            Settings: self._settings,
            Block: self._block,
            Operation: self._operation,
            Constant: self._constant,
            Instance: self._instance,
            Recompute: lambda recompute, where: check_recompute(self, recompute, where),
            Page: lambda page, where: check_page(self, page, where),
            Split: lambda split, where: check_split(self, split, where),
            Lane: lambda lane, where: check_lane(self, lane, where),
            Digest: self._digest.digest,
            ModuleGroup: self._digest.group,
        }

    def schedule(self, schedule: Schedule) -> list[ScheduleError]:
        """The faults of a whole file, at most MAX_FAULTS: the search ends there."""
        with suppress(EnoughFaultsError):
            self._whole(schedule)
        return self.faults

    def _whole(self, schedule: Schedule) -> None:
        self._schedule(schedule, "")
        for name, dim in schedule.model.dims.items():
            self._dimension(dim, f"/model/dims/{escape(name)}")
        for name, live in schedule.model.live.items():
            self.struct(live, f"/model/live/{escape(name)}")
        for index, layout in enumerate(schedule.model.distributed):
            self.struct(layout, f"/model/distributed/{index}")
        if schedule.model.sharded is not None:
            self.struct(schedule.model.sharded, "/model/sharded")
        self._model(schedule.model, "/model")
        check_mesh(self, schedule)
        self._solve(schedule.solve, "/solve")
        for name in ("compiled", "settings"):
            if (part := getattr(schedule.solve, name)) is not None:
                self.struct(part, f"/solve/{name}")
        for name, block in schedule.blocks.items():
            self._whole_block(block, f"/blocks/{escape(name)}")
        for index, instance in enumerate(schedule.program):
            self._instance(instance, f"/program/{index}")
        self._statements(schedule.statements, "/statements")
        for name, lane in schedule.lanes.items():
            self.struct(lane, f"/lanes/{escape(name)}")
        if schedule.digest is not None:
            self._whole_digest(schedule.digest)

    def struct(self, value: msgspec.Struct, where: str) -> None:
        """The faults of one object. Raises EnoughFaultsError once there are MAX_FAULTS."""
        self._checks[type(value)](value, where)

    def _whole_block(self, block: Block, where: str) -> None:
        self._block(block, where)
        for name, constant in block.constants.items():
            self._constant(constant, f"{where}/constants/{escape(name)}")
        for side, operations in (("forward", block.forward), ("backward", block.backward)):
            for index, operation in enumerate(operations):
                self._operation(operation, f"{where}/{side}/{index}")
        for index, instance in enumerate(block.instances):
            self._instance(instance, f"{where}/instances/{index}")
        for name, plan in block.plans.items():
            self._statements(plan, f"{where}/plans/{escape(name)}")

    def _statements(self, statements: tuple[Statement, ...], where: str) -> None:
        for index, statement in enumerate(statements):
            self.struct(statement, f"{where}/{index}")

    def _whole_digest(self, digest: Digest) -> None:
        self._digest.digest(digest, "/digest")
        for field, groups in (("modules", digest.modules), ("objects", digest.objects)):
            for index, group in enumerate(groups):
                self._digest.group(group, f"/digest/{field}/{index}")

    # One method per struct of the format

    def _schedule(self, schedule: Schedule, where: str) -> None:
        self.text(schedule.schema, f"{where}/$schema")
        self.text(schedule.name, f"{where}/name")
        self.text(schedule.note, f"{where}/note")
        self.number(schedule.revision, f"{where}/revision")
        self._names(schedule.blocks, f"{where}/blocks")
        check_top(self, schedule, where)
        for part, blocks in (("costs", schedule.costs), ("tile_workspaces", schedule.tile_workspaces)):
            for block, numbers in blocks.items():
                for name, number in numbers.items():
                    if not 0 <= number <= MAX_INTEGER:
                        self.number(number, f"{where}/{part}/{escape(block)}/{escape(name)}")
        if len(schedule.namespaces) > MAX_NAMESPACES:
            self.add("R072", f"over {MAX_NAMESPACES} namespaces", f"{where}/namespaces", "list those that are needed")
        for index, name in enumerate(schedule.namespaces[:MAX_NAMESPACES]):
            if not _NAMESPACE.fullmatch(name) or len(name) > MAX_NAME or not permissible(name):
                message = f"{name[:80]!r} is neither the namespace of an operator library nor a listed operator"
                hint = "write the part before the first dot of `op`, or all of it for an operator of torch"
                self.add("R014", message, f"{where}/namespaces/{index}", hint)

    def _model(self, model: Model, where: str) -> None:
        if not _FINGERPRINT.fullmatch(model.fingerprint):
            self.add(
                "R014",
                "not a fingerprint",
                f"{where}/fingerprint",
                "sha256: and 64 hexadecimal digits, as the planner writes it",
            )
        for field in ("name", "torch", "note"):
            self.text(getattr(model, field), f"{where}/{field}")
        for field in ("parameters", "buffers"):
            self._types(getattr(model, field), f"{where}/{field}", self._sizes.fixed_type_fault)
        check_parts(self, model, where)
        check_live(self, model, where)
        check_ranks(self, model, where)
        for field in ("mode_overrides", "frozen", "caches"):
            for index, name in enumerate(getattr(model, field)):
                self.name(name, f"{where}/{field}/{index}")
        self._names(model.tied, f"{where}/tied")
        for other, name in model.tied.items():
            self.name(name, f"{where}/tied/{escape(other)}")
        self._references(model.gradients, f"{where}/gradients")
        trees = TreeCheck(self, model.live)
        trees.inputs(model.inputs, f"{where}/inputs")
        if model.outputs is None:
            self.add(
                "R011", "the field 'outputs' is missing", where, 'a model that returns nothing has {"literal": null}'
            )
        else:
            trees.output(model.outputs, f"{where}/outputs")
        if max(len(model.dims), len(model.limits)) > MAX_DIMS:
            self.add("R072", f"over {MAX_DIMS} named sizes, or limits of them", f"{where}/dims")
        elif not self.faults:
            for name, fault in unsolved(model):
                self._fault(fault, f"{where}/dims/{name}")
            for text, most in model.limits.items():
                self._fault(limit_fault(model, text, most), f"{where}/limits/{escape(text)}")

    def _dimension(self, dim: Dimension, where: str) -> None:
        self._fault(dimension_fault(unescape(where.rpartition("/")[2]), dim), where)

    def _solve(self, solve: Solve, where: str) -> None:
        for field in ("strategy", "solver", "cost", "note"):
            self.text(getattr(solve, field), f"{where}/{field}")
        for field in _FIGURES:
            self.number(getattr(solve, field) or 0, f"{where}/{field}")
        if solve.profile and not _HASH.fullmatch(solve.profile):
            self.add("R014", "not a hash", f"{where}/profile", "16 hexadecimal digits; `remate plan` writes them")
        check_solved(self, solve.parts, f"{where}/parts")
        if solve.gap is not None and not -1e9 < solve.gap < 1e9:
            self.add("R013", "not a share", f"{where}/gap", "0.01 means one per cent of the baseline time")

    def _compiled(self, compiled: Compiled, where: str) -> None:
        for field in ("budget", "peak"):
            self.number(getattr(compiled, field) or 0, f"{where}/{field}")

    def _settings(self, settings: Settings, where: str) -> None:
        for field in ("budget", "strategy", "effort", "disk_budget", "host_budget", "bandwidth", "objective", "power"):
            self.text(getattr(settings, field), f"{where}/{field}")
        for field in ("differentiate", "live"):
            for index, name in enumerate(getattr(settings, field)):
                self.text(name, f"{where}/{field}/{index}")
        check_settings(self, settings, where)

    def _block(self, block: Block, where: str) -> None:
        self.text(block.note, f"{where}/note")
        if block.instances and (block.forward or block.backward or block.constants):
            hint = "put the operations into a block of their own and name it in `instances`"
            self.add("R015", "a block has either operations or instances", where, hint)
        self._types(block.inputs, f"{where}/inputs", self._sizes.type_fault)
        for field in ("parameters", "buffers"):
            self._types(getattr(block, field), f"{where}/{field}", self._sizes.fixed_type_fault)
        for index, name in enumerate(block.live):
            self.name(name, f"{where}/live/{index}")
        self._names(block.constants, f"{where}/constants")
        self._references(block.gradients, f"{where}/gradients")
        self._references(block.updates, f"{where}/updates")
        self._names(block.plans, f"{where}/plans")
        if block.plans.get(BASELINE):
            self.add("R046", f"{BASELINE!r} is the empty plan", f"{where}/plans/{BASELINE}", "give it another name")

    def _operation(self, operation: Operation, where: str) -> None:
        self.name(operation.id, f"{where}/id")
        self._operator(operation.op, f"{where}/op")
        check_collective(self, operation, self._ranks, where)
        for index, argument in enumerate(operation.args):
            check_argument(self, argument, f"{where}/args/{index}")
        for name, argument in operation.kwargs.items():
            self.name(name, f"{where}/kwargs/{escape(name)}")
            check_argument(self, argument, f"{where}/kwargs/{escape(name)}")
        out = operation.out
        if isinstance(out, str):
            self.tensor_type(out, f"{where}/out")
        else:
            if not 0 < len(out) <= MAX_OUTPUTS:
                self.add("R013", f"an operation has 1 to {MAX_OUTPUTS} outputs", f"{where}/out")
            for index, item in enumerate(out[:MAX_OUTPUTS]):
                if item is not None:
                    self.tensor_type(item, f"{where}/out/{index}")
        if isinstance(operation.workspace, str):
            self.expression(operation.workspace, f"{where}/workspace")
        elif not 0 <= operation.workspace <= MAX_INTEGER:
            self.number(operation.workspace, f"{where}/workspace")
        if operation.source and (len(operation.source) > MAX_NAME or not _SOURCE.fullmatch(operation.source)):
            self.add("R014", "not a source line", f"{where}/source", "write file.py:Block.forward+3, without folders")
        self.text(operation.note, f"{where}/note")

    def _constant(self, constant: Constant, where: str) -> None:
        self.text(constant.note, f"{where}/note")
        fault = self._sizes.fixed_type_fault(constant.type)
        self._fault(fault, f"{where}/type")
        if fault is None:
            check_elements(self, constant, where)

    def _instance(self, instance: Instance, where: str) -> None:
        self.name(instance.id, f"{where}/id")
        self.name(instance.block, f"{where}/block")
        self.name(instance.plan, f"{where}/plan")
        if instance.prefix:
            self.name(instance.prefix, f"{where}/prefix")
        self._references(instance.bindings, f"{where}/with")
        self.text(instance.note, f"{where}/note")

    # Pieces

    def add(self, code: str, message: str, where: str, hint: str = "") -> None:
        self.faults.append(ScheduleError(code, message, where, hint))
        if len(self.faults) >= MAX_FAULTS:
            raise EnoughFaultsError

    def name(self, name: str, where: str) -> None:
        if len(name) > MAX_NAME:
            self.add("R073", f"a name of more than {MAX_NAME} characters", where)
        elif not _NAME.fullmatch(name):
            hint = "write it without %" if name.startswith("%") else _NAME_HINT
            self.add("R014", f"{name[:80]!r} is not a name", where, hint)

    def _few(self, entries: Mapping[str, object], where: str) -> Iterable[str]:
        """The names of a map; none, and a fault, for one that no model needs."""
        if len(entries) <= MAX_PARAMETERS:
            return entries
        self.add("R072", f"over {MAX_PARAMETERS} entries", where)
        return ()

    def _names(self, entries: Mapping[str, object], where: str) -> None:
        for name in self._few(entries, where):
            self.name(name, f"{where}/{escape(name)}")

    def reference(self, text: str, where: str) -> None:
        if len(text) > MAX_NAME:
            self.add("R073", f"a reference of more than {MAX_NAME} characters", where)
        elif not _REFERENCE.fullmatch(text):
            hint = "write %name or %name:2; a text that starts with % is written %%"
            self.add("R022", f"{text[:80]!r} is not a reference", where, hint)

    def _references(self, entries: Mapping[str, str], where: str) -> None:
        for name in self._few(entries, where):
            self.name(name, f"{where}/{escape(name)}")
            self.reference(entries[name], f"{where}/{escape(name)}")

    def tensor_type(self, text: str, where: str) -> bool:
        fault = self._sizes.type_fault(text)
        self._fault(fault, where)
        return fault is None

    @property
    def sized(self) -> bool:
        return bool(self._sizes.dims)

    def expression(self, text: str, where: str, real: bool = False) -> None:
        self._fault(self._sizes.expression_fault(text, real), where)

    def live_number(self, text: str, where: str) -> None:
        self._fault(number_fault(text), where)

    def _fault(self, fault: ScheduleError | None, where: str) -> None:
        if fault is not None:
            self.add(fault.code, fault.message, where, fault.hint)

    def _types(self, entries: Mapping[str, str], where: str, judge: Callable[[str], ScheduleError | None]) -> None:
        for name in self._few(entries, where):
            self.name(name, f"{where}/{escape(name)}")
            self._fault(judge(entries[name]), f"{where}/{escape(name)}")

    def text(self, text: str, where: str) -> None:
        if len(text) > MAX_TEXT:
            self.add("R073", f"a text of more than {MAX_TEXT} characters", where, "shorten it")

    def number(self, number: int, where: str) -> None:
        if not 0 <= number <= MAX_INTEGER:
            self.add("R013", f"{str(number)[:40]} is not between 0 and 2^63 - 1", where)

    def _operator(self, op: str, where: str) -> None:
        if len(self.faults) >= MAX_FAULTS:
            return
        if op not in self._operators:
            self._operators[op] = operator_fault(op, self._namespaces)
        fault = self._operators[op]
        if fault is not None:
            self.add(fault[0], fault[1], where, fault[2])
