"""Reads the named sizes of a call from its tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from ..errors import BindError
from ..format.expressions import spelled
from ..format.schedule import Model
from ..format.signature import input_leaves
from ..format.size_limits import over_limit
from ..format.sized_type import SizedType, parse_sized
from ..format.substitution import out_of_range, ranged
from ..operator_calls.overloads import described
from .inputs import Inputs

_OTHER = (
    "apply(..., otherwise='original') runs the model's own forward at other sizes; or plan a range that contains it, "
    "or pad or cut it"
)


class _SizeRead(NamedTuple):
    """An input axis that gives the value of a named size.

    Attributes:
        dim: Name of the size.
        at: Index of the tensor.
        axis: Axis of the tensor.
        name: Name of the input.
    """

    dim: str
    at: int
    axis: int
    name: str


class CallSizes:
    """Reads the named sizes of a schedule from shapes. `Inputs` at that size then checks the call."""

    def __init__(self, model: Model, forward: Callable[..., object]) -> None:
        self._dims, self._limits = model.dims, model.limits
        self._inputs = Inputs(model.inputs, forward, ordered=False, sized=True)
        types = {leaf.name: parse_sized(leaf.text) for leaf in input_leaves(model.inputs)}
        self.names = self._inputs.names
        self._types = [types[name] for name in self.names]
        self._reads = [self._first(dim) for dim in self._dims]

    def of(self, args: tuple[object, ...], kwargs: dict[str, Any], device: torch.device) -> dict[str, int]:
        """Return the value of every named size.

        Raises:
            BindError: The arguments differ, a size is out of range, or tensors contradict each other. The text names
                the input.
        """
        tensors = self._inputs.flatten(args, kwargs, device)
        size: dict[str, int] = {}
        for dim, at, axis, name in self._reads:
            self._check_rank(at, tensors[at])
            size[dim] = tensors[at].shape[axis]
            fault = out_of_range(dim, self._dims[dim], size[dim])
            if fault:
                raise BindError(
                    f"the input {name!r} is {described(tensors[at])}: {fault} (dimension {axis})\n  {_OTHER}"
                )
        if self._limits and (fault := over_limit(self._limits, size)):
            raise BindError(f"the inputs have {spelled(size)}: {fault}\n  {_OTHER}")
        for at, tensor in enumerate(tensors):
            self._check(at, tensor, size)
        return size

    def above(
        self, args: tuple[object, ...], kwargs: dict[str, Any], device: torch.device
    ) -> tuple[list[torch.Tensor], list[tuple[int, ...]]]:
        """Return the tensors of a call in the order of `names`, and for each the smallest sufficient planned shape.

        Raises:
            BindError: No planned shape is large enough.
        """
        tensors = self._inputs.flatten(args, kwargs, device)
        size: dict[str, int] = {}
        for dim, at, axis, name in self._reads:
            self._check_rank(at, tensors[at])
            given, declared = tensors[at].shape[axis], self._dims[dim]
            size[dim] = max(-(-given // declared.multiple) * declared.multiple, declared.min)
            if size[dim] > declared.max:
                raise BindError(
                    f"the input {name!r} is {described(tensors[at])}, the schedule is for {ranged(declared)}"
                )
        if self._limits and (fault := over_limit(self._limits, size)):
            raise BindError(f"padded, the inputs have {spelled(size)}: {fault}")
        shapes = [tuple(number.at(size) for number in type_.shape) for type_ in self._types]
        for at, (tensor, shape) in enumerate(zip(tensors, shapes, strict=True)):
            self._check_rank(at, tensor)
            if any(have > most for have, most in zip(tensor.shape, shape, strict=True)):
                raise self._other(at, tensor, " at most")
        return tensors, shapes

    def _check_rank(self, at: int, tensor: torch.Tensor) -> None:
        if tensor.dim() != len(self._types[at].shape):
            raise self._other(at, tensor, "")

    def _check(self, at: int, tensor: torch.Tensor, size: Mapping[str, int]) -> None:
        """Raise BindError for a shape that does not follow from the other inputs."""
        self._check_rank(at, tensor)
        wanted = [number.at(size) for number in self._types[at].shape]
        if list(tensor.shape) != wanted:
            given = ", ".join(f"{read.dim}={size[read.dim]} by {read.name!r}" for read in self._reads)
            raise self._other(at, tensor, f" with {given}")

    def _other(self, at: int, tensor: torch.Tensor, given: str) -> BindError:
        name, wanted = self._inputs.names[at], self._types[at]
        return BindError(
            f"the input {name!r} must be {wanted}{given}, got {described(tensor)}\n  pass inputs of one size, or "
            "plan again"
        )

    def _first(self, dim: str) -> _SizeRead:
        """Return the first input axis whose length is exactly this size."""
        return next(
            _SizeRead(dim, at, axis, self._inputs.names[at])
            for at, type_ in enumerate(self._types)
            for axis in _axes(type_, dim)
        )


def _axes(type_: SizedType, dim: str) -> list[int]:
    return [axis for axis, size in enumerate(type_.shape) if str(size) == dim]
