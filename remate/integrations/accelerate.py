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
    """What `accelerator.prepare(model, *others)` gives, with `remate.auto` inside of the autocast that it puts around
    forward.

    budget, file, options: as of `remate.auto`. A script that has `accelerator.prepare` may as well call
    `remate.auto(model)` before.
    """
    return accelerator.prepare(auto(model, budget, file, **options), *others)
