"""Converts a bare instance to a step for the strategies, with the same graph type as a captured model."""

from __future__ import annotations

import msgspec

from remate_runtime.flat_step import FlatRecompute, Graph, Op, Ref, Value
from remate_runtime.format import TensorType

from ..strategy import StepInstance
from .form import BareInstance, BareNode, inputs, node_of

# Operators that write over an argument at its last read: over the first one, or over either of two.
_EITHER, _FIRST, _NONE = "aten.add.Tensor", "aten.relu", "instance.node"


class BareStep(msgspec.Struct, frozen=True):
    """An instance as a step.

    Attributes:
        whole: The step as one forward, in which every recomputable operation may run again.
        split: The step with its backward, whose operations run once; None without a forward/backward boundary.
        exact: Whether both are the same problem, because no operation of the backward may run again.
    """

    whole: StepInstance
    split: StepInstance | None
    exact: bool

    @property
    def problem(self) -> StepInstance:
        """Return the step that is equivalent to the instance, with more structure if possible."""
        return self.split if self.split is not None and self.exact else self.whole


def bare_step(bare: BareInstance, orderable: bool = True) -> BareStep:
    """Return the step of a checked instance.

    Args:
        bare: The instance.
        orderable: Whether first executions may have a different order.
    """
    nodes = {node.id: node for node in bare.nodes}
    ordered = [nodes[name] for name in bare.order]
    once = frozenset(i for i, node in enumerate(ordered) if not node.recomputable)
    count, backward_start = (
        len(ordered),
        len(ordered) if bare.backward_start is None else bare.order.index(bare.backward_start),
    )
    end = count if any(nodes[node_of(output)].recomputable for output in bare.pins) else None
    forward = count if end is None else count + 1
    allowed = once if end is None else once | {end}
    whole = StepInstance(_graph(bare, ordered, forward), once=allowed, orderable=orderable, end=end)
    split = StepInstance(_graph(bare, ordered, backward_start), once=allowed) if 0 < backward_start < count else None
    return BareStep(whole, split, set(range(backward_start, count)) <= once)


def sequence(bare: BareInstance, recomputes: tuple[FlatRecompute, ...], order: tuple[int, ...] = ()) -> tuple[str, ...]:
    """Return ids of nodes as they run.

    Args:
        bare: The instance.
        recomputes: Recomputations of its step.
        order: Positions in the instance's order, if the order was changed.
    """
    names = [bare.order[i] for i in order if i < len(bare.order)] if order else list(bare.order)
    before: dict[int, list[str]] = {}
    for recompute in recomputes:
        before.setdefault(recompute.before, []).append(names[recompute.op])
    last = before.get(len(names), ())  # before the end operation, which is not a node
    return (*(name for at, own in enumerate(names) for name in (*before.get(at, ()), own)), *last)


def _graph(bare: BareInstance, ordered: list[BareNode], backward_start: int) -> Graph:
    values: list[Value] = []
    number: dict[str, int] = {}
    operations: list[Op] = []
    reads = inputs(bare)
    for index, node in enumerate(ordered):
        arguments = tuple(Ref(number[name]) for name in [*node.in_place, *reads[node.id]] if name in number)
        arguments = tuple(dict.fromkeys(arguments))
        written: list[int] = []
        for at, nbytes in enumerate(node.bytes):
            written.append(len(values))
            number[f"{node.id}:{at}"] = len(values)
            if at == 0:
                number[node.id] = len(values)
            values.append(Value(f"{node.id}:{at}", TensorType("i8", (nbytes,)), "op", index))
        operator = (_NONE, _FIRST, _EITHER)[len(node.in_place)]
        used = tuple(argument.value for argument in arguments)
        operations.append(
            Op(
                node.id,
                operator,
                arguments,
                {},
                used,
                tuple(written),
                len(written) != 1,
                False,
                False,
                node.time,
                node.workspace,
            )
        )
    may_run_again = {node.id for node in ordered if node.recomputable}
    gradients, evictable = list[tuple[int, int]](), list[int]()
    for name, value in {number[name]: (name, number[name]) for name in bare.pins}.values():
        if node_of(name) in may_run_again:
            evictable.append(value)
        else:  # always in memory, like a gradient
            gradients.append((len(values), value))
            values.append(Value(f"pin:{name}", values[value].type, "parameter"))
    if evictable:
        operations.append(_end(bare, tuple(evictable)))
    root = tuple(range(len(values)))
    return Graph(tuple(values), tuple(operations), backward_start, (), tuple(gradients), (), root, "cpu")


def _end(bare: BareInstance, pinned: tuple[int, ...]) -> Op:
    """Return a last operation that reads the pinned outputs, produces nothing and takes no time.

    It lets pinned outputs be evicted and recomputed like all others, also after the last node.
    """
    name = "end"
    while any(node.id == name for node in bare.nodes):
        name += "'"
    return Op(name, _NONE, tuple(map(Ref, pinned)), {}, pinned, (), True, False, False, 0, 0)


def reads_of(bare: BareInstance) -> dict[str, list[str]]:
    """Return for each node the nodes that it reads from."""
    return {name: list(dict.fromkeys(map(node_of, read))) for name, read in inputs(bare).items()}
