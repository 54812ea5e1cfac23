"""The role of each value that is in memory."""

from __future__ import annotations

from functools import cached_property

from remate_runtime.link import Allocation, PageBack

from .analysis import Analysis

ROLES = (
    "kept",
    "recompute",
    "paged",
    "in use",
    "output",
    "gradient",
    "backward",
    "tangent",
    "generator state",
    "fsdp2",
    "buffer copy",
    "parameter",
)


class Roles:
    """Roles of the contents of storages. Look-ups are computed once, for many queries."""

    def __init__(self, opened: Analysis) -> None:
        self._back = {(at, event.value) for at, event in enumerate(opened.linked.events) if isinstance(event, PageBack)}
        self.graph, self.backward_start = opened.graph, opened.timeline.backward_start

    @cached_property
    def _outputs(self) -> set[int]:
        return {self.graph.root[value] for value in self.graph.outputs}

    @cached_property
    def _gradients(self) -> set[int]:
        return {self.graph.root[value] for _, value in self.graph.gradients}

    def role(self, allocation: Allocation, value: int | None) -> str:
        """One of ROLES. value: content of `allocation` at that moment; None for a generator's state."""
        if value is None:
            return "fsdp2" if allocation.label else "generator state"
        about = self.graph.values[value]
        if about.producer < 0:
            return about.kind if about.kind in ("tangent", "parameter") else f"{about.kind} copy"
        if value in self._outputs:
            return "output"
        if value in self._gradients:
            return "gradient"
        if about.producer >= self.graph.backward_start:
            return "backward"
        if (allocation.birth, allocation.value) in self._back:
            return "paged"
        if allocation.birth > self.backward_start:
            return "recompute"
        return "kept" if allocation.death > self.backward_start else "in use"
