"""From a step and its reruns to events, lives of storages, peak and time. Needs no torch."""

from __future__ import annotations

from .events import Allocation, Computation, Event, Execution, Free, Linked, Rerun, Run, Turn, Update, View
from .linker import link
from .simulator import Account, Timeline, simulate
from .storages import GENERATOR_BYTES

__all__ = [
    "GENERATOR_BYTES",
    "Account",
    "Allocation",
    "Computation",
    "Event",
    "Execution",
    "Free",
    "Linked",
    "Rerun",
    "Run",
    "Timeline",
    "Turn",
    "Update",
    "View",
    "link",
    "simulate",
]
