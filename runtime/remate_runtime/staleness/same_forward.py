"""Two calls of one forward, compared operation by operation without computing anything: do they do the same?"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..bind.containers import mapped
from ..bind.order import order_of
from .compare import tensors_of

Call = tuple[Sequence[Any], Mapping[str, Any]]
Equal = Sequence[tuple[torch.Tensor, torch.Tensor]]
_SMALL = 4096  # elements of a tensor that forward makes of Python numbers; their values are compared


def same_forward(model: nn.Module, one: Call, other: Call, equal: Equal = ()) -> bool:
    """Whether forward runs the same operators, on the same tensors and numbers, in both calls, and returns the same.
    Both must hold the same tensors. False, too, where that cannot be reported: where forward looks at values of
    tensors.

    Runs on copies of the model without data, so that nothing is computed, drawn or changed.

    Args:
        model: The live model.
        one: Arguments of a call, positional and by name.
        other: Arguments of another call.
        equal: Pairs of tensors of the calls that count as one.
    """
    tensors = list({id(t): t for t in (*tensors_of(one), *tensors_of(other))}.values())
    try:
        first, second = (_Log(model, tensors, equal).of(call) for call in (one, other))
    except Exception:
        return False
    return first == second


def ignores_identity(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether forward does the same in a call that gives it one tensor several times as with a tensor of its own in
    each place: whether it never asks `x is y`."""
    equal: list[tuple[torch.Tensor, torch.Tensor]] = []

    def of_its_own(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        made = torch.empty_like(leaf, requires_grad=False).requires_grad_(leaf.requires_grad)
        equal.append((leaf, made))
        return made

    distinct = mapped(tuple(args), of_its_own), mapped(dict(kwargs), of_its_own)
    return same_forward(model, (args, kwargs), distinct, equal)


class _Log(TorchDispatchMode):
    """What one call runs: each operator, its arguments and what it makes, by numbers."""

    def __init__(self, model: nn.Module, tensors: Sequence[torch.Tensor], equal: Equal) -> None:
        super().__init__()
        self._fake = FakeTensorMode()
        with FakeCopyMode(self._fake):
            self._model = copy.deepcopy(model)
        self._inputs = {id(t): self._fake.from_tensor(t, static_shapes=True) for t in tensors}
        self._numbers: dict[int, int] = {}
        self._alive: list[torch.Tensor] = []
        self._entries: list[Any] = []
        for held in (*_held(self._model), *self._inputs.values()):
            self._number(held)
        for first, second in equal:
            self._numbers[id(self._inputs[id(second)])] = self._numbers[id(self._inputs[id(first)])]

    def of(self, call: Call) -> list[Any]:
        def fake(leaf: Any) -> Any:
            return self._inputs[id(leaf)] if isinstance(leaf, torch.Tensor) else leaf

        args, kwargs = (mapped(part, fake) for part in call)
        with self._fake, self:
            made = self._model.forward(*args, **kwargs)
        return [*self._entries, type(made), order_of(made), [self._named(t) for t in tensors_of(made)]]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = pytree.tree_map_only(torch.Tensor, self._named, (args, kwargs or {}))
        made = func(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self._number(tensor)
        if func.namespace != "prim":  # a tensor's device, which autograd asks for once for each
            self._entries.append((str(func), repr(given)))
        return made

    def _number(self, tensor: torch.Tensor) -> None:
        self._alive.append(tensor)
        self._numbers.setdefault(id(tensor), len(self._numbers))

    def _named(self, tensor: torch.Tensor) -> Any:
        if id(tensor) in self._numbers:
            return self._numbers[id(tensor)], tensor.requires_grad
        if isinstance(tensor, FakeTensor) or tensor.numel() > _SMALL:
            raise ValueError("a tensor from nowhere")
        return (str(tensor.dtype), tensor.tolist())


def _held(model: nn.Module) -> list[torch.Tensor]:
    """Parameters, buffers and tensor attributes, in an order that copies share."""
    found = [*model.parameters(), *model.buffers()]
    return found + [t for module in model.modules() for t in vars(module).values() if isinstance(t, torch.Tensor)]
