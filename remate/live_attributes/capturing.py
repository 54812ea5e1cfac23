"""`capture` of a model whose attributes may be declared live."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from remate_runtime.staleness import at_path

from ..capture.capture_step import capture
from ..capture.captured import Captured
from ..capture.sizes import SizeLog
from .live_step import LiveStep
from .requested_ranges import live_attributes

Say = Callable[[str], None]


def captured(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    differentiate: Sequence[str] | None = None,
    live: Sequence[str] = (),
    *,
    sizes: SizeLog | None = None,
    probing: bool = True,
    stepwise: bool = False,
    digested: bool = True,
    say: Say = lambda text: None,
) -> Captured:
    """The step of `capture`, with the attributes that `live` names as its inputs. probing: find out the ranges over
    which it is the step; that takes some captures more. stepwise, digested: as of `capture`. say: told what is traced.
    Raises CaptureError."""
    if not live:
        return capture(model, args, kwargs, differentiate, sizes, stepwise=stepwise, digested=digested)
    requested = live_attributes(model, live)
    planned = {path: at_path(model, path) for paths in requested.values() for path in paths}
    taken = [sizes]

    def trace(values: Mapping[str, Any]) -> Captured:
        log = taken.pop() if taken else None  # what forward decides by sizes is asked of the first trace
        return capture(model, args, kwargs, differentiate, log, values, stepwise)

    return LiveStep(requested, planned, trace, say).written(probing)
