"""Python's bindings call the operators that they stand for, with the same arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from remate_runtime.flat_step.graph import Ref
from remate_runtime.operator_calls.bindings import FUNCTIONS, binding

SQUARE = torch.rand(3, 3)
ANY: dict[str, Any] = {"t": SQUARE, "T": [SQUARE, SQUARE], "i": 1, "I": [1], "f": 0.5, "b": True}
OF: dict[str, tuple[Any, ...]] = {
    "_log_softmax": (SQUARE, 1, False),
    "_softmax": (SQUARE, 1, False),
    "addmm": (torch.rand(5), torch.rand(3, 4), torch.rand(4, 5)),
    "baddbmm": (torch.rand(2, 3, 5), torch.rand(2, 3, 4), torch.rand(2, 4, 5)),
    "bmm": (torch.rand(2, 3, 4), torch.rand(2, 4, 5)),
    "convolution": (torch.rand(1, 2, 5, 5), torch.rand(3, 2, 3, 3), torch.rand(3), [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    "embedding": (SQUARE, torch.tensor([1]), 2),
    "expand": (torch.rand(1, 4), [3, 4]),
    "index_select": (SQUARE, 0, torch.tensor([1])),
    "native_layer_norm": (SQUARE, [3], torch.rand(3), torch.rand(3), 1e-5),
    "permute": (SQUARE, [1, 0]),
    "split_with_sizes": (SQUARE, [1, 2], 0),
    "view": (SQUARE, [9]),
    "where.self": (SQUARE > 0.5, SQUARE, SQUARE),
}  # fmt: skip


class Called(TorchDispatchMode):
    """The operator that runs first, and its arguments: tensors by identity."""

    first: Any = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = _pytree.tree_leaves((args, kwargs))
        self.first = self.first or (func, [id(x) if isinstance(x, torch.Tensor) else (type(x), x) for x in leaves])
        return func(*args, **(kwargs or {}))


def as_planned(argument: Any) -> Any:
    """An argument as in an operation of a step."""
    if isinstance(argument, torch.Tensor):
        return Ref(0)
    return tuple(map(as_planned, argument)) if isinstance(argument, list) else argument


@pytest.mark.parametrize(
    ("name", "kinds"), [(name, kinds) for name, each in FUNCTIONS.items() for kinds in each.split()]
)
def test_a_binding_calls_the_operator(name: str, kinds: str) -> None:
    args = OF[name][: len(kinds)] if name in OF else tuple(ANY[kind] for kind in kinds)
    function = binding(f"aten.{name}", [as_planned(each) for each in args], {})
    assert function is not None
    packet, _, overload = name.partition(".")
    operator: Any = getattr(getattr(torch.ops.aten, packet), overload or "default")
    with torch.no_grad(), Called() as wanted:
        operator._op(*args)
    with torch.no_grad(), Called() as result:
        function(*args)
    assert result.first == wanted.first
    assert result.first[0] is operator


@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("aten.add.Tensor", (Ref(0), 2.0), {}),
        ("aten.add.Tensor", (Ref(0), Ref(1)), {"alpha": 2}),
        ("aten.view", (Ref(0), {"dtype": "f32"}), {}),
        ("aten.sum", (Ref(0), (0,)), {}),
        ("mine.add.Tensor", (Ref(0), Ref(1)), {}),
    ],
)
def test_other_calls_are_by_schema(name: str, args: Any, kwargs: Any) -> None:
    assert binding(name, args, kwargs) is None
