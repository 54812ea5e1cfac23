"""Moves the model of `build()` to the device that it is planned for or trained on."""

from __future__ import annotations

import argparse
from pathlib import Path

from remate_runtime.torch_private.pytree import tree_map_only

from ..api.elsewhere import cost_for, doubts
from ..profile.devices import Device, named_gpu
from .build_file import Target, load_target
from .output import say_aside
from .progress import Reporter
from .streams import unguarded_streams
from .usage import UsageError


def loaded(text: str, device: str | None, threads: int | None, quiet: bool) -> Target:
    """Call `FILE.py:build`, with progress, and move its result to `device`."""
    with Reporter(quiet) as report:
        report(f"running {text}")
        return placed(load_target(text), device, threads)


def from_script(args: argparse.Namespace) -> Target:
    """Record the training call of a script, and move it to `--device` if given. Raises UsageError, CaptureError."""
    from ..training.script_call import script_call

    if not Path(args.target).is_file():
        raise UsageError(f"{args.target}: no such file\n  hint: remate plan script.py --from-script -o S.json -- ARGS")
    with unguarded_streams():
        call = script_call(args.target, args.rest, args.module)
    return placed(Target(call.model, call.args, call.kwargs, call.state), args.device, args.threads)


def split_device(args: argparse.Namespace) -> Device | None:
    """Return the GPU of `--device` if this machine need not have it, and set the default costs to that GPU's.

    Return None if `--device` is a device of torch. Raises ProfileError.
    """
    gpu = named_gpu(args.device)
    if gpu is not None:
        args.device, args.gpu = None, args.device
    args.cost = cost_for(gpu, args.cost)
    return gpu


def tell_doubts(args: argparse.Namespace, gpu: Device | None, target: Target) -> None:
    """Warn if the costs, or the rules for CUDA, belong to another device than the step."""
    for doubt in doubts(args.cost, gpu, target.call):
        say_aside(f"warning: {doubt}")


def placed(target: Target, device: str | None, threads: int | None = None) -> Target:
    """Move the model and its inputs to `device`, if given. threads: of torch on the CPU."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    if device is None:
        return target
    try:
        place = torch.device(device)
    except RuntimeError:
        raise UsageError(f"{device!r} is not a device\n  hint: write cpu, cuda or cuda:0") from None
    if place.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "this machine has no CUDA device\n  hint: use --device cpu, or plan for another machine: "
            "remate plan --device cuda:h100"
        )
    try:
        model = target.model.to(place)
    except (RuntimeError, NotImplementedError) as error:
        raise UsageError(f"the model cannot be moved to {device}: {str(error).splitlines()[0]}") from None

    def move(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to(place).requires_grad_(tensor.requires_grad)

    args, kwargs = tree_map_only(torch.Tensor, move, (target.args, target.kwargs))
    return Target(model, args, kwargs, target.state)


def check_trains(target: Target, name: str, evaluation: bool) -> None:
    """Raise UsageError for a step that trains nothing, or for a model in evaluation mode.

    Args:
        target: The model and its inputs.
        name: File and function, for messages.
        evaluation: Accept a model in evaluation mode.
    """
    from ..api.untrained import EVALUATION, in_evaluation, trains_nothing

    if why := trains_nothing(target.call):
        hint = "call model.requires_grad_(True) before build() returns, or set it on the parameters to train"
        raise UsageError(f"{name}: {why}\n  hint: {hint}")
    if in_evaluation(target.call) and not evaluation:
        raise UsageError(
            f"{name}: {EVALUATION}\n  hint: call model.train() before build() returns, or add --evaluation"
        )
