"""accelerate: `model, optimizer = prepare(accelerator, model, optimizer, budget="60%", file="plan.json")`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..training import auto


def prepare(
    accelerator: Any,
    model: Any,
    *others: Any,
    budget: str | int | None = None,
    file: str | Path | None = None,
    **options: Any,
) -> Any:
    """Return `accelerator.prepare(model, *others)` with `remate.auto` inside the autocast that it puts around forward.

    A script with `accelerator.prepare` may also call `remate.auto(model)` before.

    Args:
        accelerator: The Accelerator.
        model: The live model.
        others: Other arguments of `prepare`.
        budget: As in `remate.auto`.
        file: As in `remate.auto`.
        options: As in `remate.auto`.
    """
    return accelerator.prepare(auto(model, budget, file, **options), *others)
