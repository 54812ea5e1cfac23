"""`capture` of a model with live attributes and live inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext

from msgspec.structs import replace
from torch import nn

from remate_runtime.staleness import at_path

from ..capture.capture_step import capture
from ..capture.captured import Captured
from ..capture.live_inputs import live_tree, number_inputs
from ..capture.sizes import SizeLog
from .live_step import LiveStep
from .requested_ranges import live_numbers
from .tracked import Tracked
from .tracked_functions import tracked_functions

Say = Callable[[str], None]


def captured(
    model: nn.Module,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    differentiate: Sequence[str] | None = None,
    live: Sequence[str] = (),
    *,
    sizes: SizeLog | None = None,
    probing: bool = True,
    stepwise: bool = False,
    digested: bool = True,
    say: Say = lambda text: None,
) -> Captured:
    """Capture the step with the numbers in `live` as its inputs.

    Args:
        model: The live model.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        differentiate: As in `capture`.
        live: Names of live attributes and live inputs.
        sizes: As in `capture`.
        probing: Determine the ranges over which the step is valid, with some more captures.
        stepwise: As in `capture`.
        digested: As in `capture`.
        say: Receives what is traced, as text.

    Raises:
        CaptureError: The step cannot be captured.
    """
    if not live:
        return capture(model, args, kwargs, differentiate, sizes, stepwise=stepwise, digested=digested)
    inputs = number_inputs(model, args, kwargs)
    requested = live_numbers(model, live, inputs)
    paths = [path for paths in requested.values() for path in paths]
    planned = {path: inputs[path] if path in inputs else at_path(model, path) for path in paths}
    taken = [sizes]

    def trace(values: Mapping[str, object]) -> Captured:
        log = taken.pop() if taken else None  # the first trace records what forward decides by sizes
        is_tracked = any(isinstance(value, Tracked) for value in values.values())
        with tracked_functions(model) if is_tracked else nullcontext():
            return capture(model, args, kwargs, differentiate, log, values, stepwise)

    step = LiveStep(requested, planned, trace, say).written(probing)
    tree = live_tree(model, step.model.inputs, inputs.keys() & planned.keys())
    return replace(step, model=replace(step.model, inputs=tree))
