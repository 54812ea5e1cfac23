"""Compares the live model with the planned one at `apply`, and returns the guard for later calls."""

from __future__ import annotations

import warnings
from typing import Literal

from torch import nn

from ..bind.modules import modules_by_path
from ..errors import REBIND, REPLAN, StaleModelError, StaleModelWarning
from ..format.schedule import Schedule
from ..support.plain_text import plain
from .attributes import hook_name, hooks_of, is_torchs, only_looks
from .differences import Differences
from .digest import code_of, compare_digest
from .guard import Guard, not_called, observing_hooks
from .parts import part_digest

Stale = Literal["error", "warn"]
_SHOWN = 20
_HINT = f"{REPLAN}, {REBIND}, or bring it back to what was planned"
_LOOP = "what a training loop sets is planned with remate.record(model)"
_UNTRACED = "apply(model, schedule, verify=True) runs one step beside the model and compares"


def unchecked(model: nn.Module, schedule: Schedule, stale: Stale, part: str = "") -> Guard:
    """Compare `model` with the schedule's digest, or with the digest of a part; return the guard for later calls.

    Args:
        model: The live model.
        schedule: The schedule.
        stale: "error" raises StaleModelError if the model differs; "warn" emits StaleModelWarning and watches the model
            as it is.
        part: Path of the part, "" for the whole model.
    """
    digest = part_digest(schedule.digest, part) if part and schedule.digest is not None else schedule.digest
    code = code_of(digest)
    differences = (
        _unplanned_hooks(model)
        if digest is None
        else compare_digest(digest, schedule.model.torch.partition("+")[0], model, code, deferred=True)
    )
    faults = differences.faults
    if faults:
        shown = faults[:_SHOWN] + ([f"… and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else [])
        text = "\n  - ".join(
            [f"{type(model).__name__} is not what the schedule was planned for ({plain(schedule.model.name)}):", *shown]
        )
        if stale == "error":
            settings = f": {differences.settings}; {_LOOP}" if differences.settings else ""
            live = f"\n  {differences.live}" if differences.live else ""
            raise StaleModelError(f"{text}\n  {differences.hint or _HINT + settings + live}")
        warnings.warn(text, StaleModelWarning, stacklevel=5)
    if differences.warnings:
        warnings.warn(f"{'; '.join(differences.warnings)}\n  {_UNTRACED}", StaleModelWarning, stacklevel=5)
    if observers := [name for names in observing_hooks(model) for name in names]:
        warnings.warn(not_called(observers), StaleModelWarning, stacklevel=5)
    return Guard(model, digest, code, deferred=digest is not None and digest.at_call and stale == "error")


def _unplanned_hooks(model: nn.Module) -> Differences:
    """Report hooks of a model without a digest. All but torch's own would be ignored."""
    differences = Differences()
    for path, module in modules_by_path(model, each_once=True).items():
        for kind, hook in hooks_of(module) if path else ():
            if not is_torchs(hook) and not only_looks(kind, hook):
                differences.module(
                    path, type(module).__qualname__, f"the hook {hook_name(kind, hook)!r} would not be called"
                )
    return differences
