"""Putting what `build()` made onto the device to plan for or to train on."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..api.elsewhere import cost_for, doubts
from ..profile.devices import Device, named_gpu
from .build_file import Target, load_target
from .output import say_aside
from .progress import Reporter
from .streams import unguarded_streams
from .usage import UsageError


def loaded(text: str, device: str | None, threads: int | None, quiet: bool) -> Target:
    """What `FILE.py:build` makes, on `device`; a person at a terminal is reported while it runs."""
    with Reporter(quiet) as report:
        report(f"running {text}")
        return placed(load_target(text), device, threads)


def from_script(args: argparse.Namespace) -> Target:
    """The training call that a script makes, on `--device` if that is named. Raises UsageError, CaptureError."""
    from ..training.script_call import script_call

    if not Path(args.target).is_file():
        raise UsageError(f"{args.target}: no such file\n  hint: remate plan script.py --from-script -o S.json -- ARGS")
    with unguarded_streams():
        call = script_call(args.target, args.rest, args.module)
    return placed(Target(call.model, call.args, call.kwargs, call.state), args.device, args.threads)


def split_device(args: argparse.Namespace) -> Device | None:
    """The GPU that `--device` names, which is not here: the model stays where it is, and costs are by default those of
    the GPU. None for a device to move the model to. Raises ProfileError."""
    gpu = named_gpu(args.device)
    if gpu is not None:
        args.device, args.gpu = None, args.device
    args.cost = cost_for(gpu, args.cost)
    return gpu


def tell_doubts(args: argparse.Namespace, gpu: Device | None, target: Target) -> None:
    """Say so if costs, or rules for CUDA, are not those of the step."""
    for said in doubts(args.cost, gpu, target.call):
        say_aside(f"warning: {said}")


def placed(target: Target, device: str | None, threads: int | None = None) -> Target:
    """The model and its inputs on `device` (None: where they are). threads: of torch on the CPU."""
    import torch
    from torch.utils import _pytree as pytree

    if threads is not None:
        torch.set_num_threads(threads)
    if device is None:
        return target
    try:
        place = torch.device(device)
    except RuntimeError:
        raise UsageError(f"{device!r} is no device\n  hint: write cpu, cuda or cuda:0") from None
    if place.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "there is no CUDA device on this machine\n  hint: --device cpu; remate plan --device cuda:h100 plans "
            "for a GPU that is not here"
        )
    try:
        model = target.model.to(place)
    except (RuntimeError, NotImplementedError) as error:
        raise UsageError(f"the model cannot be moved to {device}: {str(error).splitlines()[0]}") from None

    def move(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to(place).requires_grad_(tensor.requires_grad)

    args, kwargs = pytree.tree_map_only(torch.Tensor, move, (target.args, target.kwargs))
    return Target(model, args, kwargs, target.state)


def check_trains(target: Target, name: str, evaluation: bool) -> None:
    """Raise UsageError for a step that trains nothing, or that is most likely not the one that is meant.

    name: of the file and function. evaluation: a model in evaluation mode is meant.
    """
    from ..api.meant import EVALUATION, in_evaluation, trains_nothing

    if why := trains_nothing(target.call):
        hint = "model.requires_grad_(True), or of the parameters that train, before build() returns"
        raise UsageError(f"{name}: {why}\n  hint: {hint}")
    if in_evaluation(target.call) and not evaluation:
        raise UsageError(
            f"{name}: {EVALUATION}\n  hint: model.train() before build() returns; --evaluation if this is meant"
        )
