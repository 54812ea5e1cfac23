"""From a step and a plan to events, live ranges, peak and time. Needs no torch."""

from __future__ import annotations

from .contract import StepContract, step_contract
from .deliveries import copied, freed_by_owner, gathered, last_touches
from .events import (
    PAGED_TO,
    Allocation,
    BackwardStart,
    Computation,
    Deliver,
    Event,
    Execution,
    Free,
    Gathers,
    Linked,
    PageBack,
    PageGone,
    PageOut,
    PageReady,
    Paging,
    RecomputeRun,
    Run,
    Update,
    View,
)
from .fitting import FittedSchedule, fitted, without_recomputes
from .frozen import without_gradients
from .inference import forward_alone
from .lanes import Clock, Copy, LaneUse
from .linker import link
from .parameters import parameter_bytes
from .sharding import LABELS, Group, Groups, groups_of
from .simulator import (
    Account,
    ResidentBytes,
    Timeline,
    account,
    memory_of_workspace,
    peak_together,
    resident_by_call,
    simulate,
)
from .sizes import SizedLinks
from .storages import generator_state

__all__ = [
    "LABELS",
    "PAGED_TO",
    "Account",
    "Allocation",
    "BackwardStart",
    "Clock",
    "Computation",
    "Copy",
    "Deliver",
    "Event",
    "Execution",
    "FittedSchedule",
    "Free",
    "Gathers",
    "Group",
    "Groups",
    "LaneUse",
    "Linked",
    "PageBack",
    "PageGone",
    "PageOut",
    "PageReady",
    "Paging",
    "RecomputeRun",
    "ResidentBytes",
    "Run",
    "SizedLinks",
    "StepContract",
    "Timeline",
    "Update",
    "View",
    "account",
    "copied",
    "fitted",
    "forward_alone",
    "freed_by_owner",
    "gathered",
    "generator_state",
    "groups_of",
    "last_touches",
    "link",
    "memory_of_workspace",
    "parameter_bytes",
    "peak_together",
    "resident_by_call",
    "simulate",
    "step_contract",
    "without_gradients",
    "without_recomputes",
]
