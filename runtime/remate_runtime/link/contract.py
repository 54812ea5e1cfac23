"""The contract of a step with autograd and the caller, whatever engine executes it. Does not require torch."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from ..flat_step.graph import LIVE, Graph, Op
from ..format.signature import Leaf
from ..format.tensor_type import TensorType
from ..operators.rows import ROWS
from .deliveries import copied
from .events import Deliver, Execution, Linked, Update

_BATCH_NORM = "aten.native_batch_norm_backward"
_LAYOUTS = ("aten.convolution_backward", _BATCH_NORM)  # round differently in a different memory layout
_SUM = "aten.sum.dim_IntList"
_SUMS = (_SUM, "aten.sum", "aten.mean.dim", "aten.mean")  # add up in the order of the memory layout
_ARITHMETIC = ("aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor", "aten.div.Tensor")
_PERMUTED = ("aten.t", "aten.permute", "aten.transpose.int")


class Output(msgspec.Struct, frozen=True):
    """A tensor that the module returns.

    Attributes:
        value: Value of the graph.
        grad: A gradient may pass through it.
        constant: It is in a constant, which later steps read, so the caller gets a copy.
    """

    name: str
    value: int
    grad: bool
    constant: bool


class Tangent(msgspec.Struct, frozen=True):
    """A gradient that backward starts from.

    Attributes:
        value: Value of the graph.
        output: Number of its output.
        type: The type that the backward operations were recorded with.
        layout_matters: Whether kernels of backward choose their order of sums by its memory layout.
        gaps_matter: Whether an operation that reads it rounds differently if it has gaps.
    """

    value: int
    output: int
    type: TensorType
    layout_matters: bool = False
    gaps_matter: bool = False


class Gradient(msgspec.Struct, frozen=True):
    """A gradient that backward computes.

    Attributes:
        value: Value of the graph.
        source: Number of its source.
        shared: Its storage also belongs to a different gradient or tangent.
        tangents: The tangents that it depends on. Without any of them the source gets no gradient, as in eager.
        sum: The source, as text, if the step sums gradients of several of its uses; otherwise "".
    """

    value: int
    source: int
    shared: bool
    tangents: frozenset[int]
    sum: str = ""

    def depends(self, given: set[int]) -> bool:
        return not self.tangents or not given.isdisjoint(self.tangents)


class Watched(msgspec.Struct, frozen=True):
    """A tensor that backward reads and that other code could write to meanwhile.

    Attributes:
        at: Number of the source or output.
        until: For a parameter or buffer, the number of the delivery up to which it is read. None: watched until
            backward begins.
    """

    at: int
    what: str
    until: int | None = None


class Passed(msgspec.Struct, frozen=True):
    """An output that is a parameter, or a buffer without update.

    Attributes:
        at: Number of the output.
        source: Number of the source.
        tracked: The model returns it with its autograd history, not after `.detach()`.
    """

    at: int
    source: int
    tracked: bool


class StepContract(msgspec.Struct, frozen=True):
    """The contract. Numbers count through `sources`, `outputs` and so on; values are those of the graph.

    Attributes:
        sources: Values of inputs, parameters, buffers and live attributes, in the caller's order.
        updates: (number of the buffer among the sources, its new value when forward ends).
        preserved: Buffers whose old contents backward reads.
        gradients: The gradients that backward computes.
        deliveries: Numbers of the gradients that are delivered together, in order.
        watched_sources: Must be unchanged when backward begins.
        watched_outputs: Must be unchanged when backward begins.
        tangents: The tangents that backward reads.
        undelivered: Numbers of the sources without gradient, except live attributes.
        passed: Outputs that are a parameter or buffer itself.
        inner: Numbers of outputs with a gradient that other such outputs depend on, and the tangents of those.
        uncounted: Sources that are updated like a batch norm's statistics: eager PyTorch counts no version for it.
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
    uncounted: tuple[int, ...] = ()


def step_contract(linked: Linked, outputs: Iterable[Leaf], sources: Iterable[str]) -> StepContract:
    """Return the contract of a step.

    Args:
        linked: The step.
        outputs: The leaves of the module's outputs.
        sources: Names in the order of their tensors.
    """
    graph = linked.graph
    numbers = {value.name: i for i, value in enumerate(graph.values)}
    given = tuple(numbers[name] for name in sources)
    position = {value: at for at, value in enumerate(given)}
    leaves = list(outputs)
    returned = tuple(_output(graph, leaf, numbers[leaf.text[1:]]) for leaf in leaves)
    preserved = tuple(e.buffer for e in linked.forward if isinstance(e, Update) and e.preserves)
    read, resident = _reads_of_backward(linked)
    last = _last_segments(linked)
    backward = graph.operations[graph.backward_start :]
    layout_matters = any(op.op in _LAYOUTS for op in backward)
    summed = {graph.root[value] for op in backward if _sums_by_strides(op) for value in op.reads}
    ordered = _added_up(graph, [numbers[f"grad.{output.name}"] for output in returned if output.grad])
    tangents = tuple(
        Tangent(value, at, graph.values[value].type, layout_matters or value in ordered, value in summed)
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
        tuple(position[buffer] for buffer, value in graph.updates if _is_statistic(graph, value)),
    )


def _is_statistic(graph: Graph, value: int) -> bool:
    """Return whether a batch norm made a new value of a buffer."""
    producer = graph.values[value].producer
    return producer >= 0 and "batch_norm" in graph.operations[producer].op


def _sums_by_strides(op: Op) -> bool:
    """Return whether an operation rounds differently if what it reads has gaps. A sum over the first axis does not."""
    if op.op == _SUM:
        axes = op.args[1] if len(op.args) > 1 else ()
        return axes != (0,)
    return op.op == _BATCH_NORM


def _added_up(graph: Graph, tangents: Iterable[int]) -> set[int]:
    """Return the gradients of outputs whose memory layout reaches a sum, through exchanged axes and elementwise
    operations. For views of other shapes eager PyTorch copies a gradient, too."""
    layout_of = {tangent: {tangent} for tangent in tangents}
    added_up: set[int] = set()
    for op in graph.operations[graph.backward_start :]:
        sources = {tangent for value in _deciding(graph, op) for tangent in layout_of.get(value, ())}
        if not sources:
            continue
        if op.op in _SUMS:
            added_up |= sources
        elif op.op in _PERMUTED or _is_elementwise(op):
            layout_of.update((value, sources) for value in op.writes if value is not None)
    return added_up


def _deciding(graph: Graph, op: Op) -> tuple[int, ...]:
    """Return the values that decide about the memory layout of the result. It is the first of two of the same shape."""
    if op.op not in _ARITHMETIC:
        return op.reads
    shapes = {graph.values[value].type.shape for value in op.reads}
    return op.reads[:1] if len(shapes) == 1 else op.reads


def _is_elementwise(op: Op) -> bool:
    """Return whether an operation takes over the memory layout of what it reads."""
    rule = ROWS.operators.get(op.op)
    return rule is not None and rule.rule == "elementwise" and "memory_format" not in op.kwargs


def contract_at_another_size(contract: StepContract, graph: Graph) -> StepContract:
    """Return the contract of a step with the same events at another size: only the types of tangents differ."""
    return replace(
        contract,
        tangents=tuple(replace(tangent, type=graph.values[tangent.value].type) for tangent in contract.tangents),
    )


def _passed(graph: Graph, returned: list[tuple[int, bool]], position: dict[int, int]) -> tuple[Passed, ...]:
    """Return the passed outputs. Inputs are excluded: autograd would add the parts of their gradients in a different
    order."""
    updated = {buffer for buffer, _ in graph.updates}
    return tuple(
        Passed(at, position[value], tracked)
        for at, (value, tracked) in enumerate(returned)
        if value in position and value not in updated and graph.values[value].kind in ("parameter", "buffer")
    )


def _inner(
    graph: Graph, returned: list[tuple[int, bool]], tangents: tuple[Tangent, ...]
) -> tuple[tuple[int, frozenset[int]], ...]:
    """Return the inner outputs. returned: the value of each output, and whether it has a gradient in the model."""
    parameters = {at for at, (value, _) in enumerate(returned) if graph.values[value].kind == "parameter"}
    made_from: dict[int, set[int]] = {}  # by value: the outputs that it depends on
    for at, (value, grad) in enumerate(returned):
        if grad:
            made_from.setdefault(value, set()).add(at)
    for op in graph.operations[: graph.backward_start]:
        through = set[int]().union(*(made_from.get(v, ()) for v in op.reads))
        if through:
            for value in op.writes:
                if value is not None:
                    made_from[value] = made_from.get(value, set()) | through
    reached: dict[int, set[int]] = {}
    for tangent in tangents:
        # Their hooks run anyway.
        for at in made_from.get(returned[tangent.output][0], set()) - {tangent.output} - parameters:
            reached.setdefault(at, set()).add(tangent.value)
    return tuple((at, frozenset(values)) for at, values in sorted(reached.items()))


def _undelivered(graph: Graph, given: tuple[int, ...]) -> tuple[int, ...]:
    delivered = {source for source, _ in graph.gradients}
    return tuple(at for at, i in enumerate(given) if i not in delivered and graph.values[i].kind != LIVE)


def _output(graph: Graph, leaf: Leaf, value: int) -> Output:
    return Output(leaf.name, value, leaf.grad, graph.values[graph.root[value]].kind == "constant")


def keeps_contract(linked: Linked, other: Linked) -> bool:
    """Return whether the contract of `linked` holds for `other`, the same step with more recomputations.

    It needs the same deliveries, no unwatched reads in backward, and no later reads.
    """
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
    """Return by owner of a storage that backward reads the number of the delivery before its last read."""
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
    """Return owners of the storages that backward reads, and those among them that forward leaves for it."""
    graph, root = linked.graph, linked.graph.root
    read: set[int] = {root[gradient] for _, gradient in graph.gradients}
    resident, produced = set(read), set[int]()
    for event in linked.backward:
        if isinstance(event, Execution):
            op = graph.operations[event.op]
            read.update(root[v] for v in op.reads)
            resident.update(root[v] for v in op.reads if v not in produced)
            produced.update(v for v in op.writes if v is not None)
    return read, resident


def _gradients(graph: Graph, position: dict[int, int]) -> tuple[Gradient, ...]:
    depends: list[frozenset[int]] = [
        frozenset((i,)) if value.kind == "tangent" else frozenset() for i, value in enumerate(graph.values)
    ]
    for op in graph.operations[graph.backward_start :]:
        through = frozenset[int]().union(*(depends[v] for v in op.reads))
        for value in op.writes:
            if value is not None:
                depends[value] = through
    gradients: list[Gradient] = []
    copies = copied(graph)
    for number, (source, value) in enumerate(graph.gradients):
        summed = _label(graph, source) if _is_sum(graph, value) else ""
        gradients.append(Gradient(value, position[source], number in copies, depends[value], summed))
    return tuple(gradients)


def _is_sum(graph: Graph, gradient: int) -> bool:
    """Return whether a gradient is the sum of two results of backward."""
    producer = graph.values[gradient].producer
    while producer >= 0 and graph.operations[producer].view:
        gradient = graph.operations[producer].reads[0]
        producer = graph.values[gradient].producer
    if producer < graph.backward_start or graph.operations[producer].op != "aten.add.Tensor":
        return False
    reads = graph.operations[producer].reads
    return len(reads) == 2 and all(graph.values[v].producer >= graph.backward_start for v in reads)
