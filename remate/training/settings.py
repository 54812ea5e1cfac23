"""The arguments of `remate.auto`: its own, and those that it passes to `remate.plan` and `remate_runtime.apply`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from remate_runtime.format import did_you_mean
from remate_runtime.support.plain_text import plain

from ..api.progress import ProgressOption
from ..errors import RemateError, UnknownNameError

OnStale = Literal["replan", "refuse"]
OnRefused = Literal["error", "original"]
_APPLY = ("engine", "namespaces", "otherwise", "record_functions", "cuda_graphs", "stale", "verify")
_OWN = ("model", "args", "kwargs", "budget", "progress")


class AutoSettings(msgspec.Struct, frozen=True):
    """The arguments of `auto`.

    Attributes:
        budget: The budget as given.
        file: Path of the schedule.
        plan: Other arguments of `remate.plan`.
        apply: Other arguments of `apply`.
    """

    budget: str | int | None
    file: Path | None
    on_stale: OnStale
    on_refused: OnRefused
    timeout: float
    plan: Mapping[str, Any]
    apply: Mapping[str, Any]
    progress: ProgressOption = None

    @property
    def requested(self) -> str:
        """All settings that determine the plan, as text."""
        return repr((str(self.budget), sorted(self.plan.items()), str(self.file)))

    def refuse(self, error: RemateError) -> None:
        """Raise the error, with what else the user can choose, unless refused models train by their own forward."""
        if self.on_refused == "error":
            error.add_note("  remate.auto(..., on_refused='original') warns, and trains by the model's own forward")
            raise error

    def say(self, text: str) -> None:
        """Report a message to the user."""
        if self.progress == "auto":
            print(f"remate: {plain(text)}", file=sys.stderr, flush=True)
        elif self.progress is not None:
            self.progress(text)


def settings_for(
    budget: str | int | None,
    file: str | Path | None,
    on_stale: str,
    on_refused: str,
    timeout: float,
    progress: ProgressOption,
    options: Mapping[str, Any],
) -> AutoSettings:
    """Check the arguments of `auto` before anything runs, and return them. Raises BudgetError, UnknownNameError."""
    from ..api.goals import check_budget
    from ..api.over_budget import SMALLEST, plans_smallest
    from ..api.plan import plan
    from ..api.settings import assumed
    from ..strategy import effort_named, policy

    check_budget(budget, options.get("slowdown"))
    for name, given, known in (
        ("on_stale", on_stale, ("replan", "refuse")),
        ("on_refused", on_refused, ("error", "original")),
    ):
        if given not in known:
            raise UnknownNameError(f"{name} cannot be {given!r}\n  hint: one of {', '.join(known)}")
    planning = [name for name in inspect.signature(plan).parameters if name not in _OWN]
    for name in options:
        if name not in planning and name not in _APPLY:
            hint = did_you_mean(name, [*planning, *_APPLY], "arguments of remate.plan and remate_runtime.apply")
            raise UnknownNameError(f"remate.auto has no argument {name!r}\n  hint: {hint}")
    policy(options.get("strategy", "auto"))
    effort_named(options.get("effort", "normal"))
    assumed(options.get("gradients", "retained"))
    for_plan = {name: value for name, value in options.items() if name in planning}
    for_apply = {name: value for name, value in options.items() if name in _APPLY}
    for_plan = {"on_infeasible": SMALLEST, **for_plan}
    plans_smallest(for_plan["on_infeasible"])
    if "at" not in for_plan:
        for_plan = {"dims": "auto", **for_plan}
    return AutoSettings(
        budget,
        None if file is None else Path(file),
        on_stale,  # type: ignore[arg-type]
        on_refused,  # type: ignore[arg-type]
        timeout,
        for_plan,
        {"otherwise": "original", **for_apply},
        progress,
    )
