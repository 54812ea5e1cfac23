"""From a step and its reruns to events, lives of storages, peak and time. Needs no torch."""

from __future__ import annotations

from .linker import Allocation, Linked, link
from .simulator import Timeline, simulate, steps_with_turn

__all__ = ["Allocation", "Linked", "Timeline", "link", "simulate", "steps_with_turn"]
