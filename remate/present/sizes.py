"""The named sizes of a schedule, in words."""

from __future__ import annotations

from remate_runtime.format import Model, limits_text, ranged


def sizes_text(model: Model) -> str:
    """Return `b 2 to 32 (planned at 8), t 16 to 1024 in steps of 8 (planned at 64), b*t up to 4096`; "" without any."""
    sizes = [f"{name} {ranged(dim)} (planned at {dim.planned})" for name, dim in model.dims.items()]
    return ", ".join(filter(None, [*sizes, limits_text(model.limits)]))
