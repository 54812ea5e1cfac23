"""The operators that a model's own forward runs, held against those of a schedule: where they part, the step that was
captured took another branch than eager takes here, and its sums may be made in another order, and hold other memory.

Of operators with the same name, count of tensors and type of result, a schedule may run as many as eager or fewer, for
it leaves out what nothing needs. Operators that move no numbers (views, copies, new tensors) are not looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..flat_step.graph import Graph, Op, Ref
from ..operator_calls.overloads import TORCH_DTYPES
from ..operators.tables import VIEWS

BEYOND_EAGER = "the model's own forward does not run"
Kind = tuple[
    str, int, tuple[Any, ...]
]  # name without overload, tensors among the arguments, shape and dtype of the result
# Stand for what eager spells in several operators (dropout) or in place (writes into a part), or move no numbers.
_NOT_COMPARED = frozenset(
    """alias arange as_strided clone copy detach empty empty_like empty_strided fill full full_like lift_fresh
    native_dropout new_empty new_full new_ones new_zeros ones ones_like reshape scalar_tensor select_scatter
    slice_scatter
    zero zeros zeros_like _fused_dropout _to_copy""".split()
) | {name.removeprefix("aten.").partition(".")[0] for name in VIEWS}


class EagerOperators(TorchDispatchMode):
    """Counts what runs while it is entered. What autograd would save meanwhile is saved as ever."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: Counter[Kind] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        name = function._schema.name.rpartition("::")[2]
        tensors = sum(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves((args, kwargs)))
        first = next((leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, torch.Tensor)), None)
        result = () if first is None else (tuple(first.shape), first.dtype)
        self.counted[_name(name), tensors, result] += 1
        return made


def beyond_eager(graph: Graph, eager: EagerOperators) -> list[str]:
    """What the schedule's forward runs more often than eager's did, counted by `eager`, as text; what stands first
    comes first."""
    found: dict[Kind, list[Op]] = {}
    for op in graph.operations[: graph.backward_start]:
        kind = _kind(graph, op)
        if kind is not None:
            found.setdefault(kind, []).append(op)
    return [_told(ops, eager.counted[kind]) for kind, ops in found.items() if len(ops) > eager.counted[kind]]


def _told(ops: list[Op], counted: int) -> str:
    place = f" ({ops[0].source})" if ops[0].source else ""
    if not counted:
        return f"{ops[0].op}, as in {ops[0].id!r}{place}"
    return f"{ops[0].op} {len(ops)} times but {counted}, as in {ops[0].id!r}{place}"


def _kind(graph: Graph, op: Op) -> Kind | None:

    space, _, rest = op.op.partition(".")
    name = _name(rest.partition(".")[0])
    if op.view or (space == "aten" and name in _NOT_COMPARED):
        return None
    made = next((value for value in op.writes if value is not None), None)
    if made is None:
        return None
    kind = graph.values[made].type
    return (
        name,
        sum(_refs(op.args)) + sum(_refs(tuple(op.kwargs.values()))),
        (tuple(kind.shape), TORCH_DTYPES[kind.dtype]),
    )


def _refs(arguments: Any) -> Iterator[int]:
    for item in arguments:
        if isinstance(item, Ref):
            yield 1
        elif isinstance(item, tuple):
            yield from _refs(item)


def _name(name: str) -> str:
    """One name for an operator, its form in place, and the kernels of batch normalization that devices choose among."""
    plain = name.rstrip("_") if not name.endswith("__") else name
    return "batch_norm" if plain.endswith(("batch_norm", "batch_norm_legit_functional")) else plain
