"""Is it a step that trains, and the one that is meant? What can be reported a call before it is traced."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from torch.utils import _pytree as pytree

from remate_runtime.format import Model, fill_fault, input_leaves
from remate_runtime.support.callers import frames_to_caller

from ..capture.recorded import RecordedCall
from ..errors import CaptureError

EVALUATION = (
    "the model is in evaluation mode: without dropout, with fixed batch norm, as `from_pretrained` returns models"
)


def trains_nothing(call: RecordedCall) -> str:
    """Why no gradient could come of a call, as text; "" if one could."""
    with call.state.in_effect(call.model, cast=False):
        parameters = list(call.model.parameters())
        inputs = pytree.tree_leaves((call.args, call.kwargs))
        if any(getattr(one, "requires_grad", False) for one in (*parameters, *inputs)):
            return ""
    what = f"all {len(parameters):,} parameters are frozen" if parameters else "the model has no parameters"
    return f"{what}: there is nothing to train, and nothing to plan"


def in_evaluation(call: RecordedCall) -> bool:
    """Whether the call is made in evaluation mode."""
    return not call.state.training.get("", call.model.training)


def check_meant(call: RecordedCall) -> None:
    """Raise CaptureError for a call that trains nothing, and warn of a model in evaluation mode, which is planned as it
    is."""
    if why := trains_nothing(call):
        raise CaptureError(why, hint="model.requires_grad_(True), or of the parameters that train")
    if in_evaluation(call):
        warnings.warn(
            f"{EVALUATION}; call model.train() first, unless this is meant", UserWarning, stacklevel=frames_to_caller()
        )


def checked_fill(fill: Mapping[str, bool | int | float], model: Model) -> dict[str, bool | int | float]:
    """What inputs may be padded with, for the file. Raises CaptureError for other names, and numbers that they cannot
    hold."""
    types = {leaf.name: leaf.text for leaf in input_leaves(model.inputs)}
    for name, number in fill.items():
        if fault := fill_fault(types.get(name), number):
            raise CaptureError(f"fill: {name!r} {fault}", hint=f"the inputs are {', '.join(types)}")
    return dict(fill)
