"""The settings of planning: checked before tracing, and recorded in the file."""

from __future__ import annotations

from typing import Any

from remate_runtime.format import GRADIENTS, Gradients, Settings

from ..budget import BudgetError, parse_budget, parse_speed
from ..errors import CaptureError, DimsError, UnknownNameError
from ..splits.windows import ALL, HEAD, SPLITS
from ..strategy import effort_named, policy
from ..strategy.paging import PAGED_STRATEGIES
from ..strategy.paging.goal import POET, EnergyGoal
from .options import PlanOptions


def settings_of(options: PlanOptions, budget: str = "") -> Settings:
    """Return the settings that the file records.

    Args:
        options: The options of `plan`.
        budget: The budget as text; empty if a goal chooses it.

    Raises:
        UnknownNameError: A name is unknown.
        BudgetError: A budget is not valid.
    """
    effort_named(options.effort)
    assumed(options.gradients)
    paging: dict[str, Any] = {}
    if options.disk_budget or options.host_budget:
        paging = {
            "disk_budget": _text(options.disk_budget),
            "host_budget": _text(options.host_budget),
            "bandwidth": options.bandwidth,
        }
    if options.objective != "time" or options.power or options.limit is not None:
        if options.strategy != POET:
            raise UnknownNameError(
                "objective, power and limit belong to the strategy poet\n  hint: strategy='poet' (--strategy poet)"
            )
        EnergyGoal.checked(options.objective, options.power, options.limit)
        paging |= {
            "objective": "" if options.objective == "time" else options.objective,
            "power": options.power,
            "limit": None if options.limit is None else float(options.limit),
        }
    return checked(
        Settings(
            budget=budget,
            strategy=options.strategy,
            effort=options.effort,
            gap=float(options.gap),
            time_limit=None if options.time_limit is None else float(options.time_limit),
            differentiate=tuple(options.differentiate or ()),
            live=options.live_paths,
            **paging,
            split=_permitted(options),
            device=options.device or "",
        )
    )


def _permitted(options: PlanOptions) -> str:
    """Return what may be split. Raise UnknownNameError for another word, BudgetError where nothing is split."""
    permitted = ALL if options.split is True else options.split or ""
    if permitted not in ("", *SPLITS):
        raise UnknownNameError(_unknown(permitted))
    if not permitted:
        return ""
    if options.disk_budget or options.host_budget:
        raise BudgetError("split does not support paging\n  hint: remove split, or disk_budget and host_budget")
    return permitted


def _unknown(split: str) -> str:
    return f"split={str(split)[:80]!r} is unknown\n  hint: write split={HEAD!r} or {ALL!r}, or remove it"


def _text(number: str | int | None) -> str:
    return "" if number is None else str(number)


TO_THE_HOST = (  # why a step on CUDA does not page to the disk
    "values of a GPU are paged to pinned memory of the host, not to the disk\n  hint: host_budget (--host-budget) "
    "instead of disk_budget"
)


def checked(settings: Settings) -> Settings:
    """Check settings and return them. Raises UnknownNameError for an unknown strategy, BudgetError for wrong paging."""
    if pages(settings):
        for text in filter(None, (settings.disk_budget, settings.host_budget)):
            if parse_budget(text).size is None:
                raise BudgetError(f"the budget of pages must be in bytes, not {text}\n  hint: write 64GiB")
        if settings.bandwidth != "measured":
            parse_speed(settings.bandwidth)
        if settings.device and settings.disk_budget:
            raise BudgetError(f"disk_budget: the step is for device={settings.device!r}, and {TO_THE_HOST}")
    if settings.split not in ("", *SPLITS):
        raise UnknownNameError(_unknown(settings.split))
    if settings.strategy not in PAGED_STRATEGIES:
        policy(settings.strategy)
    elif not pages(settings):
        raise BudgetError(
            f"the strategy {settings.strategy!r} pages values, and needs a budget of pages\n  hint: add "
            "disk_budget='64GiB' (--disk-budget 64GiB)"
        )
    return settings


def pages(settings: Settings) -> bool:
    """Whether values may be paged."""
    return bool(settings.disk_budget or settings.host_budget)


def refuse_paging(settings: Settings, what: str) -> None:
    """Raise BudgetError if settings have a budget of pages. what: reason, for the message."""
    if pages(settings):
        raise BudgetError(f"{what}\n  hint: remove disk_budget and host_budget")


def assumed(gradients: str) -> Gradients:
    """Check the use of delivered gradients and return it. Raises UnknownNameError."""
    for known in GRADIENTS:
        if gradients == known:
            return known
    raise UnknownNameError(f"gradients={gradients[:80]!r} is unknown\n  hint: one of {', '.join(GRADIENTS)}")


def refuse_for_parts(options: PlanOptions) -> None:
    """Raise DimsError or CaptureError for options that parts of a model do not support."""
    if options.fill:
        raise CaptureError("fill= is for whole models, and not for parts", hint="remove fill")
    if options.live:
        message = "live= is for whole models, and not for parts"
        raise CaptureError(message, hint="remove live, or plan the whole model")
    if options.dims is not None:
        raise DimsError(
            "dims= is for whole models, and not for parts\n"
            "  hint: remove dims and give apply a schedule for each size, or plan the whole model"
        )
