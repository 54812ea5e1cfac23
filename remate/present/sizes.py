"""The named sizes of a schedule, in words."""

from __future__ import annotations

from remate_runtime.format import Model, ranged


def sizes_text(model: Model) -> str:
    """Return `b 2 to 32 (planned at 8), t 16 to 1024 in steps of 8 (planned at 512)`, or "" without named sizes."""
    return ", ".join(f"{name} {ranged(dim)} (planned at {dim.planned})" for name, dim in model.dims.items())
