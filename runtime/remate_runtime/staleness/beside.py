"""One step of a schedule beside one of the model itself: what a digest cannot see, this does."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..bind.outputs import output_builder
from ..errors import REPLAN, BindError, RemateError, StaleModelError
from ..flat_step.expansion import expand
from ..format.schedule import Model, Schedule
from ..format.signature import input_leaves, output_leaves
from ..format.tensor_type import parse_type
from ..operator_calls.overloads import TORCH_DTYPES, empty
from .compare import compare_models, default_loss, tensors_of
from .eager_operators import BEYOND_EAGER, EagerOperators, beyond_eager

Call = tuple[Sequence[Any], Mapping[str, Any]]
_SHOWN = 8


def verify_beside(
    model: nn.Module,
    planned: nn.Module,
    schedule: Schedule,
    device: torch.device,
    call: Call | None,
    part: bool = False,
    padded: bool = False,
) -> None:
    """Run one step of `model` and one of `planned`, the same model with the schedule's step, and compare gradients,
    outputs, buffers and generators. Parameters, buffers, `.grad` and generators are left as they were.

    call: (args, kwargs) to run with; None: random ones of the planned types. part: the schedule is for parts of the model,
    so that its outputs are not the model's. padded: `planned` pads the call; then the operators of the two forwards differ in
    their shapes, and are not compared. Takes the memory of an eager step.
    Raises StaleModelError if they differ beyond the order of sums, BindError if the step cannot be run so. Warns if the
    schedule's forward runs operators that the model's does not.
    """
    recorded = schedule.model
    if model.training != recorded.training:
        mode = "train()" if recorded.training else "eval()"
        raise BindError(
            f"verify runs a step as planned, and the model is not in {mode} mode\n  call model.{mode} first"
        )
    args, kwargs = call if call is not None else example_call(model, recorded, device)
    chosen = [leaf.grad for leaf in output_leaves(recorded.outputs)]

    def loss(outputs: Any) -> torch.Tensor:
        if part:
            return default_loss(outputs)
        return default_loss([t for t, grad in zip(tensors_of(outputs), chosen, strict=False) if grad])

    eager = EagerOperators()
    with _autocast(recorded, device):
        try:
            found = compare_models(model, planned, args, kwargs, loss=loss, during=eager)
        except RemateError:
            raise
        except Exception as error:
            if call is not None:
                raise
            raise BindError(
                f"verify cannot run the model on random inputs of the planned types: {error}\n  give it a batch: "
                "apply(..., verify=(args, kwargs))"
            ) from error
    parted = [] if padded else beyond_eager(expand(schedule).graph, eager)
    if found.beyond:
        told = "\n  - ".join([*found.beyond[:_SHOWN], *(f"{BEYOND_EAGER} {one}" for one in parted[:1])])
        raise StaleModelError(
            f"one step of the schedule is not one of the model; they differ in\n  - {told}\n  {REPLAN}"
        )
    if parted:
        warnings.warn(
            f"{BEYOND_EAGER} {'; '.join(parted[:_SHOWN])}: the schedule took another branch there, so its sums may be made in "
            "another order, and eager's peak is another",
            UserWarning,
            stacklevel=3,
        )


def _autocast(recorded: Model, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    if recorded.autocast is None:
        return contextlib.nullcontext()
    return torch.autocast(device.type, TORCH_DTYPES[recorded.autocast])


def example_call(model: nn.Module, recorded: Model, device: torch.device) -> Call:
    """Random arguments of the planned types: numbers from 0 to 1, integers 0 or 1."""
    generator = torch.Generator().manual_seed(0)
    leaves: list[torch.Tensor] = []
    names: dict[str, int] = {}
    for leaf in input_leaves(recorded.inputs):
        names[leaf.name] = len(leaves)
        if leaf.same in names:
            leaves.append(leaves[names[leaf.same]])
            continue
        kind = parse_type(leaf.text)
        dtype = TORCH_DTYPES[kind.dtype]
        number = torch.rand(kind.shape, generator=generator)
        made = empty(kind, torch.device("cpu") if kind.cpu else device)
        made.copy_(number if dtype.is_floating_point or dtype.is_complex else number.round())
        leaves.append(made.requires_grad_(leaf.grad))
    args, kwargs = recorded.inputs.get("args", []), recorded.inputs.get("kwargs", {})
    tree = {
        "tuple": [{"tuple": [_as_values(a) for a in args]}, {"dict": {k: _as_values(v) for k, v in kwargs.items()}}]
    }
    try:
        return output_builder(tree, model)(leaves)
    except BindError as fault:
        raise BindError(
            f"verify cannot make inputs of the planned types: {str(fault).splitlines()[0]}\n  give it a batch: "
            "apply(..., verify=(args, kwargs))"
        ) from None


def _as_values(tree: Any) -> Any:
    """A tree of inputs as one of outputs, which can be built."""
    if isinstance(tree, list):
        return [_as_values(item) for item in tree]
    if not isinstance(tree, dict) or "literal" in tree:
        return tree
    return {"value": ""} if "tensor" in tree else {key: _as_values(item) for key, item in tree.items()}
