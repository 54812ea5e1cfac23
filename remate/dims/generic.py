"""The step of a family as one: expressions of sizes stand where its numbers differ; and the proof that it is the captured one
at every size that was captured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from remate_runtime.errors import RemateError
from remate_runtime.flat_step import Graph, Number, Op, Ref, expand
from remate_runtime.format import (
    Dimension,
    Real,
    Schedule,
    Size,
    SizedType,
    TensorType,
    at_size,
    constant,
    parse_size,
    parse_type,
)

from ..partition.hierarchy import Hierarchy, SizedStep
from .align import differs, strides_of, telling_strides
from .family import Family
from .fitting import SizeFitter
from .words import spelled
from .workspaces import disagreeing, measured_at, probes


class TraceSampleCosts(msgspec.Struct, frozen=True):
    """graphs: of a family's shots, in captured order, with the workspaces of their operations. measured: of those shots where
    they were measured, what was found, by operation; empty where the graphs' are what counts. priced: measures, gives a graph its
    costs."""

    graphs: list[Graph]
    measured: tuple[tuple[int, ...] | None, ...] = ()
    priced: Callable[[Graph], Graph] | None = None


def sized(step: Hierarchy, family: Family, costs: TraceSampleCosts) -> Hierarchy:
    """`step`, which is that of the family's first shot in block order, for all sizes of the family."""
    graphs = [_in_order(graph, step.order, step.captured.graph) for graph in costs.graphs]
    dims = {
        one.name: Dimension(min=one.min, max=one.max, multiple=one.multiple, planned=one.planned)
        for one in family.ranges
    }
    writer = _Writer(family, graphs)
    inputs = writer.tree([trace_sample.captured.model.inputs for trace_sample in family.trace_samples])
    outputs = writer.tree([trace_sample.captured.model.outputs for trace_sample in family.trace_samples])
    model = replace(step.captured.model, dims=dims, inputs=inputs, outputs=outputs)
    graph = writer.graph()
    if costs.priced is not None:
        measured = [None if found is None else [found[at] for at in step.order] for found in costs.measured]
        graph = writer.measured(graph, disagreeing(graphs, measured), costs.priced)
    generic = replace(step.captured, graph=graph, model=model)
    trace_samples = tuple(
        (dict(trace_sample.sizes), graph) for trace_sample, graph in zip(family.trace_samples, graphs, strict=True)
    )
    captured = replace(
        step.captured, graph=_with_bounds(step.captured.graph, generic.graph, family.trace_samples[0].sizes)
    )
    return replace(step, captured=captured, sized=SizedStep(generic, trace_samples, (*family.said, *writer.said())))


def _with_bounds(planned: Graph, generic: Graph, sizes: Mapping[str, int]) -> Graph:
    """The planned graph with the workspaces that the file says, some of which are bounds."""

    def workspace(text: Any) -> int:
        return parse_size(text).at(sizes) if isinstance(text, str) else text

    pairs = zip(planned.operations, generic.operations, strict=True)
    return replace(
        planned, operations=tuple(replace(op, workspace=workspace(written.workspace)) for op, written in pairs)
    )


def _in_order(graph: Graph, order: Sequence[int], planned: Graph) -> Graph:
    """A graph in the block order of the planned one, whose times it takes."""
    operations = tuple(
        replace(graph.operations[at], ns=like.ns) for at, like in zip(order, planned.operations, strict=True)
    )
    values = tuple(replace(v, producer=like.producer) for v, like in zip(graph.values, planned.values, strict=True))
    return replace(graph, operations=operations, values=values)


class _Writer:
    """Writes what the shots of a family have in common. Of several candidates, which agree at all sizes, the simplest."""

    def __init__(self, family: Family, graphs: Sequence[Graph]) -> None:
        self._family, self._graphs = family, graphs
        self._texts: dict[tuple[Any, ...], Size | Real] = {}
        self._workspaces: dict[tuple[bool, tuple[int, ...]], Any] = {}
        self._bounded: dict[str, None] = {}

    def said(self) -> Iterator[str]:
        """What is not exact, for people."""
        if self._bounded:
            yield f"workspace is an upper bound at sizes other than those captured: {', '.join(self._bounded)}"

    def graph(self) -> Graph:
        first = self._graphs[0]
        values = tuple(
            replace(value, type=self.type([graph.values[at].type for graph in self._graphs]))
            for at, value in enumerate(first.values)
        )
        every = zip(*(graph.operations for graph in self._graphs), strict=True)
        return replace(first, values=values, operations=tuple(map(self._operation, every)))

    def measured(self, graph: Graph, unsure: Sequence[int], priced: Callable[[Graph], Graph]) -> Graph:
        """The graph with measured workspaces of some of its operations, in place of estimates."""
        sizes = probes(self._family.ranges)
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
        """A workspace: a number, or the text of an expression; a bound where there is no expression."""
        if not differs(row):
            return row[0]
        key = fitter is self._family.fitter, row
        if key not in self._workspaces:
            fits = fitter.expressions(row)
            self._workspaces[key] = (str(fits[0] if fits else fitter.bound(row)), not fits)
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
        """A type whose text names sizes; it stands in a graph that is written down and never run."""
        if not any(kind != kinds[0] for kind in kinds):
            return kinds[0]
        shape = tuple(map(self._size, zip(*(kind.shape for kind in kinds), strict=True)))
        strides = None
        if any(kind.strides is not None for kind in kinds):
            strides = tuple(map(self._size, zip(*map(telling_strides, kinds), strict=True)))
        return SizedType(kinds[0].dtype, shape, strides, kinds[0].cpu)

    def _size(self, row: Sequence[int | None]) -> Size:
        found = self._expression(row) if differs(row) else constant(next((n for n in row if n is not None), 1))
        assert isinstance(found, Size)
        return found

    def argument(self, trace_samples: Sequence[Any]) -> Any:
        first = trace_samples[0]
        if isinstance(first, tuple):
            return tuple(self.argument(each) for each in zip(*trace_samples, strict=True))
        if isinstance(first, dict):
            return {key: self.argument([trace_sample[key] for trace_sample in trace_samples]) for key in first}
        if type(first) in (int, float) and differs(trace_samples):
            return {"size" if type(first) is int else "float": str(self._expression(trace_samples))}
        return first

    def tree(self, trace_samples: Sequence[Any]) -> Any:
        """Inputs or outputs of the model."""
        first = trace_samples[0]
        if isinstance(first, list | tuple):
            return type(first)(self.tree(each) for each in zip(*trace_samples, strict=True))
        if not isinstance(first, dict):
            return first
        if "tensor" in first and isinstance(first["tensor"], str):
            return {
                **first,
                "tensor": str(self.type([parse_type(trace_sample["tensor"]) for trace_sample in trace_samples])),
            }
        if "literal" in first:
            return {"literal": self.argument([trace_sample["literal"] for trace_sample in trace_samples])}
        return {key: self.tree([trace_sample[key] for trace_sample in trace_samples]) for key in first}


def prove(schedule: Schedule, step: Hierarchy) -> None:
    """The schedule at each size that was captured is the step captured there. Raises RemateError, which would be a defect."""
    assert step.sized is not None
    for sizes, captured in step.sized.trace_samples:
        where = _other(expand(at_size(schedule, sizes)).graph, captured) if _within(schedule, sizes) else ""
        if where:
            raise RemateError(
                f"the schedule written for {spelled(sizes)} is not the step captured there: {where}\n"
                "  hint: this is a defect of remate; please report it with the model"
            )


def _within(schedule: Schedule, sizes: Mapping[str, int]) -> bool:
    dims = schedule.model.dims
    return all(dims[name].min <= n <= dims[name].max and n % dims[name].multiple == 0 for name, n in sizes.items())


def _other(one: Graph, other: Graph) -> str:
    """Where a step that was read is another one than what was captured, "" if it is not: names of values are its own."""
    if len(one.operations) != len(other.operations):
        return f"{len(one.operations)} operations, not {len(other.operations)}"
    stands = {v.name: at for at, v in enumerate(other.values) if v.kind not in ("op", "constant")}
    numbers = {at: stands.get(v.name, -1) for at, v in enumerate(one.values) if v.kind not in ("op", "constant")}
    for read, made in zip(one.operations, other.operations, strict=True):
        numbers.update((a, b) for a, b in zip(read.reads, made.reads, strict=False) if one.values[a].kind == "constant")
        numbers.update(
            (a, b) for a, b in zip(read.writes, made.writes, strict=False) if a is not None and b is not None
        )
        pairs = [(a, b) for a, b in zip(read.writes, made.writes, strict=True) if a is not None and b is not None]
        if (read.op, _renumbered((read.args, read.kwargs), numbers)) != (made.op, (made.args, made.kwargs)):
            return f"{made.id} ({made.op}) has other arguments"
        if any(not _alike(one.values[a].type, other.values[b].type) for a, b in pairs):
            return f"{made.id} ({made.op}) makes another type"
    read_ones = {v for op in one.operations for v in op.reads}
    for at, number in numbers.items():
        if number < 0 and at in read_ones:
            return f"{one.values[at].name} is read, and was not captured"
        if number >= 0 and one.values[at].kind != "op" and not _alike(one.values[at].type, other.values[number].type):
            return f"{one.values[at].name} is of another type"
    ends = [[numbers[v] for v in one.outputs], sorted((numbers[a], numbers[b]) for a, b in one.gradients)]
    if ends != [list(other.outputs), sorted(other.gradients)]:
        return "other outputs or gradients"
    return ""


def _renumbered(argument: Any, numbers: Mapping[int, int]) -> Any:
    if isinstance(argument, Ref):
        return Ref(numbers[argument.value])
    if isinstance(argument, Number):
        return argument.of(numbers.__getitem__)
    if isinstance(argument, tuple):
        return tuple(_renumbered(item, numbers) for item in argument)
    if isinstance(argument, dict):
        return {key: _renumbered(item, numbers) for key, item in argument.items()}
    return argument


def _alike(one: TensorType, other: TensorType) -> bool:
    """The same type; strides of sizes of 1 say nothing."""
    if (one.dtype, one.shape, one.cpu) != (other.dtype, other.shape, other.cpu):
        return False
    if 0 in one.shape:
        return True
    strides = zip(one.shape, strides_of(one), strides_of(other), strict=True)
    return all(size == 1 or a == b for size, a, b in strides)
