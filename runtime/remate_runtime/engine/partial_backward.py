"""Backward passes that request some of a step's gradients and keep the graph for the others.

`torch.autograd.grad(loss, some, retain_graph=True)` and zero-bubble pipelines, which request the gradients of a stage's
inputs before those of its parameters, go through the same forward several times. Eager computes in each pass what is
requested. A step runs backward once: it keeps the gradients that a pass does not request, and returns them to a later
pass with the same gradients of the outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..errors import ExecutionError
from ..torch_private.execution import keeps_graph, will_run

_GIVEN = (
    "a gradient was requested a second time through the same forward; it has been given, and its values are gone"
    "\n  run forward again, or ask for all gradients in one call of torch.autograd.grad or backward"
)


class Undelivered:
    """Gradients that no pass has requested yet.

    Args:
        tangents: The gradients of the outputs that they were computed with.
    """

    __slots__ = ("_gradients", "_tangents")

    def __init__(self, tangents: Sequence[torch.Tensor | None]) -> None:
        self._tangents = [(tangent, -1 if tangent is None else tangent._version) for tangent in tangents]
        self._gradients: dict[tuple[int, int], torch.Tensor] = {}

    def belongs_to(self, tangents: Sequence[torch.Tensor | None]) -> bool:
        """Return whether a pass with these gradients of the outputs computes the same gradients."""
        return all(
            _equal(tangent, known, version) for tangent, (known, version) in zip(tangents, self._tangents, strict=True)
        )

    def keep(
        self, segment: int, gradients: Sequence[torch.Tensor | None], requested: Sequence[bool]
    ) -> list[torch.Tensor | None]:
        """Return the requested gradients of a segment, and keep the others."""
        for at, (gradient, wanted) in enumerate(zip(gradients, requested, strict=True)):
            if gradient is not None and not wanted:
                self._gradients[segment, at] = gradient
        return [gradient if wanted else None for gradient, wanted in zip(gradients, requested, strict=True)]

    def take(self, segment: int, requested: Sequence[bool], exists: Sequence[bool]) -> list[torch.Tensor | None]:
        """Return requested gradients of a segment that has run before.

        Args:
            segment: The segment.
            requested: Which gradients to return.
            exists: Which gradients the segment has computed.

        Raises:
            ExecutionError: A gradient was returned before.
        """
        taken: list[torch.Tensor | None] = []
        for at, (wanted, computed) in enumerate(zip(requested, exists, strict=True)):
            gradient = self._gradients.pop((segment, at), None) if wanted else None
            if wanted and computed and gradient is None:
                raise ExecutionError(_GIVEN)
            taken.append(gradient)
        return taken


def leaves_gradients(node: object, segments: int) -> bool:
    """Return whether the running backward pass keeps the graph and does not request all gradients of a step.

    Args:
        node: The first of the step's autograd nodes.
        segments: Their number.
    """
    if not keeps_graph():
        return False
    return not all(_runs(target) for target in _targets(node, segments))


def requested_for(node: Any, count: int) -> list[bool]:
    """Return which gradients of a segment the running backward pass requests. count: their number."""
    edges = node.next_functions
    return [target is not None and _runs(target) for target, _ in edges[len(edges) - count :]]


def _targets(node: Any, segments: int) -> Iterator[Any]:
    """Yield the nodes that receive the gradients of the chain of segments."""
    for left in range(segments - 1, -1, -1):
        edges = [target for target, _ in node.next_functions]
        following = edges.pop(0) if left else None
        yield from (target for target in edges if target is not None)
        if following is None:
            return
        node = following


def _runs(node: object) -> bool:
    try:
        return will_run(node)
    except RuntimeError:  # a leaf that `torch.autograd.grad` requests
        return True


def _equal(tangent: torch.Tensor | None, known: torch.Tensor | None, version: int) -> bool:
    if tangent is None or known is None:
        return tangent is known
    if known._version != version:
        return False
    return tangent is known or (tangent.dtype is known.dtype and torch.equal(tangent, known))
