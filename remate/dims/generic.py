"""Writes the step of a family for all its sizes, with expressions in place of numbers that differ.

It also proves that the result equals every capture at its sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from remate_runtime.errors import RemateError
from remate_runtime.flat_step import Graph, Op, expand, renumbered_argument
from remate_runtime.format import (
    Real,
    Schedule,
    Size,
    SizedType,
    TensorType,
    at_size,
    constant,
    is_object,
    is_tuple,
    map_inputs,
    map_outputs,
    out_of_range,
    over_limit,
    parse_size,
    parse_type,
)

from ..partition.hierarchy import Hierarchy, SizedStep
from .align import differs, strides_of, telling_strides
from .family import Family
from .fitting import SizeFitter
from .samples import dimensions
from .words import spelled
from .workspaces import disagreeing, measured_at, probes

_MARGIN = 4  # of an estimated workspace, the part that is added to what was measured


class TraceSampleCosts(msgspec.Struct, frozen=True):
    """Costs at the sizes of a family.

    Attributes:
        graphs: Graphs of the trace samples, in captured order, with the workspaces of their operations.
        measured: For measured trace samples, the workspaces by operation; empty if those of the graphs count.
        priced: Measures: adds costs to a graph.
    """

    graphs: list[Graph]
    measured: tuple[tuple[int, ...] | None, ...] = ()
    priced: Callable[[Graph], Graph] | None = None


def sized(step: Hierarchy, family: Family, costs: TraceSampleCosts) -> Hierarchy:
    """Return `step`, that of the family's first trace sample in block order, for all sizes of the family."""
    graphs = [_in_order(graph, step.order, step.captured.graph) for graph in costs.graphs]
    dims = dimensions(family.ranges)
    writer = _Writer(family, graphs)
    models = [trace_sample.captured.model for trace_sample in family.trace_samples]
    inputs = map_inputs(writer.leaf, *(each.inputs for each in models))
    outputs = map_outputs(writer.leaf, *(each.outputs for each in models))
    model = replace(
        step.captured.model,
        dims=dims,
        limits=family.limits,
        inputs=inputs,
        outputs=outputs,
        untracked_sizes=family.untracked,
    )
    graph = writer.graph()
    if costs.priced is not None:
        measured = [
            None if workspaces is None else [workspaces[at] for at in step.order] for workspaces in costs.measured
        ]
        graph = writer.measured(graph, disagreeing(graphs, measured), costs.priced)
    generic = replace(step.captured, graph=graph, model=model)
    trace_samples = tuple(
        (dict(trace_sample.sizes), graph) for trace_sample, graph in zip(family.trace_samples, graphs, strict=True)
    )
    captured = replace(
        step.captured, graph=_with_bounds(step.captured.graph, generic.graph, family.trace_samples[0].sizes)
    )
    given = frozenset(size.name for size in family.ranges if size.given[0])
    said = (*family.said, *writer.said())
    return replace(step, captured=captured, sized=SizedStep(generic, trace_samples, said, given))


def _with_bounds(planned: Graph, generic: Graph, sizes: Mapping[str, int]) -> Graph:
    """Return the planned graph with the workspaces of the file, some of which are bounds."""

    def workspace(text: Any) -> int:
        return parse_size(text).at(sizes) if isinstance(text, str) else text

    pairs = zip(planned.operations, generic.operations, strict=True)
    return replace(
        planned, operations=tuple(replace(op, workspace=workspace(written.workspace)) for op, written in pairs)
    )


def _in_order(graph: Graph, order: Sequence[int], planned: Graph) -> Graph:
    """Return a graph in the block order of the planned one, with its times."""
    operations = tuple(
        replace(graph.operations[at], ns=like.ns) for at, like in zip(order, planned.operations, strict=True)
    )
    values = tuple(replace(v, producer=like.producer) for v, like in zip(graph.values, planned.values, strict=True))
    return replace(graph, operations=operations, values=values)


class _Writer:
    """Writes what the trace samples of a family have in common. Of several equivalent candidates it uses the
    simplest."""

    def __init__(self, family: Family, graphs: Sequence[Graph]) -> None:
        self._family, self._graphs = family, graphs
        self._texts: dict[tuple[Any, ...], Size | Real] = {}
        self._workspaces: dict[tuple[bool, tuple[int, ...]], Any] = {}
        self._bounded: dict[str, None] = {}

    def said(self) -> Iterator[str]:
        """Yield as text what is not exact."""
        if self._bounded:
            yield f"workspace is an estimate, with a margin of a quarter, at other sizes: {', '.join(self._bounded)}"

    def graph(self) -> Graph:
        first = self._graphs[0]
        values = tuple(
            replace(value, type=self.type([graph.values[at].type for graph in self._graphs]))
            for at, value in enumerate(first.values)
        )
        every = zip(*(graph.operations for graph in self._graphs), strict=True)
        return replace(first, values=values, operations=tuple(map(self._operation, every)))

    def measured(self, graph: Graph, unsure: Sequence[int], priced: Callable[[Graph], Graph]) -> Graph:
        """Return the graph with measured workspaces of some of its operations in place of estimates."""
        sizes = probes(self._family.ranges, self._family.limits)
        fitter, operations = self._family.fitter.elsewhere(sizes), list(graph.operations)
        for at, row in measured_at(graph, unsure, sizes, priced).items() if unsure else ():
            operations[at] = replace(operations[at], workspace=self._fitted(operations[at].op, row, fitter))
        return replace(graph, operations=tuple(operations))

    def _operation(self, trace_samples: Sequence[Op]) -> Op:
        first = trace_samples[0]
        args = self.argument([op.args for op in trace_samples])
        kwargs = self.argument([op.kwargs for op in trace_samples])
        return replace(
            first,
            args=args,
            kwargs=kwargs,
            workspace=self._fitted(first.op, tuple(op.workspace for op in trace_samples), self._family.fitter),
        )

    def _fitted(self, op: str, row: tuple[int, ...], fitter: SizeFitter) -> Any:
        """Return a workspace: a number, or the text of an expression; an estimate if no expression agrees."""
        if not differs(row):
            return row[0]
        key = fitter is self._family.fitter, row
        if key not in self._workspaces:
            fits = fitter.expressions(row)
            self._workspaces[key] = (str(fits[0] if fits else fitter.bound(_with_margin(row))), not fits)
        text, bounded = self._workspaces[key]
        if bounded:
            self._bounded.setdefault(op)
        return text

    def _expression(self, row: Sequence[int | float | None]) -> Size | Real:
        key = (*map(type, row), *row)
        if key not in self._texts:
            self._texts[key] = self._family.fitter.expressions(row)[0]
        return self._texts[key]

    def type(self, kinds: Sequence[TensorType]) -> Any:
        """Return a type whose text names sizes; its graph is written to a file and never run."""
        if not any(kind != kinds[0] for kind in kinds):
            return kinds[0]
        shape = tuple(map(self._size, zip(*(kind.shape for kind in kinds), strict=True)))
        strides = None
        if any(kind.strides is not None for kind in kinds):
            strides = tuple(map(self._size, zip(*map(telling_strides, kinds), strict=True)))
        return SizedType(kinds[0].dtype, shape, strides, kinds[0].cpu)

    def _size(self, row: Sequence[int | None]) -> Size:
        expression = self._expression(row) if differs(row) else constant(next((n for n in row if n is not None), 1))
        assert isinstance(expression, Size)
        return expression

    def argument(self, trace_samples: Sequence[Any]) -> Any:
        first = trace_samples[0]
        if is_tuple(first):
            return tuple(self.argument(each) for each in zip(*trace_samples, strict=True))
        if is_object(first):
            return {key: self.argument([trace_sample[key] for trace_sample in trace_samples]) for key in first}
        if type(first) in (int, float) and differs(trace_samples):
            return {"size" if type(first) is int else "float": str(self._expression(trace_samples))}
        return first

    def leaf(self, *trace_samples: Any) -> Any:
        """Return a leaf of the inputs or outputs of the model with expressions."""
        first = trace_samples[0]
        if "tensor" in first:
            kinds = [parse_type(trace_sample["tensor"]) for trace_sample in trace_samples]
            return {**first, "tensor": str(self.type(kinds))}
        if "literal" in first:
            return {"literal": self.argument([trace_sample["literal"] for trace_sample in trace_samples])}
        return first


def _with_margin(row: Sequence[int]) -> list[int]:
    """Add a quarter to each number but the first, which is that of the planned size.

    Between measured sizes, workspaces of convolutions were up to 18.5% above a bound of those (6 of 80 sizes).
    """
    planned, *others = row
    return [planned, *(number + -(-number // _MARGIN) for number in others)]


def prove(schedule: Schedule, step: Hierarchy) -> None:
    """Prove that the schedule at each captured size is the step captured there. Raises RemateError for a defect."""
    assert step.sized is not None
    for sizes, captured in step.sized.trace_samples:
        where = _other(expand(at_size(schedule, sizes)).unsplit, captured) if _within(schedule, sizes) else ""
        if where:
            raise RemateError(
                f"the schedule written for {spelled(sizes)} is not the step captured there: {where}\n"
                "  hint: this is a defect of remate; please report it with the model"
            )


def _within(schedule: Schedule, sizes: Mapping[str, int]) -> bool:
    dims = schedule.model.dims
    faults = [out_of_range(name, dims[name], number) for name, number in sizes.items()]
    return not any(faults) and not over_limit(schedule.model.limits, sizes)


def _other(read_graph: Graph, captured_graph: Graph) -> str:
    """Return how a step that was read differs from the captured one except in names of values; "" if it does not."""
    if len(read_graph.operations) != len(captured_graph.operations):
        return f"{len(read_graph.operations)} operations, not {len(captured_graph.operations)}"
    positions = {v.name: at for at, v in enumerate(captured_graph.values) if v.kind not in ("op", "constant")}
    numbers = {
        at: positions.get(v.name, -1) for at, v in enumerate(read_graph.values) if v.kind not in ("op", "constant")
    }
    for read, captured in zip(read_graph.operations, captured_graph.operations, strict=True):
        numbers.update(
            (a, b) for a, b in zip(read.reads, captured.reads, strict=False) if read_graph.values[a].kind == "constant"
        )
        numbers.update(
            (a, b) for a, b in zip(read.writes, captured.writes, strict=False) if a is not None and b is not None
        )
        pairs = [(a, b) for a, b in zip(read.writes, captured.writes, strict=True) if a is not None and b is not None]
        arguments = renumbered_argument((read.args, read.kwargs), numbers.__getitem__)
        if (read.op, arguments) != (captured.op, (captured.args, captured.kwargs)):
            return f"{captured.id} ({captured.op}) has different arguments"
        if any(not _alike(read_graph.values[a].type, captured_graph.values[b].type) for a, b in pairs):
            return f"{captured.id} ({captured.op}) returns a different type"
    read_values = {v for op in read_graph.operations for v in op.reads}
    for at, number in numbers.items():
        if number < 0 and at in read_values:
            return f"{read_graph.values[at].name} is read, and was not captured"
        if (
            number >= 0
            and read_graph.values[at].kind != "op"
            and not _alike(read_graph.values[at].type, captured_graph.values[number].type)
        ):
            return f"{read_graph.values[at].name} has a different type"
    ends = [[numbers[v] for v in read_graph.outputs], sorted((numbers[a], numbers[b]) for a, b in read_graph.gradients)]
    if ends != [list(captured_graph.outputs), sorted(captured_graph.gradients)]:
        return "different outputs or gradients"
    return ""


def _alike(left: TensorType, right: TensorType) -> bool:
    """Return whether types are equal; strides of axes of size 1 do not count."""
    if (left.dtype, left.shape, left.cpu) != (right.dtype, right.shape, right.cpu):
        return False
    if 0 in left.shape:
        return True
    strides = zip(left.shape, strides_of(left), strides_of(right), strict=True)
    return all(size == 1 or a == b for size, a, b in strides)
