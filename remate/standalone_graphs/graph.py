"""A bare instance as a step that the strategies work on: the same graph of operations as that of a captured model."""

from __future__ import annotations

import msgspec

from remate_runtime.flat_step import FlatRecompute, Graph, Op, Ref, Value
from remate_runtime.format import TensorType

from ..strategy import StepInstance
from .form import BareInstance, BareNode, inputs, node_of

# Operators that write over an argument if it dies there: over the first one, or over either of two.
_EITHER, _FIRST, _NONE = "aten.add.Tensor", "aten.relu", "instance.node"


class BareStep(msgspec.Struct, frozen=True):
    """An instance as a step. split: with its backward, whose operations run once; None if it has no forward/backward boundary. whole: all of
    it as a forward, of which everything may run again that the instance allows to. exact: both are the same problem, as
    nothing of the backward may run again."""

    whole: StepInstance
    split: StepInstance | None
    exact: bool

    @property
    def problem(self) -> StepInstance:
        """The step that says just what the instance says, and more about it where it can."""
        return self.split if self.split is not None and self.exact else self.whole


def bare_step(bare: BareInstance, orderable: bool = True) -> BareStep:
    """The step of a checked instance. orderable: its nodes may first execute in another order."""
    nodes = {node.id: node for node in bare.nodes}
    ordered = [nodes[name] for name in bare.order]
    once = frozenset(i for i, node in enumerate(ordered) if not node.recomputable)
    end, backward_start = (
        len(ordered),
        len(ordered) if bare.backward_start is None else bare.order.index(bare.backward_start),
    )
    whole = StepInstance(_graph(bare, ordered, end), once=once, orderable=orderable)
    split = StepInstance(_graph(bare, ordered, backward_start), once=once) if 0 < backward_start < end else None
    return BareStep(whole, split, set(range(backward_start, end)) <= once)


def sequence(bare: BareInstance, recomputes: tuple[FlatRecompute, ...], order: tuple[int, ...] = ()) -> tuple[str, ...]:
    """Ids of the nodes as they run. order: positions in the instance's order, if it was changed."""
    names = [bare.order[i] for i in order] if order else list(bare.order)
    before: dict[int, list[str]] = {}
    for recompute in recomputes:
        before.setdefault(recompute.before, []).append(names[recompute.op])
    return tuple(name for at, own in enumerate(names) for name in (*before.get(at, ()), own))


def _graph(bare: BareInstance, ordered: list[BareNode], backward_start: int) -> Graph:
    values: list[Value] = []
    number: dict[str, int] = {}
    operations: list[Op] = []
    reads = inputs(bare)
    for index, node in enumerate(ordered):
        arguments = tuple(Ref(number[name]) for name in [*node.in_place, *reads[node.id]] if name in number)
        arguments = tuple(dict.fromkeys(arguments))
        made = []
        for at, nbytes in enumerate(node.bytes):
            made.append(len(values))
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
                tuple(made),
                len(made) != 1,
                False,
                False,
                node.time,
                node.workspace,
            )
        )
    gradients = []
    for name in dict.fromkeys(number[name] for name in bare.pins):
        gradients.append((len(values), name))
        values.append(Value(f"pin:{name}", values[name].type, "parameter"))
    root = tuple(range(len(values)))
    return Graph(tuple(values), tuple(operations), backward_start, (), tuple(gradients), (), root, "cpu")


def reads_of(bare: BareInstance) -> dict[str, list[str]]:
    """By node, the nodes that it reads from."""
    return {name: list(dict.fromkeys(map(node_of, read))) for name, read in inputs(bare).items()}
