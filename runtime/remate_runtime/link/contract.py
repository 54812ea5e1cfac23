"""What a step promises to autograd and to the caller, whatever engine executes it. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ..flat_step.graph import Graph
from ..format.signature import Leaf
from ..format.tensor_type import TensorType
from .deliveries import copied
from .events import Deliver, Execution, Linked, Update


class Output(msgspec.Struct, frozen=True):
    """A tensor that the module returns. value: in the graph. grad: a gradient may pass through it. constant: it lies in one, which
    later steps read, so the caller gets a copy."""

    name: str
    value: int
    grad: bool
    constant: bool


class Tangent(msgspec.Struct, frozen=True):
    """A gradient that backward starts from. value: in the graph. output: number of the output that it belongs to. type:
    what the backward operations were recorded with."""

    value: int
    output: int
    type: TensorType


class Gradient(msgspec.Struct, frozen=True):
    """value: in the graph. source: number of the source that it belongs to. shared: its storage is another's too.

    tangents: those that it depends on. Without any of them the source gets no gradient, as in eager.
    """

    value: int
    source: int
    shared: bool
    tangents: frozenset[int]

    def depends(self, given: set[int]) -> bool:
        return not self.tangents or not given.isdisjoint(self.tangents)


class Watched(msgspec.Struct, frozen=True):
    """A tensor that backward reads and that somebody else could write to meanwhile. at: number of the source or output.
    until: of a parameter or buffer, the number of the delivery up to which it is read; None: watched until backward begins.
    """

    at: int
    what: str
    until: int | None = None


class StepContract(msgspec.Struct, frozen=True):
    """Numbers count through `sources`, `outputs` and so on; values are those of the graph.

    sources: values of inputs, parameters, buffers and live attributes, in the order in which the caller gives them. updates: (number of the
    buffer among the sources, the value that it takes when forward ends). preserved: buffers whose old contents backward
    reads. gradients: what backward gives. deliveries: numbers of the gradients that are given together, in the order in which
    they are. watched_sources, watched_outputs: must be unchanged when backward begins.
    tangents: those that backward reads.
    """

    sources: tuple[int, ...]
    outputs: tuple[Output, ...]
    updates: tuple[tuple[int, int], ...]
    preserved: tuple[int, ...]
    gradients: tuple[Gradient, ...]
    deliveries: tuple[tuple[int, ...], ...]
    watched_sources: tuple[Watched, ...]
    watched_outputs: tuple[Watched, ...]
    tangents: tuple[Tangent, ...]


def step_contract(linked: Linked, outputs: Iterable[Leaf], sources: Iterable[str]) -> StepContract:
    """outputs: the leaves of the module's outputs. sources: names in the order in which their tensors will be given."""
    graph = linked.graph
    numbers = {value.name: i for i, value in enumerate(graph.values)}
    given = tuple(numbers[name] for name in sources)
    position = {value: at for at, value in enumerate(given)}
    returned = tuple(_output(graph, leaf, numbers[leaf.text[1:]]) for leaf in outputs)
    preserved = tuple(e.buffer for e in linked.forward if isinstance(e, Update) and e.preserves)
    read, resident = _reads_of_backward(linked)
    last = _last_segments(linked)
    return StepContract(
        given,
        returned,
        tuple((position[buffer], value) for buffer, value in graph.updates),
        preserved,
        _gradients(graph, position),
        tuple(event.gradients for event in linked.backward if isinstance(event, Deliver)),
        tuple(
            Watched(position[i], _label(graph, i), None if graph.values[i].kind == "input" else last.get(i))
            for i in given
            if i in read and i not in preserved
        ),
        tuple(
            Watched(at, f"output {graph.values[output.value].name!r}")
            for at, output in enumerate(returned)
            if graph.root[output.value] in resident and graph.values[graph.root[output.value]].producer >= 0
        ),
        tuple(
            Tangent(value, at, graph.values[output.value].type.dense)
            for at, output in enumerate(returned)
            if output.grad and (value := numbers[f"grad.{output.name}"]) in read
        ),
    )


def _output(graph: Graph, leaf: Leaf, value: int) -> Output:
    return Output(leaf.name, value, leaf.grad, graph.values[graph.root[value]].kind == "constant")


def keeps_contract(linked: Linked, other: Linked) -> bool:
    """Whether what `linked` promises holds for `other`, the same step with more recomputes: the same deliveries, nothing read
    in backward that is not watched, and nothing later."""
    if [e for e in linked.events if isinstance(e, Deliver | Update)] != [
        e for e in other.events if isinstance(e, Deliver | Update)
    ]:
        return False
    graph = linked.graph
    callers = (
        {at for at, value in enumerate(graph.values) if value.producer < 0},
        {graph.root[v] for v in graph.outputs},
    )
    read = zip(callers, _reads_of_backward(linked), _reads_of_backward(other), strict=True)
    if any((now - before) & seen for seen, before, now in read):
        return False
    last = _last_segments(linked)
    later = {owner for owner, segment in _last_segments(other).items() if segment > last.get(owner, -1)}
    return later.isdisjoint(callers[0])


def _last_segments(linked: Linked) -> dict[int, int]:
    """By owner of a storage that backward reads, the number of the delivery before which it does so last."""
    graph, last, segment = linked.graph, dict[int, int](), 0
    for event in linked.backward:
        if isinstance(event, Deliver):
            segment += 1
        elif isinstance(event, Execution):
            last.update((graph.root[value], segment) for value in graph.operations[event.op].reads)
    return last


def _label(graph: Graph, value: int) -> str:
    return f"{graph.values[value].kind} {graph.values[value].name!r}"


def _reads_of_backward(linked: Linked) -> tuple[set[int], set[int]]:
    """Owners of the storages that backward reads; and those among them that forward has left behind for it."""
    graph, root = linked.graph, linked.graph.root
    read: set[int] = {root[gradient] for _, gradient in graph.gradients}
    resident, made = set(read), set[int]()
    for event in linked.backward:
        if isinstance(event, Execution):
            op = graph.operations[event.op]
            read.update(root[v] for v in op.reads)
            resident.update(root[v] for v in op.reads if v not in made)
            made.update(v for v in op.writes if v is not None)
    return read, resident


def _gradients(graph: Graph, position: dict[int, int]) -> tuple[Gradient, ...]:
    depends: list[frozenset[int]] = [
        frozenset((i,)) if value.kind == "tangent" else frozenset() for i, value in enumerate(graph.values)
    ]
    for op in graph.operations[graph.backward_start :]:
        through = frozenset().union(*(depends[v] for v in op.reads))
        for value in op.writes:
            if value is not None:
                depends[value] = through
    found: list[Gradient] = []
    copies = copied(graph)
    for number, (source, value) in enumerate(graph.gradients):
        found.append(Gradient(value, position[source], number in copies, depends[value]))
    return tuple(found)
