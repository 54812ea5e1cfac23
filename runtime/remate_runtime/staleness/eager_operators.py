"""The operators that a model's own forward runs, compared with those of a schedule.

If they differ, the captured step took a different branch than eager takes here. Its sums may have a different order,
and its tensors different memory. For operators of the same name, number of tensor arguments and type of result, a
schedule may run as many as eager or fewer, because it leaves out unused results. Operators that move no numbers (views,
copies, new tensors) are not compared.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from ..flat_step.graph import Graph, Op
from ..flat_step.renumbering import values_in
from ..operator_calls.overloads import SHORT_DTYPES, TORCH_DTYPES
from ..operators.tables import VIEWS
from ..torch_private import pytree
from ..torch_private.execution import TorchDispatchMode

BEYOND_EAGER = "the model's own forward does not run"
Kind = tuple[
    str, int, tuple[Any, ...]
]  # name without overload, tensors among the arguments, shape and dtype of the result
# Eager writes these as several operators (dropout) or in place (writes into a part), or they move no numbers.
_NOT_COMPARED = frozenset(
    """alias arange as_strided clone copy detach empty empty_like empty_strided fill full full_like lift_fresh
    native_dropout new_empty new_full new_ones new_zeros ones ones_like reshape scalar_tensor select_scatter
    slice_scatter
    zero zeros zeros_like _fused_dropout _to_copy""".split()
) | {name.removeprefix("aten.").partition(".")[0] for name in VIEWS}


class EagerOperators(TorchDispatchMode):
    """Counts the operators that run while it is active. Autograd saves tensors as usual."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] (torch declares no types)
        self.counted: Counter[Kind] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = function(*args, **(kwargs or {}))
        name = function._schema.name.rpartition("::")[2]
        tensors = sum(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves((args, kwargs)))
        first = next((leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)), None)
        result = () if first is None else (tuple(first.shape), first.dtype)
        self.counted[_name(name), tensors, result] += 1
        return outputs


def beyond_eager(graph: Graph, eager: EagerOperators) -> list[str]:
    """Return, as text, the operators that the schedule's forward runs more often than `eager` counted, in order."""
    return [_described(ops, counted) for ops, counted in _beyond(graph, eager)]


def draws_beyond_eager(graph: Graph, eager: EagerOperators) -> bool:
    """Return whether one of `beyond_eager` draws random numbers: another kernel draws others from the same state."""
    return any(op.random for ops, _ in _beyond(graph, eager) for op in ops)


def _beyond(graph: Graph, eager: EagerOperators) -> list[tuple[list[Op], int]]:
    operators: dict[Kind, list[Op]] = {}
    for op in graph.operations[: graph.backward_start]:
        kind = _kind(graph, op)
        if kind is not None:
            operators.setdefault(kind, []).append(op)
    return [(ops, eager.counted[kind]) for kind, ops in operators.items() if len(ops) > eager.counted[kind]]


def beyond_schedule(graph: Graph, eager: EagerOperators) -> list[str]:
    """Return, as text, the operators that `eager` counted and of which the schedule's forward runs none of the type."""
    kinds = {_kind(graph, op) for op in graph.operations[: graph.backward_start]}
    return [
        f"{name} {times} times, with a result {_text(result)}"
        if times > 1
        else f"{name}, with a result {_text(result)}"
        for (name, tensors, result), times in eager.counted.items()
        if result and name not in _NOT_COMPARED and (name, tensors, result) not in kinds
    ]


def _text(result: tuple[Any, ...]) -> str:
    shape, dtype = result
    return f"{SHORT_DTYPES.get(dtype, str(dtype))}[{','.join(map(str, shape))}]"


def _described(ops: list[Op], counted: int) -> str:
    place = f" ({ops[0].source})" if ops[0].source else ""
    if not counted:
        return f"{ops[0].op}, as in {ops[0].id!r}{place}"
    return f"{ops[0].op} {len(ops)} times but {counted}, as in {ops[0].id!r}{place}"


def _kind(graph: Graph, op: Op) -> Kind | None:

    space, _, rest = op.op.partition(".")
    name = _name(rest.partition(".")[0])
    if op.view or (space == "aten" and name in _NOT_COMPARED):
        return None
    written = next((value for value in op.writes if value is not None), None)
    if written is None:
        return None
    kind = graph.values[written].type
    return (
        name,
        sum(1 for _ in values_in((op.args, tuple(op.kwargs.values())))),
        (tuple(kind.shape), TORCH_DTYPES[kind.dtype]),
    )


def _name(name: str) -> str:
    """Return one name for an operator, its in-place form, and the batch normalization kernels of all devices."""
    plain = name.rstrip("_") if not name.endswith("__") else name
    norms = ("batch_norm", "batch_norm_legit_functional", "batch_norm_with_update_functional")
    return "batch_norm" if plain.endswith(norms) else plain
