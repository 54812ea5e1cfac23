"""Checks of a call before it is traced: it must train something, and should be in training mode."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from remate_runtime.format import Model, fill_fault, input_leaves
from remate_runtime.support.callers import frames_to_caller
from remate_runtime.torch_private.pytree import tree_leaves

from ..capture.recorded import RecordedCall
from ..errors import CaptureError

EVALUATION = (
    "the model is in evaluation mode: without dropout, with fixed batch norm, as `from_pretrained` returns models"
)


def trains_nothing(call: RecordedCall) -> str:
    """Why a call cannot produce a gradient; "" if it can."""
    with call.state.in_effect(call.model, cast=False):
        parameters = list(call.model.parameters())
        inputs = tree_leaves((call.args, call.kwargs))
        if any(getattr(tensor, "requires_grad", False) for tensor in (*parameters, *inputs)):
            return ""
    reason = f"all {len(parameters):,} parameters are frozen" if parameters else "the model has no parameters"
    return f"{reason}: there is nothing to train"


def in_evaluation(call: RecordedCall) -> bool:
    """Whether the call is in evaluation mode."""
    return not call.state.training.get("", call.model.training)


def require_training(call: RecordedCall) -> None:
    """Raise CaptureError for a call that trains nothing. Warn if the model is in evaluation mode."""
    if why := trains_nothing(call):
        raise CaptureError(why, hint="call model.requires_grad_(True), or set it on the parameters to train")
    if in_evaluation(call):
        warnings.warn(
            f"{EVALUATION}; call model.train() first, or ignore this warning",
            UserWarning,
            stacklevel=frames_to_caller(),
        )


def checked_fill(fill: Mapping[str, bool | int | float], model: Model) -> dict[str, bool | int | float]:
    """Check the numbers for padding. Raises CaptureError for unknown inputs, and for numbers outside their type."""
    types = {leaf.name: leaf.text for leaf in input_leaves(model.inputs)}
    for name, number in fill.items():
        if fault := fill_fault(types.get(name), number):
            raise CaptureError(f"fill: {name!r} {fault}", hint=f"the inputs are {', '.join(types)}")
    return dict(fill)
