"""From a step and its reruns to events, lives of storages, peak and time, and to what the step promises. Needs no torch."""

from __future__ import annotations

from .contract import StepContract, step_contract
from .deliveries import copied, gathered, last_touches, let_go
from .events import Allocation, Computation, Deliver, Event, Execution, Free, Linked, Rerun, Run, Turn, Update, View
from .fitting import Fitted, fitted, without_reruns
from .frozen import without_gradients
from .inference import forward_alone
from .linker import link
from .simulator import Account, Held, Timeline, held_by_call, memory_of_workspace, peak_together, simulate
from .storages import generator_state

__all__ = [
    "Account",
    "Allocation",
    "Computation",
    "Deliver",
    "Event",
    "Execution",
    "Fitted",
    "Free",
    "Held",
    "Linked",
    "Rerun",
    "Run",
    "StepContract",
    "Timeline",
    "Turn",
    "Update",
    "View",
    "copied",
    "fitted",
    "forward_alone",
    "gathered",
    "generator_state",
    "held_by_call",
    "last_touches",
    "let_go",
    "link",
    "memory_of_workspace",
    "peak_together",
    "simulate",
    "step_contract",
    "without_gradients",
    "without_reruns",
]
