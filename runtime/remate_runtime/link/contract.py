"""What a step promises to autograd and to the caller, whatever engine executes it. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ..flat_step.graph import LIVE, Graph
from ..format.signature import Leaf
from ..format.tensor_type import TensorType
from .deliveries import copied
from .events import Deliver, Execution, Linked, Update


class Output(msgspec.Struct, frozen=True):
    """A tensor that the module returns. value: in the graph. grad: a gradient may pass through it. constant: it lies in
    one, which later steps read, so the caller gets a copy."""

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
    until: of a parameter or buffer, the number of the delivery up to which it is read; None: watched until backward
    begins.
    """

    at: int
    what: str
    until: int | None = None


class Passed(msgspec.Struct, frozen=True):
    """An output that is a parameter, or a buffer that is not updated. at: number of the output. source: of the source.
    tracked: the model returns it with its autograd history, not behind `.detach()`."""

    at: int
    source: int
    tracked: bool


class StepContract(msgspec.Struct, frozen=True):
    """Numbers count through `sources`, `outputs` and so on; values are those of the graph.

    sources: values of inputs, parameters, buffers and live attributes, in the order in which the caller gives them.
    updates: (number of the buffer among the sources, the value that it takes when forward ends). preserved: buffers
    whose old contents backward reads. gradients: what backward gives. deliveries: numbers of the gradients that are
    given together, in the order in which they are. watched_sources, watched_outputs: must be unchanged when backward
    begins. tangents: those that backward reads. undelivered: numbers of the sources, live attributes aside, that get no
    gradient. passed: outputs that are a parameter or buffer as it is.
    inner: numbers of outputs with a gradient that others with one are made from, and the tangents of those.
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
    undelivered: tuple[int, ...] = ()
    passed: tuple[Passed, ...] = ()
    inner: tuple[tuple[int, frozenset[int]], ...] = ()


def step_contract(linked: Linked, outputs: Iterable[Leaf], sources: Iterable[str]) -> StepContract:
    """outputs: the leaves of the module's outputs. sources: names in the order in which their tensors will be given."""
    graph = linked.graph
    numbers = {value.name: i for i, value in enumerate(graph.values)}
    given = tuple(numbers[name] for name in sources)
    position = {value: at for at, value in enumerate(given)}
    leaves = list(outputs)
    returned = tuple(_output(graph, leaf, numbers[leaf.text[1:]]) for leaf in leaves)
    preserved = tuple(e.buffer for e in linked.forward if isinstance(e, Update) and e.preserves)
    read, resident = _reads_of_backward(linked)
    last = _last_segments(linked)
    tangents = tuple(
        Tangent(value, at, graph.values[output.value].type.dense)
        for at, output in enumerate(returned)
        if output.grad and (value := numbers[f"grad.{output.name}"]) in read
    )
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
        tangents,
        _undelivered(graph, given),
        _passed(graph, [(numbers[leaf.text[1:]], leaf.grad or leaf.detached) for leaf in leaves], position),
        _inner(graph, [(numbers[leaf.text[1:]], leaf.grad or leaf.detached) for leaf in leaves], tangents),
    )


def _passed(graph: Graph, returned: list[tuple[int, bool]], position: dict[int, int]) -> tuple[Passed, ...]:
    """Inputs are not passed on as they are: autograd would add up the parts of their gradients in another order."""
    updated = {buffer for buffer, _ in graph.updates}
    return tuple(
        Passed(at, position[value], tracked)
        for at, (value, tracked) in enumerate(returned)
        if value in position and value not in updated and graph.values[value].kind in ("parameter", "buffer")
    )


def _inner(
    graph: Graph, returned: list[tuple[int, bool]], tangents: tuple[Tangent, ...]
) -> tuple[tuple[int, frozenset[int]], ...]:
    """returned: the value of each output, and whether it has a gradient in the model."""
    parameters = {at for at, (value, _) in enumerate(returned) if graph.values[value].kind == "parameter"}
    made_from: dict[int, set[int]] = {}  # by value: the outputs that it is made from
    for at, (value, grad) in enumerate(returned):
        if grad:
            made_from.setdefault(value, set()).add(at)
    for op in graph.operations[: graph.backward_start]:
        through = set().union(*(made_from.get(v, ()) for v in op.reads))
        if through:
            for value in op.writes:
                if value is not None:
                    made_from[value] = made_from.get(value, set()) | through
    reached: dict[int, set[int]] = {}
    for tangent in tangents:
        for at in made_from.get(returned[tangent.output][0], set()) - {tangent.output} - parameters:  # hooks are theirs
            reached.setdefault(at, set()).add(tangent.value)
    return tuple((at, frozenset(values)) for at, values in sorted(reached.items()))


def _undelivered(graph: Graph, given: tuple[int, ...]) -> tuple[int, ...]:
    delivered = {source for source, _ in graph.gradients}
    return tuple(at for at, i in enumerate(given) if i not in delivered and graph.values[i].kind != LIVE)


def _output(graph: Graph, leaf: Leaf, value: int) -> Output:
    return Output(leaf.name, value, leaf.grad, graph.values[graph.root[value]].kind == "constant")


def keeps_contract(linked: Linked, other: Linked) -> bool:
    """Whether what `linked` promises holds for `other`, the same step with more recomputes: the same deliveries,
    nothing read in backward that is not watched, and nothing later."""
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
