"""Checks which tensors of a call are identical, because forward may test identity (`query is key`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ..bind.inputs import Inputs
from ..errors import BindError
from ..format.signature import input_leaves
from ..staleness.same_forward import ignores_identity

_PATTERNS = 64  # most patterns to remember


class Identity:
    """The identities of a recorded call, compared with those of live calls of all sizes.

    Forward runs without data to see whether it tests identity: once for each pattern, and again for sizes that are
    smaller or larger than all so far, because it might test identity from some size on.
    """

    def __init__(self, tree: Mapping[str, object], model: nn.Module) -> None:
        """Read the identities of a recorded call.

        Args:
            tree: The recorded inputs.
            model: The live model.
        """
        self._model = model
        self._inputs = Inputs(tree, model.forward, ordered=False, sized=True)
        names = self._inputs.names
        same = {leaf.name: leaf.same for leaf in input_leaves(dict(tree)) if leaf.same}
        self._same = [(names.index(name), names.index(other)) for name, other in same.items()]
        # By pattern the least and the largest length of every axis at which forward did not test identity.
        self._taken: dict[tuple[int, ...], list[tuple[int, int]]] = {}

    def check(self, args: tuple[object, ...], kwargs: dict[str, Any], device: torch.device) -> None:
        """Raise BindError if a test `x is y` in forward might have another result than when planning."""
        given = self._inputs.flatten(args, kwargs, device)
        for at, other in self._same:
            if given[at] is not given[other]:
                raise BindError(self._refusal(at, other, "two tensors"))
        if len({id(tensor) for tensor in given}) == len(given) - len(self._same):
            return
        first: dict[int, int] = {}
        pattern = tuple(first.setdefault(id(tensor), at) for at, tensor in enumerate(given))
        lengths = [length for tensor in given for length in tensor.shape]
        taken = self._taken.get(pattern) or [(length, length) for length in lengths]
        if pattern in self._taken and all(low <= n <= high for n, (low, high) in zip(lengths, taken, strict=True)):
            return
        if self._same or not ignores_identity(self._model, args, kwargs):
            recorded = dict(self._same)
            at = next(at for at, other in enumerate(pattern) if other != at and at not in recorded)
            raise BindError(self._refusal(at, pattern[at], "one tensor"))
        if pattern in self._taken or len(self._taken) < _PATTERNS:
            wider = [(min(n, low), max(n, high)) for n, (low, high) in zip(lengths, taken, strict=True)]
            self._taken[pattern] = wider

    def _refusal(self, at: int, other: int, now: str) -> str:
        was = "one tensor" if now == "two tensors" else "two tensors"
        names = f"{self._inputs.names[other]!r} and {self._inputs.names[at]!r}"
        remedy = "pass a copy for one of them (x.clone())" if now == "one tensor" else "pass one tensor for both"
        return (
            f"the inputs {names} are {now}, and were {was} when planning; forward computes something else "
            "with that, or its control flow depends on values, so this cannot be checked"
            f"\n  {remedy}, or plan again with a call like this one"
        )
