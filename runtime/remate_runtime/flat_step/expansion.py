"""Expands the templates, instances and plans of a file to a flat Graph and flat recomputations.

Operations are numbered in step order: forward of the instances in program order, then backward of the instances in
reverse. Recomputations before the same point run in this order: top level, enclosing blocks, the instance's own plan
(an inner plan refines what an outer plan has recomputed). Within a list they run as listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import msgspec

from ..errors import ScheduleError
from ..format.distributed_check import gradient_shapes
from ..format.json_values import Json
from ..format.schedule import LANES, Operation, Schedule
from ..format.signature import escape, input_leaves, named_faults, output_leaves
from ..format.substitution import at_size
from ..format.suggest import close_names, did_you_mean
from ..format.tensor_type import TensorType, parse_type
from ..operators.tables import RANDOM, VIEWS
from .arguments import resolve, to_graph
from .causes import Causes
from .cost_names import check_cost_names
from .graph import LIVE, NUMBER, FlatPage, FlatRecompute, Graph, Op, Value, roots
from .layout import InstanceSpan, lay_out, leaf_numbers
from .live_scopes import scopes_of_live
from .split_plan import SplitPlan, split_by_plan
from .statements import StatedSplit, flat_plan, stated_splits
from .type_rules import no_gradient_of, no_update_of, not_as_declared, too_large

_Data = tuple[Any, ...] | None  # elements of a value, if the file states them
Scopes = tuple[Mapping[str, int], Mapping[str, int]]  # values by local name, and live attributes


class Expanded(msgspec.Struct, frozen=True):
    """An expanded schedule.

    Attributes:
        graph: The step with its splits, without recomputations and pages.
        recomputes: In execution order.
        where: JSON pointer of the line of each operation.
        stated, paged: JSON pointer of the name of each recomputation, and of each page.
        places: All instances, enclosing instances before inner ones.
        pages, splits: Those of outer statements first.
        unsplit: The step without its splits.
        reordered, rounded: See `SplitPlan`.
        bound: Each value that an instance binds, with the block and the name there.
        leaves: By id of an operation, the number of its instance, which has no inner instances.
    """

    graph: Graph
    recomputes: tuple[FlatRecompute, ...]
    where: tuple[str, ...]
    stated: tuple[str, ...]
    places: tuple[InstanceSpan, ...]
    pages: tuple[FlatPage, ...]
    paged: tuple[str, ...]
    unsplit: Graph
    splits: tuple[StatedSplit, ...]
    reordered: tuple[int, ...]
    rounded: tuple[int, ...]
    bound: tuple[tuple[int, str, str], ...]
    leaves: Mapping[str, int]


def expand(schedule: Schedule) -> Expanded:
    """Expand blocks and plans, for named sizes at the planned size (`at_size` returns the schedule of another size).

    Raises:
        ScheduleError: R015, R02x–R07x, R09x. ScheduleFaultsError if there are several.
    """
    return _Expansion(at_size(schedule)).result()


class _Expansion:
    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.causes = Causes()
        self.values: list[Value] = []
        self.names: dict[str, int] = {}  # full name -> value
        self.bound: dict[tuple[int, str, str], None] = {}  # as in `Expanded`
        self.live: dict[str, int] = {}  # live attributes; they are no tensors, so no reference resolves to one
        self.places, self.backward_start = lay_out(schedule)
        count = sum(len(p.block.forward) + len(p.block.backward) for p in self.places)
        self.lines: list[Operation | None] = [None] * count
        self.where = [""] * count
        self.full_ids: list[str] = [""] * count
        self.results: list[tuple[int | None, ...]] = [()] * count

    def result(self) -> Expanded:
        self._sources()
        for place in self.places:
            if place.leaf:
                self._values_of(place)
        self.causes.report()
        scopes = self._scopes()
        live_scopes = scopes_of_live(self.places, self.live, self.causes)
        self.causes.report()
        operations = self._operations(scopes, live_scopes)
        self.causes.report()
        root = roots(len(self.values), operations)
        gradients, updates, outputs = self._gradients(scopes), self._updates(scopes, root), self._outputs()
        check_cost_names(self.schedule, self.causes)
        self.causes.report()
        contents = tuple(self.values), operations, self.backward_start, outputs, gradients, updates, root
        model, assumed, lanes = self.schedule.model, self.schedule.solve.gradients, {**LANES, **self.schedule.lanes}
        parts = model.modules * model.calls, model.modules
        graph = Graph(*contents, model.device, assumed, *parts, lanes, sharded=model.sharded)
        step = SplitPlan(graph, tuple(self.where), tuple(self.places))
        if splits := stated_splits(self.schedule, self.places):
            step = split_by_plan(step, splits, self.schedule)
        plan = flat_plan(self.schedule, step.places, step.graph)
        stated = plan.recomputes, step.where, plan.stated, step.places, plan.pages, plan.paged
        leaves = leaf_numbers(step.places, [op.id for op in step.graph.operations])
        changes = tuple(splits), step.reordered, step.rounded
        return Expanded(step.graph, *stated, graph, *changes, tuple(self.bound), leaves)

    # Values

    def _add(self, name: str, text: str, kind: str, where: str, producer: int = -1, data: _Data = None) -> int:
        try:
            parsed = parse_type(text)
            if data is not None and len(data) != parsed.numel:
                raise ScheduleError("R023", f"{len(data)} elements for {text}", hint="give one element per entry")
        except ScheduleError as fault:
            self.causes.add(fault, where)
            parsed = TensorType("u8", (0,))
        if name in self.names or name in self.live:
            self.causes.add(ScheduleError("R031", f"two values are called {name[:120]!r}", hint="rename one"), where)
        (self.live if kind == LIVE else self.names)[name] = len(self.values)
        self.values.append(Value(name, parsed, kind, producer, data))
        return len(self.values) - 1

    def _sources(self) -> None:
        model = self.schedule.model
        for leaf in input_leaves(model.inputs):
            self._add(leaf.name, leaf.text, "input", leaf.where)
        for name, text in model.parameters.items():
            self._add(name, text, "parameter", f"/model/parameters/{escape(name)}")
        for name, text in model.buffers.items():
            self._add(name, text, "buffer", f"/model/buffers/{escape(name)}")
        for name, attribute in model.live.items():
            self._add(name, str(NUMBER), LIVE, f"/model/live/{escape(name)}", data=(attribute.planned,))
        for fault, where in named_faults(model):
            self.causes.add(fault, where)

    def _values_of(self, place: InstanceSpan) -> None:
        block, inside = place.block, f"/blocks/{escape(place.block_name)}"
        for name, constant in block.constants.items():
            where = f"{inside}/constants/{escape(name)}"
            self._add(f"{place.id}.{name}", constant.type, "constant", where, -1, constant.data)
        for part, lines, span in (
            ("forward", block.forward, place.forward),
            ("backward", block.backward, place.backward),
        ):
            for at, line in enumerate(lines):
                index = span[at]
                self.lines[index], self.where[index] = line, f"{inside}/{part}/{at}"
                self.full_ids[index] = full = f"{place.id}.{line.id}"
                many = not isinstance(line.out, str)
                outs = (line.out,) if isinstance(line.out, str) else line.out
                self.results[index] = tuple(
                    None
                    if text is None
                    else self._add(f"{full}:{k}" if many else full, text, "op", self.where[index], index)
                    for k, text in enumerate(outs)
                )

    def _tangents(self) -> None:
        for leaf in output_leaves(self.schedule.model.outputs):
            if leaf.grad and leaf.text[1:] in self.names:
                of = self.values[self.names[leaf.text[1:]]]
                if leaf.gradient_axes and len(leaf.gradient_axes) != len(of.type.shape):
                    message = f"{len(leaf.gradient_axes)} axes for the gradient of {of.type}"
                    raise ScheduleError("R016", message, f"{leaf.where}/gradient_axes", "delete it")
                self._add(f"grad.{leaf.name}", str(leaf.tangent(of.type)), "tangent", leaf.where)

    # Scopes: local names of every leaf block

    def _scopes(self) -> list[dict[str, int]]:
        """Return the values of each place by local name. Bindings may refer to siblings and enclosing inputs."""
        self._tangents()
        scopes: list[dict[str, int]] = []
        for place in self.places:
            scope: dict[str, int] = {}
            self._bind(place, scopes[place.parent] if place.parent >= 0 else None, scope)
            for name in place.block.constants:
                self._local(scope, name, self.names[f"{place.id}.{name}"], place)
            if place.leaf:
                self._local_values(place, scope)
            scopes.append(scope)
        return scopes

    def _local_values(self, place: InstanceSpan, scope: dict[str, int]) -> None:
        for lines, span in ((place.block.forward, place.forward), (place.block.backward, place.backward)):
            for line, index in zip(lines, span, strict=True):
                if isinstance(line.out, str):
                    self._local(scope, line.id, self.results[index][0], place)
                else:
                    for k, value in enumerate(self.results[index]):
                        self._local(scope, f"{line.id}:{k}", value, place)

    def _local(self, scope: dict[str, int], name: str, value: int | None, place: InstanceSpan) -> None:
        if name in scope:
            message = f"{name[:120]!r} has two meanings in the block"
            self.causes.add(ScheduleError("R031", message), place.where, place.block_name, name)
        if value is not None:
            scope[name] = value

    def _bind(self, place: InstanceSpan, above: dict[str, int] | None, scope: dict[str, int]) -> None:
        block, given = place.block, place.instance.bindings
        model, where = self.schedule.model, place.where
        known = {**block.inputs, **block.parameters, **block.buffers}
        unbound = {name for name in block.inputs if name not in given}
        for name in given:
            if name not in known and name not in block.live:
                meant = close_names(name, sorted(unbound) or known, 1)
                unbound -= set(meant)  # one cause: the name is misspelt
                inputs = ", ".join([*known][:8]) or "none"
                hint = f"did you mean {meant[0]}?" if meant else f"inputs of the block: {inputs}"
                message = f"block {place.block_name!r} has no input {name[:120]!r}"
                self.causes.add(ScheduleError("R034", message, hint=hint), f"{where}/with/{escape(name)}")
        for name, text in known.items():
            if name in given:
                value = self._outer(given[name], place, above, f"{where}/with/{escape(name)}")
            elif name in block.inputs:
                if name in unbound:
                    message = f"input {name[:120]!r} of {place.id!r} is not bound"
                    self.causes.add(ScheduleError("R034", message), where, where, name)
                continue
            else:
                full = f"{place.prefix}.{name}" if place.prefix else name
                value = self.names.get(full) if full in model.parameters or full in model.buffers else None
                if value is None:
                    hint = "add it under `model`, or bind it in `with`"
                    hint = did_you_mean(full, chain(model.parameters, model.buffers), hint)
                    fault = ScheduleError("R037", f"the model has no parameter or buffer {full[:120]!r}", "", hint)
                    self.causes.add(fault, where, place.block_name, name)
            if value is not None:
                self._local(scope, name, value, place)
                if name in given:
                    self.bound[value, place.block_name, name] = None
                self._same_type(value, text, f"{where}/with/{escape(name)}" if name in given else where)

    def _outer(self, reference: str, place: InstanceSpan, above: dict[str, int] | None, where: str) -> int | None:
        """Resolve a reference in the scope around `place`."""
        if above is not None:
            value = above.get(reference[1:])
            if value is None:
                value = self.names.get(f"{self.places[place.parent].id}.{reference[1:]}")
            if value is not None and reference.startswith("%"):
                return value
        try:
            return resolve(reference, self.names if above is None else {})
        except ScheduleError as fault:
            self.causes.add(fault, where)
            return None

    def _same_type(self, value: int, text: str, where: str) -> None:
        try:
            expected = parse_type(text)
        except ScheduleError as fault:
            self.causes.add(fault, where)
            return
        if fault := not_as_declared(self.values[value], expected):
            self.causes.add(fault, where)

    # Operations

    def _operations(self, scopes: list[dict[str, int]], live_scopes: list[dict[str, int]]) -> tuple[Op, ...]:
        operations: list[Op | None] = [None] * len(self.lines)
        for place, scope, live in zip(self.places, scopes, live_scopes, strict=True):
            if place.leaf:
                costs = self.schedule.costs.get(place.block_name, {})
                for index in (*place.forward, *place.backward):
                    try:
                        operations[index] = self._operation(index, (scope, live), costs)
                    except ScheduleError as fault:
                        self.causes.add(fault, self.where[index])
        known = tuple(op for op in operations if op is not None)
        nbytes = sum(value.type.nbytes for value in self.values) + sum(op.workspace for op in known)
        if fault := too_large(nbytes, sum(op.ns for op in known)):
            self.causes.add(fault, "")
        return known

    def _operation(self, index: int, scopes: Scopes, costs: Mapping[str, int]) -> Op:
        line = self.lines[index]
        assert line is not None
        read: list[int] = []
        args = tuple(self._arguments(enumerate(line.args), scopes, read, index, "args").values())
        kwargs = self._arguments(line.kwargs.items(), scopes, read, index, "kwargs")
        reads = tuple(dict.fromkeys(read))
        for value in reads:
            self._available(value, index)
        view = line.op in VIEWS
        if view and (len(reads) != 1 or not self.results[index]):
            raise ScheduleError("R053", f"{line.op} is a view: it reads exactly one value")
        many, random, ns = not isinstance(line.out, str), line.op in RANDOM, costs.get(line.id, 0)
        about = self.results[index], many, view, random, ns, int(line.workspace), line.source
        return Op(self.full_ids[index], line.op, args, kwargs, reads, *about)

    def _arguments(
        self, given: Iterable[tuple[object, Json]], scopes: Scopes, read: list[int], index: int, part: str
    ) -> dict[Any, Any]:
        converted, key = dict[Any, Any](), None
        try:
            for key, argument in given:
                converted[key] = to_graph(argument, *scopes, read)
        except ScheduleError as fault:
            where = f"{self.where[index]}/{part}/{escape(str(key))}"
            raise ScheduleError(fault.code, fault.message, where, fault.hint) from None
        return converted

    def _available(self, value: int, index: int) -> None:
        source = self.values[value]
        if source.producer >= index or (source.kind == "tangent" and index < self.backward_start):
            raise ScheduleError("R036", f"reads {source.name[:120]!r} too early", hint="reorder the operations")

    # Signature

    def _gradients(self, scopes: list[dict[str, int]]) -> tuple[tuple[int, int], ...]:
        gradients: dict[int, int] = {}
        shapes = gradient_shapes(self.schedule.model)
        wanted = {leaf.name for leaf in input_leaves(self.schedule.model.inputs) if leaf.grad}
        wanted |= self.schedule.model.parameters.keys() - set(self.schedule.model.frozen)
        for scope, stated, where in self._stated("gradients", scopes):
            for name, text in stated.items():
                at = f"{where}/{escape(name)}"
                try:
                    source, value = resolve("%" + name, scope), resolve(text, scope)
                    self._check_gradient(source, value, wanted, gradients, shapes)
                except ScheduleError as fault:
                    self.causes.add(fault, at)
                    continue
                gradients[source] = value
        return tuple(sorted(gradients.items()))

    def _check_gradient(
        self, source: int, value: int, wanted: set[str], known: dict[int, int], shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        target, gradient = self.values[source], self.values[value]
        if target.name not in wanted:
            raise ScheduleError("R060", f"{target.name[:120]!r} is no parameter or input that takes a gradient")
        if source in known:
            raise ScheduleError(
                "R061", f"a second gradient of {target.name[:120]!r}", hint="add the two, state the sum"
            )
        if fault := no_gradient_of(target, gradient, shapes):
            raise fault

    def _stated(self, field: str, scopes: list[dict[str, int]]) -> Iterator[tuple[dict[str, int], dict[str, str], str]]:
        if field == "gradients":
            yield self.names, self.schedule.model.gradients, "/model/gradients"
        for place, scope in zip(self.places, scopes, strict=True):
            yield scope, getattr(place.block, field), f"/blocks/{escape(place.block_name)}/{field}"

    def _updates(self, scopes: list[dict[str, int]], root: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        updates: dict[int, int] = {}
        places: dict[int, str] = {}
        for scope, stated, where in self._stated("updates", scopes):
            for name, text in stated.items():
                at = f"{where}/{escape(name)}"
                try:
                    buffer, value = resolve("%" + name, scope), resolve(text, scope)
                except ScheduleError as fault:
                    self.causes.add(fault, at)
                    continue
                target, new = self.values[buffer], self.values[value]
                if (
                    target.kind != "buffer"
                    or new.producer >= self.backward_start
                    or new.kind == "tangent"
                    or buffer in updates
                ):
                    self.causes.add(ScheduleError("R063", f"{name[:120]!r} cannot take {text[:120]!r}"), at)
                elif fault := no_update_of(target, new):
                    self.causes.add(fault, at)
                updates[buffer], places[buffer] = value, at
        for buffer, value in updates.items():
            if root[value] in updates:  # the order of the two writes must not matter
                message = f"{self.values[value].name[:120]!r} shares the storage of a buffer that the step also updates"
                self.causes.add(ScheduleError("R063", message, "", "take a copy of it (aten.clone)"), places[buffer])
        return tuple(sorted(updates.items()))

    def _outputs(self) -> tuple[int, ...]:
        outputs: dict[int, None] = {}
        for leaf in output_leaves(self.schedule.model.outputs):
            try:
                value = resolve(leaf.text, self.names)
            except ScheduleError as fault:
                self.causes.add(ScheduleError("R064", fault.message, leaf.where, fault.hint), leaf.where)
                continue
            if self.values[value].producer >= self.backward_start or self.values[value].kind == "tangent":
                self.causes.add(ScheduleError("R064", f"{leaf.text[:120]!r} is not produced by forward"), leaf.where)
            outputs[value] = None
        return tuple(outputs)
