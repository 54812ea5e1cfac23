"""`apply`: a live model whose forward runs schedules. Needs torch."""

from __future__ import annotations

from .planned_model import apply

__all__ = ["apply"]
