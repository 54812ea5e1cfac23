"""What executes a linked step on a device. Needs torch."""

from __future__ import annotations

from .eager.program import operators

__all__ = ["operators"]
