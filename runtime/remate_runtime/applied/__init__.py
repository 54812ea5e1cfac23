"""`apply`: a model whose forward runs schedules. Requires torch."""

from __future__ import annotations

from ..torch_private.execution import outside_compiler
from .calls_to_plan import plan_call
from .other_sizes import size_request
from .planned_model import apply, calls_aside, original_of
from .prediction import measured_pages, peak_by_engine, predicted_peak
from .preparation import prepare
from .programs import refuse_transforms

__all__ = [
    "apply",
    "calls_aside",
    "measured_pages",
    "original_of",
    "outside_compiler",
    "peak_by_engine",
    "plan_call",
    "predicted_peak",
    "prepare",
    "refuse_transforms",
    "size_request",
]
