"""Lets backward read a tensor from a concatenation that is kept anyway, so that the tensor itself is not kept.

Skip connections are an example: an activation goes into the next stage and, concatenated with another, into a late one.
The concatenation may have to be kept longer. So the change is made tensor by tensor, if the simulated peak does not
grow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from ...flat_step.graph import FlatRecompute, Graph, Op, Ref, Value
from ...format.json_values import is_tuple
from ...format.tensor_type import TensorType
from ...link.events import Deliver, Linked
from ...link.linker import link
from ...link.simulator import simulate
from ...operator_calls.overloads import overload
from ..compiled_step import LinkedStep
from .fused_recomputes import planned_recomputes, with_fused_recomputes

_CAT, _SLICE = "aten.cat", "aten.slice.Tensor"


class _Part(NamedTuple):
    """`value` is the part of `whole` from `start` to `end` in dimension `dim`."""

    value: int
    whole: int
    dim: int
    start: int
    end: int


def as_compiled(step: LinkedStep) -> LinkedStep:
    """Return the step as the compiled engine executes it: with reads from concatenations, and with recomputations
    beyond those of the file."""
    return with_fused_recomputes(with_joined_reads(step))


def with_joined_reads(step: LinkedStep) -> LinkedStep:
    """Return the step in which backward reads parts of kept concatenations instead of the concatenated tensors."""
    recomputes = planned_recomputes(step.linked)
    least = simulate(step.linked).peak
    for part in _parts(step.linked.graph, {recompute.op for recompute in recomputes}):
        graph, moved = _reading(step.linked.graph, part), _recomputes_from(recomputes, step.linked.graph.backward_start)
        linked = link(graph, moved)
        peak = simulate(linked).peak
        if peak <= least and _deliveries(linked) == _deliveries(step.linked):
            operators = {**step.operators, _SLICE: overload(_SLICE)}
            step, recomputes, least = step._replace(linked=linked, operators=operators), moved, peak
    return step


def _deliveries(linked: Linked) -> list[Deliver]:
    return [event for event in linked.events if isinstance(event, Deliver)]


def _parts(graph: Graph, again: set[int]) -> list[_Part]:
    """Return the candidates, the largest first. again: recomputed operations, whose results are not kept."""
    outside = {graph.root[value] for value in (*graph.outputs, *(value for pair in graph.updates for value in pair))}
    parts: dict[int, _Part] = {}
    backward = graph.operations[graph.backward_start :]
    for at, op in enumerate(graph.operations[: graph.backward_start]):
        if op.op != _CAT or at in again or op.writes[0] in outside or not _is_read(backward, graph, op.writes[0] or 0):
            continue
        for part in _joined(graph, op):
            producer = graph.values[part.value].producer
            if producer >= 0 and producer not in again and part.value not in outside and _moves(backward, graph, part):
                parts.setdefault(part.value, part)
    return sorted(parts.values(), key=lambda part: -graph.nbytes(part.value))


def _joined(graph: Graph, cat: Op) -> Iterator[_Part]:
    """Yield the concatenated tensors that have a storage of their own and the dtype of the result."""
    given = [item.value for item in cat.args[0] if isinstance(item, Ref)]
    whole = cat.writes[0]
    if whole is None or len(given) != len(cat.args[0]):
        return
    kind = graph.values[whole].type
    rank = len(kind.shape)
    dim: int = (cat.args[1] if len(cat.args) > 1 else cat.kwargs.get("dim", 0)) % max(1, rank)
    start = 0
    for value in given:
        about = graph.values[value].type
        if len(about.shape) != rank:  # an empty vector, which `cat` accepts in any position
            continue
        if graph.root[value] == value and (about.dtype, about.cpu) == (kind.dtype, kind.cpu) and about.numel:
            yield _Part(value, whole, dim, start, start + about.shape[dim])
        start += about.shape[dim]


def _is_read(backward: Sequence[Op], graph: Graph, owner: int) -> bool:
    return any(not op.view and owner in (graph.root[value] for value in op.reads) for op in backward)


def _moves(backward: Sequence[Op], graph: Graph, part: _Part) -> bool:
    """Return whether backward reads the tensor, and never through a view."""
    readers = [op for op in backward if part.value in (graph.root[value] for value in op.reads)]
    given = {gradient for _, gradient in graph.gradients}
    return bool(readers) and part.value not in given and all(part.value in op.reads and not op.view for op in readers)


def _reading(graph: Graph, part: _Part) -> Graph:
    """Return the graph with an additional view at the start of backward, which backward reads."""
    at, sliced, values = graph.backward_start, len(graph.values), graph.values
    old, whole = values[part.value], values[part.whole]
    args = Ref(part.whole), part.dim, part.start, part.end
    op = Op(f"{old.name} in {whole.name}", _SLICE, args, {}, (part.whole,), (sliced,), False, True, False)
    moved = [replace(v, producer=v.producer + (v.producer >= at)) for v in values]
    new = Value(op.id, _sliced(whole.type, old.type.shape), "op", at)
    backward = [_instead(op_after, part.value, sliced) for op_after in graph.operations[at:]]
    operations = (*graph.operations[:at], op, *backward)
    return replace(graph, values=(*moved, new), operations=operations, root=(*graph.root, part.whole))


def _sliced(kind: TensorType, shape: tuple[int, ...]) -> TensorType:
    """Return the type of a part with this shape."""
    strides, size = [0] * len(shape), 1
    for at in reversed(range(len(shape))):
        strides[at] = size
        size *= kind.shape[at]
    return replace(kind, shape=shape, strides=kind.strides or tuple(strides))


def _instead(op: Op, old: int, new: int) -> Op:
    """Return the operation with value `old` replaced by `new`. Views in backward never read `old`."""

    def changed(argument: object) -> object:
        if isinstance(argument, Ref):
            return Ref(new) if argument.value == old else argument
        return tuple(map(changed, argument)) if is_tuple(argument) else argument

    if old not in op.reads:
        return op
    return replace(
        op,
        args=tuple(map(changed, op.args)),
        kwargs={name: changed(value) for name, value in op.kwargs.items()},
        reads=tuple(new if value == old else value for value in op.reads),
    )


def _recomputes_from(recomputes: Sequence[FlatRecompute], at: int) -> list[FlatRecompute]:
    """Return the recomputations in a graph with an additional operation at this position."""
    return [replace(recompute, before=recompute.before + (recompute.before >= at)) for recompute in recomputes]
