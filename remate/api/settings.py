"""What `plan` and its like are asked, checked before anything is traced, and as the file keeps it."""

from __future__ import annotations

from typing import Any

from remate_runtime.format import GRADIENTS, Gradients, Settings

from ..budget import BudgetError, parse_budget, parse_speed
from ..errors import CaptureError, DimsError, UnknownNameError
from ..strategy import effort_named, policy
from ..strategy.paging import PAGED_STRATEGIES
from .options import PlanOptions


def settings_of(options: PlanOptions, budget: str = "") -> Settings:
    """Return what the file keeps of options. Raise UnknownNameError and BudgetError, before minutes of tracing.

    Args:
        options: The options of `plan`.
        budget: The budget as text; empty where a goal decides.
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
            device=options.device or "",
        )
    )


def _text(number: str | int | None) -> str:
    return "" if number is None else str(number)


def checked(settings: Settings) -> Settings:
    """The same settings. Raises UnknownNameError for a strategy that there is not, BudgetError for one that needs to
    know where values may be paged to, and for what cannot be read of that."""
    if pages(settings):
        for text in filter(None, (settings.disk_budget, settings.host_budget)):
            if parse_budget(text).size is None:
                raise BudgetError(f"what is paged has a limit in bytes, not {text}\n  hint: write 64GiB")
        if settings.bandwidth != "measured":
            parse_speed(settings.bandwidth)
        if settings.device:
            refuse_paging(settings, f"steps for {settings.device}, which is not here, page nothing")
    if settings.strategy not in PAGED_STRATEGIES:
        policy(settings.strategy)
    elif not pages(settings):
        raise BudgetError(
            f"the strategy {settings.strategy!r} pages values, and nothing says where to\n  hint: give "
            "disk_budget='64GiB' "
            "(--disk-budget 64GiB)"
        )
    return settings


def pages(settings: Settings) -> bool:
    """Whether values may be paged."""
    return bool(settings.disk_budget or settings.host_budget)


def refuse_paging(settings: Settings, what: str) -> None:
    """Raise BudgetError where values are to be paged in what is planned without pages."""
    if pages(settings):
        raise BudgetError(
            f"{what}: pages are for one schedule of a whole model under one budget\n  hint: leave out disk_budget "
            "and host_budget"
        )


def assumed(gradients: str) -> Gradients:
    """The word for what becomes of delivered gradients. Raises UnknownNameError."""
    for known in GRADIENTS:
        if gradients == known:
            return known
    raise UnknownNameError(
        f"gradients cannot be {gradients[:80]!r} when they are delivered\n  hint: one of {', '.join(GRADIENTS)}"
    )


def refuse_for_parts(options: PlanOptions) -> None:
    """Raise DimsError for sizes that parts would leave open: nobody has named those of their inputs; CaptureError for
    attributes that they would read at every call, and for inputs that would be padded."""
    if options.fill:
        raise CaptureError("fill names inputs of the whole model, and parts get theirs from it", hint="leave out fill")
    if options.live:
        message = "parts of a model are planned with attributes as they are: live= is for the whole model"
        raise CaptureError(message, hint="leave out live, or plan the whole model")
    if options.dims is not None:
        raise DimsError(
            "parts of a model are planned at the sizes that it calls them with: sizes of their inputs have no names\n"
            "  hint: leave out dims, and give apply a schedule for each size; or plan the whole model"
        )
