"""Converts a schedule for a range of sizes to the plain schedule of one of them. Does not require torch.

All code for steps (expansion, linking, simulation, binding) works with plain schedules only.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from ..errors import BindError, ScheduleError
from .expression_text import parse_real, parse_size
from .fingerprints import fingerprint
from .json_values import is_array, is_object
from .schedule import Block, Dimension, Model, Operation, Schedule
from .signature import escape
from .size_limits import over_limit
from .sized_type import parse_sized
from .vocabulary import NON_FINITE

PLANNED: Mapping[str, int] = MappingProxyType({})


def at_size(schedule: Schedule, dims: Mapping[str, int] = PLANNED) -> Schedule:
    """Return the schedule at a size, with numbers for expressions, no strides of contiguous types, and no `dims`.

    The figures of `solve` stay those of the planned size. At another size, the bound and the gap, which hold for the
    planned size only, are left out, and so are the workspaces of tiles. The fingerprint is correct for this size if
    that of the schedule is correct.

    Args:
        schedule: The schedule. Without named sizes it is returned as it is.
        dims: Values of named sizes. Omitted sizes are as planned.

    Raises:
        BindError: A name that the schedule does not have, or a number out of its range.
        ScheduleError: R02x for an expression without a valid size here.
    """
    size = checked_size(schedule.model, dims)
    if not size:
        return schedule
    at_this = _At(size)
    model = schedule.model
    plain = replace(
        schedule,
        model=replace(
            model,
            dims={},
            limits={},
            inputs=at_this.inputs(model.inputs),
            outputs=at_this.tree(model.outputs, "/model/outputs"),
        ),
        blocks={name: at_this.block(block, f"/blocks/{escape(name)}") for name, block in schedule.blocks.items()},
    )
    if any(number != model.dims[name].planned for name, number in size.items()):
        compiled = plain.solve.compiled and replace(plain.solve.compiled, peak=None)
        solve = replace(plain.solve, lower_bound=None, gap=None, compiled=compiled)
        plain = replace(plain, solve=solve, tile_workspaces={})
    if fingerprint(schedule) == model.fingerprint:
        plain = replace(plain, model=replace(plain.model, fingerprint=fingerprint(plain)))
    return plain


def checked_size(model: Model, dims: Mapping[str, int]) -> dict[str, int]:
    """Return a number for every dimension: that of `dims`, else the planned one. Raises BindError as `at_size` does."""
    declared = model.dims
    unknown = [name for name in dims if name not in declared]
    if unknown:
        known = ", ".join(declared)
        has = f"it has {known}" if known else "it is for one size: plan again with dims"
        raise BindError(f"the schedule has no size named {unknown[0][:80]!r}\n  {has}")
    size = {name: dims.get(name, dim.planned) for name, dim in declared.items()}
    faults = (out_of_range(name, declared[name], number) for name, number in size.items())
    if fault := next(filter(None, faults), "") or over_limit(model.limits, size):
        raise BindError(f"{fault}\n  plan again for a range that holds it")
    return size


def out_of_range(name: str, dim: Dimension, number: int) -> str:
    """Return the fault of a number for a dimension: `t is 2000, the schedule is for 16 to 1024`; "" in its range."""
    if dim.min <= number <= dim.max and not number % dim.multiple:
        return ""
    return f"{name} is {number}, the schedule is for {ranged(dim)}"


def ranged(dim: Dimension) -> str:
    """Format a range: `16 to 1024 in steps of 8`."""
    steps = f" in steps of {dim.multiple}" if dim.multiple != 1 else ""
    return f"{dim.min} to {dim.max}{steps}" if dim.min != dim.max else str(dim.min)


class _At:
    """Replaces the expressions of a schedule by numbers. Each text is parsed once."""

    def __init__(self, size: Mapping[str, int]) -> None:
        self._size = size
        self._types: dict[str, str] = {}

    def type(self, text: str) -> str:
        plain = self._types.get(text)
        if plain is None:
            plain = self._types[text] = str(parse_sized(text).at(self._size))
        return plain

    def inputs(self, given: Mapping[str, object]) -> dict[str, Any]:
        where = "/model/inputs"
        return {key: self._nodes(nodes, f"{where}/{escape(key)}") for key, nodes in given.items()}

    def tree(self, node: Any, where: str) -> Any:
        """Replace the expressions in a node of the trees of inputs and outputs."""
        if "returns" in node:
            attributes = self._nodes(node["attributes"], f"{where}/attributes")
            return {"returns": self.tree(node["returns"], f"{where}/returns"), "attributes": attributes}
        if "tensor" in node:
            return {**node, "tensor": self._located(self.type, node["tensor"], where)}
        if "literal" in node:
            return {"literal": self._located(self.argument, node["literal"], where)}
        kind = next((kind for kind in ("tuple", "list", "dict", "fields") if kind in node), None)
        return node if kind is None else {**node, kind: self._nodes(node[kind], f"{where}/{kind}")}

    def _nodes(self, nodes: Any, where: str) -> Any:
        if is_object(nodes):
            return {key: self.tree(node, f"{where}/{escape(key)}") for key, node in nodes.items()}
        return [self.tree(node, f"{where}/{at}") for at, node in enumerate(nodes)]

    def block(self, block: Block, where: str) -> Block:
        return replace(
            block,
            inputs={n: self._located(self.type, t, f"{where}/inputs/{escape(n)}") for n, t in block.inputs.items()},
            forward=self._operations(block.forward, f"{where}/forward"),
            backward=self._operations(block.backward, f"{where}/backward"),
        )

    def _operations(self, operations: tuple[Operation, ...], where: str) -> tuple[Operation, ...]:
        return tuple(self._located(self.operation, op, f"{where}/{at}") for at, op in enumerate(operations))

    def operation(self, op: Operation) -> Operation:
        out = op.out
        return replace(
            op,
            args=self.argument(op.args),
            kwargs={name: self.argument(value) for name, value in op.kwargs.items()},
            out=self.type(out) if isinstance(out, str) else tuple(None if t is None else self.type(t) for t in out),
            workspace=self.workspace(op.workspace),
        )

    def workspace(self, given: int | str) -> int:
        if isinstance(given, int):
            return given
        return max(0, parse_size(given).at(self._size))

    def argument(self, value: object) -> Any:
        if is_array(value):
            return type(value)(map(self.argument, value))
        if is_object(value) and "size" in value:
            return parse_size(value["size"]).at(self._size)
        if is_object(value) and "float" in value and value["float"] not in NON_FINITE:
            return parse_real(value["float"]).at(self._size)
        return value

    def _located(self, make: Any, given: Any, where: str) -> Any:
        try:
            return make(given)
        except ScheduleError as fault:
            raise ScheduleError(fault.code, fault.message, fault.where or where, fault.hint) from None
