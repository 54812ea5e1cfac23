"""`apply`: a live model whose forward runs schedules. Needs torch."""

from __future__ import annotations

from .planned_model import apply, original_of

__all__ = ["apply", "original_of"]
