"""Comparison of two calls of a forward, operation by operation, without computing anything."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..bind.containers import mapped
from ..bind.order import order_of
from ..torch_private import pytree
from ..torch_private.execution import TorchDispatchMode
from ..torch_private.fake_tensors import FakeCopyMode, FakeTensor, FakeTensorMode, quiet_meta_failures
from .compare import tensors_of

Call = tuple[Sequence[Any], Mapping[str, Any]]
Equal = Sequence[tuple[torch.Tensor, torch.Tensor]]
_SMALL = 4096  # limit of elements of tensors from Python numbers whose values are compared


def same_forward(model: nn.Module, first_call: Call, second_call: Call, equal: Equal = ()) -> bool:
    """Return whether forward runs the same operators on the same tensors and numbers in both calls, and returns the
    same.

    Both calls must contain the same tensors. Forward runs on copies of the model without data, so that nothing is
    computed, drawn or changed. The result is False if forward reads the values of tensors.

    Args:
        model: The live model.
        first_call: Arguments of a call, positional and by name.
        second_call: Arguments of the other call.
        equal: Pairs of tensors of the calls that count as the same tensor.
    """
    tensors = list({id(t): t for t in (*tensors_of(first_call), *tensors_of(second_call))}.values())
    try:
        first, second = (_Log(model, tensors, equal).of(call) for call in (first_call, second_call))
    except Exception:
        return False
    return first == second


def ignores_identity(model: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Return whether forward treats one tensor in several arguments as it treats separate tensors.

    It does unless the code tests `x is y`.
    """
    equal: list[tuple[torch.Tensor, torch.Tensor]] = []

    def of_its_own(leaf: object) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        distinct_tensor = torch.empty_like(leaf, requires_grad=False).requires_grad_(leaf.requires_grad)
        equal.append((leaf, distinct_tensor))
        return distinct_tensor

    distinct = mapped(tuple(args), of_its_own), mapped(dict(kwargs), of_its_own)
    return same_forward(model, (args, kwargs), distinct, equal)


class _Log(TorchDispatchMode):
    """Records a call: each operator, its arguments and its results, with tensors as numbers."""

    def __init__(self, model: nn.Module, tensors: Sequence[torch.Tensor], equal: Equal) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] (torch declares no types)
        self._fake = FakeTensorMode()
        with FakeCopyMode(self._fake):
            self._model = copy.deepcopy(model)
        self._inputs = {id(t): self._fake.from_tensor(t, static_shapes=True) for t in tensors}
        self._numbers: dict[int, int] = {}
        self._alive: list[torch.Tensor] = []
        self._entries: list[Any] = []
        for tensor in (*_held(self._model), *self._inputs.values()):
            self._number(tensor)
        for first, second in equal:
            self._numbers[id(self._inputs[id(second)])] = self._numbers[id(self._inputs[id(first)])]

    def of(self, call: Call) -> list[Any]:
        def fake(leaf: object) -> Any:
            return self._inputs[id(leaf)] if isinstance(leaf, torch.Tensor) else leaf

        args, kwargs = (mapped(part, fake) for part in call)
        with self._fake, self, quiet_meta_failures():
            outputs = self._model.forward(*args, **kwargs)
        return [*self._entries, type(outputs), order_of(outputs), [self._named(t) for t in tensors_of(outputs)]]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        arguments = pytree.tree_map_only(torch.Tensor, self._named, (args, kwargs or {}))
        outputs = func(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(outputs):
            if isinstance(tensor, torch.Tensor):
                self._number(tensor)
        if func.namespace != "prim":  # a tensor's device, which autograd asks for once for each
            self._entries.append((str(func), repr(arguments)))
        return outputs

    def _number(self, tensor: torch.Tensor) -> None:
        self._alive.append(tensor)
        self._numbers.setdefault(id(tensor), len(self._numbers))

    def _named(self, tensor: torch.Tensor) -> Any:
        if id(tensor) in self._numbers:
            return self._numbers[id(tensor)], tensor.requires_grad
        if isinstance(tensor, FakeTensor) or tensor.numel() > _SMALL:
            raise ValueError("a tensor from nowhere")
        numbers: Any = tensor  # torch declares `tolist` without types
        return (str(tensor.dtype), numbers.tolist())


def _held(model: nn.Module) -> list[torch.Tensor]:
    """Return parameters, buffers and tensor attributes in an order that copies share."""
    registered = [*model.parameters(), *model.buffers()]
    return registered + [t for module in model.modules() for t in vars(module).values() if isinstance(t, torch.Tensor)]
