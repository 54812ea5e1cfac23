"""Putting what `build()` made onto the device to plan for or to train on."""

from __future__ import annotations

from .build_file import Target
from .usage import UsageError


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
        raise UsageError("there is no CUDA device on this machine\n  hint: --device cpu, or plan with --cost h200")
    try:
        model = target.model.to(place)
    except (RuntimeError, NotImplementedError) as error:
        raise UsageError(f"the model cannot be moved to {device}: {str(error).splitlines()[0]}") from None

    def move(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to(place).requires_grad_(tensor.requires_grad)

    args, kwargs = pytree.tree_map_only(torch.Tensor, move, (target.args, target.kwargs))
    return Target(model, args, kwargs)
