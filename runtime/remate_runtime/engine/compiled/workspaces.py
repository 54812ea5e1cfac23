"""What an operator takes while it runs, in the layouts that Inductor chose: each signature runs once, on made-up data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from ...cpu_memory import peak_on_cpu
from .inductor import Ran


class Workspaces:
    """What operators have done; workspace: bytes beyond their arguments and results."""

    def __init__(self) -> None:
        self._known: dict[str, Ran] = {}

    def of(self, operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Ran:
        """args, kwargs: tensors without data among them. Raises whatever the operator does. Not for use inside a profiler."""
        key = repr((str(operator), pytree.tree_map_only(torch.Tensor, _signature, (args, kwargs))))
        if key not in self._known:
            self._known[key] = _measured(operator, args, kwargs)
        return self._known[key]


def _signature(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype


def _measured(operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Ran:
    given, named = pytree.tree_map_only(torch.Tensor, made_up, (tuple(args), dict(kwargs)))
    made: list[Any] = [operator(*given, **named)]  # the first run warms up what libraries keep
    made.clear()
    peak = peak_on_cpu(lambda: made.append(operator(*given, **named)))
    taken = {tensor.untyped_storage()._cdata for tensor in pytree.tree_leaves((given, named)) if _is(tensor)}
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in pytree.tree_leaves(made) if _is(t)}
    strides = tuple(tuple(leaf.stride()) for leaf in pytree.tree_leaves(made) if _is(leaf))
    return Ran(max(0, peak - sum(nbytes for key, nbytes in storages.items() if key not in taken)), strides)


def _is(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)


def made_up(tensor: torch.Tensor) -> torch.Tensor:
    """Indices are 0, which is in range; other numbers 1."""
    storage = tensor.untyped_storage().nbytes() // max(1, tensor.element_size())
    whole = torch.full((storage,), 1 if tensor.is_floating_point() else 0, dtype=tensor.dtype)
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
