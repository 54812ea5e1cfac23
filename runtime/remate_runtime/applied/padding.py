"""A call that is smaller than what a schedule is for, padded up to it; and outputs cut back to what the model
returns."""

from __future__ import annotations

from operator import sub
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..bind.containers import children, mapped, rebuild
from ..bind.sizes import CallSizes
from ..errors import BindError
from ..format.schedule import Schedule
from ..staleness.shapes import returned

_KEPT = 64  # sizes of calls whose outputs are known


class PaddedCall(NamedTuple):
    """size: elements of its tensors. added: by how much their axes grew."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    size: int
    added: frozenset[int]


class Padding:
    """What a file declares for it (`model.fill`). Raises BindError where padding would be wrong whatever it
    declares."""

    def __init__(self, model: nn.Module, schedule: Schedule) -> None:
        self._model, self._fill = model, schedule.model.fill
        self._sizes = CallSizes(schedule.model, model.forward)
        self._known: dict[Any, Any] = {}
        self._refused = ""
        if not self._fill:
            self._refused = (
                "the file declares no values to pad with\n  remate.plan(..., fill={'input_ids': 0, "
                "'attention_mask': 0, "
                "'labels': -100}), or write them into the file as model.fill"
            )
        elif isinstance(schedule.model.outputs, dict) and "returns" in schedule.model.outputs:
            self._refused = (
                "forward sets attributes of its modules, which would have the padded shapes\n  plan for a range of "
                "sizes "
                "(dims=), or for this size, too"
            )
        elif any(block.updates for block in schedule.blocks.values()):
            self._refused = (
                "forward writes into buffers (running statistics of batch norm, for one), and padding would go "
                "into them"
                "\n  plan for a range of sizes (dims=), or for this size, too"
            )

    def padded(self, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device) -> PaddedCall:
        """The call, padded at the end of each axis. Raises BindError for one that is larger, or that has other
        tensors."""
        if self._refused:
            raise BindError(self._refused)
        originals: dict[int, torch.Tensor] = {}
        held: list[torch.Tensor] = []  # an alias of each tensor for each place where it is given

        def alias(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            held.append(leaf.view_as(leaf))
            originals[id(held[-1])] = leaf
            return held[-1]

        aliased = mapped(args, alias), mapped(kwargs, alias)
        tensors, shapes = self._sizes.above(*aliased, device)
        padded = {
            id(tensor): self._pad(name, originals[id(tensor)], shape)
            for name, tensor, shape in zip(self._sizes.names, tensors, shapes, strict=True)
        }

        def larger(leaf: Any) -> Any:
            return padded.get(id(leaf), originals[id(leaf)]) if isinstance(leaf, torch.Tensor) else leaf

        grown = frozenset(
            wanted - given
            for tensor, shape in zip(tensors, shapes, strict=True)
            for given, wanted in zip(tensor.shape, shape, strict=True)
        )
        total = sum(tensor.numel() for tensor in padded.values())
        return PaddedCall(mapped(aliased[0], larger), mapped(aliased[1], larger), total, grown)

    def _pad(self, name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        if tuple(tensor.shape) == shape:
            return tensor
        if name not in self._fill:
            raise BindError(
                f"the input {name!r} would be padded from {list(tensor.shape)} to {list(shape)}, and the file "
                "declares no "
                f"value for it\n  add it to model.fill of the file, or plan with fill={{{name!r}: …}}"
            )
        ends = [end for axis in reversed(range(len(shape))) for end in (0, shape[axis] - tensor.shape[axis])]
        return torch.nn.functional.pad(tensor, ends, value=self._fill[name])

    def cut(self, made: Any, padded: PaddedCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a step of a padded call returned, in the shapes that the model returns for the call itself. Raises
        BindError, also for an axis that grew otherwise than those of the inputs: where several are one (`flatten`),
        padding is not at its end."""
        key = tuple(tuple(t.shape) for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor))
        if key not in self._known:
            while len(self._known) >= _KEPT:
                del self._known[next(iter(self._known))]
            self._known[key] = returned(self._model, args, kwargs)
        return _cut(made, self._known[key], padded.added | {0})


def _cut(made: Any, like: Any, added: frozenset[int]) -> Any:
    tensors = isinstance(made, torch.Tensor) and isinstance(like, torch.Tensor)
    if tensors and made.dim() == like.dim() and added.issuperset(map(sub, made.shape, like.shape)):
        return made if made.shape == like.shape else made[tuple(slice(size) for size in like.shape)]
    inner, other = children(made), children(like)
    if inner is not None and other is not None and inner[1].keys() == other[1].keys():
        return rebuild(made, {key: _cut(part, other[1][key], added) for key, part in inner[1].items()})
    if inner is None and not isinstance(made, torch.Tensor) and type(made) is type(like) and made == like:
        return made
    raise BindError(
        "an output of the padded call cannot be cut to what the model returns for the call itself\n  plan for a "
        "range of "
        "sizes (dims=), or for this size, too"
    )
