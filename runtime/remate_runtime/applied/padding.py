"""Pads a call to a size of a schedule, and cuts the outputs back to the shapes that the model returns."""

from __future__ import annotations

from operator import sub
from typing import Any, NamedTuple

import torch
from torch import nn

from ..bind.containers import children, mapped, rebuild
from ..bind.sizes import CallSizes
from ..errors import BindError
from ..format.json_values import is_object
from ..format.schedule import Schedule
from ..format.signature import plain_attributes
from ..format.trees import attributes_of, literals_in
from ..staleness.shapes import returned
from ..torch_private import pytree

_KEPT = 64  # most call sizes whose output shapes are remembered


class PaddedCall(NamedTuple):
    """A padded call.

    Attributes:
        args: Positional arguments.
        kwargs: Keyword arguments.
        size: Number of elements of all tensors.
        added: Numbers of elements by which axes grew.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    size: int
    added: frozenset[int]


class Padding:
    """Pads calls with the values that a file declares (`model.fill`).

    Padding is refused if it would always be wrong: for outputs in attributes, and for updated buffers.
    """

    def __init__(self, model: nn.Module, schedule: Schedule) -> None:
        self._model, self._fill = model, schedule.model.fill
        self._sizes = CallSizes(schedule.model, model.forward)
        self._known: dict[Any, Any] = {}
        self._refused = ""
        if not self._fill:
            self._refused = (
                "the file declares no values to pad with\n  remate.plan(..., fill={'input_ids': 0, 'attention_mask': "
                "0, 'labels': -100}), or write them into the file as model.fill"
            )
        elif _follow_sizes(schedule.model.outputs):
            self._refused = (
                "forward sets attributes of its modules, which would have the padded shapes\n  plan for a range of "
                "sizes (dims=), or for this size, too"
            )
        elif any(block.updates for block in schedule.blocks.values()):
            self._refused = (
                "forward updates buffers (such as running statistics of batch norm), and padding would affect "
                "them\n  plan for a range of sizes (dims=), or for this size, too"
            )

    def padded(self, args: tuple[object, ...], kwargs: dict[str, Any], device: torch.device) -> PaddedCall:
        """Return the call, padded at the end of each axis.

        Raises:
            BindError: Padding is refused, the call is too large, or its tensors differ in other ways.
        """
        if self._refused:
            raise BindError(self._refused)
        originals: dict[int, torch.Tensor] = {}
        aliases: list[torch.Tensor] = []  # an alias of each tensor for each argument

        def alias(leaf: object) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            aliases.append(leaf.view_as(leaf))
            originals[id(aliases[-1])] = leaf
            return aliases[-1]

        aliased = mapped(args, alias), mapped(kwargs, alias)
        tensors, shapes = self._sizes.above(*aliased, device)
        padded = {
            id(tensor): self._pad(name, originals[id(tensor)], shape)
            for name, tensor, shape in zip(self._sizes.names, tensors, shapes, strict=True)
        }

        def larger(leaf: object) -> Any:
            return padded.get(id(leaf), originals[id(leaf)]) if isinstance(leaf, torch.Tensor) else leaf

        grown = frozenset(
            padded_length - length
            for tensor, shape in zip(tensors, shapes, strict=True)
            for length, padded_length in zip(tensor.shape, shape, strict=True)
        )
        total = sum(tensor.numel() for tensor in padded.values())
        return PaddedCall(mapped(aliased[0], larger), mapped(aliased[1], larger), total, grown)

    def _pad(self, name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        if tuple(tensor.shape) == shape:
            return tensor
        if name not in self._fill:
            raise BindError(
                f"the input {name!r} would be padded from {list(tensor.shape)} to {list(shape)}, and the file declares "
                f"no value for it\n  add it to model.fill of the file, or plan with fill={{{name!r}: …}}"
            )
        ends = [end for axis in reversed(range(len(shape))) for end in (0, shape[axis] - tensor.shape[axis])]
        return torch.nn.functional.pad(tensor, ends, value=self._fill[name])

    def cut(self, outputs: object, padded: PaddedCall, args: tuple[object, ...], kwargs: dict[str, Any]) -> Any:
        """Cut the outputs of a padded call to the shapes that the model returns for the call itself.

        Raises:
            BindError: Cutting is not possible, for example because an axis merges several axes (`flatten`), so that
                padding is not at its end.
        """
        key = tuple(tuple(t.shape) for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor))
        if key not in self._known:
            while len(self._known) >= _KEPT:
                del self._known[next(iter(self._known))]
            self._known[key] = returned(self._model, args, kwargs)
        return _cut(outputs, self._known[key], padded.added | {0})


def _follow_sizes(outputs: Any) -> bool:
    """Return whether forward sets attributes to tensors or numbers, which are those of the padded call."""
    plain, attributes = plain_attributes(outputs), attributes_of(outputs)
    return any(path not in plain or any(map(_is_number, literals_in(tree))) for path, tree in attributes.items())


def _is_number(literal: object) -> bool:
    return is_object(literal) or type(literal) in (int, float)


def _cut(output: Any, like: Any, added: frozenset[int]) -> Any:
    tensors = isinstance(output, torch.Tensor) and isinstance(like, torch.Tensor)
    if tensors and output.dim() == like.dim() and added.issuperset(map(sub, output.shape, like.shape)):
        return output if output.shape == like.shape else output[tuple(slice(size) for size in like.shape)]
    parts, wanted = children(output), children(like)
    if parts is not None and wanted is not None and parts[1].keys() == wanted[1].keys():
        return rebuild(output, {key: _cut(part, wanted[1][key], added) for key, part in parts[1].items()})
    if parts is None and not isinstance(output, torch.Tensor) and type(output) is type(like) and output == like:
        return output
    raise BindError(
        "an output of the padded call cannot be cut to what the model returns for the call itself\n  plan for a range "
        "of sizes (dims=), or for this size, too"
    )
