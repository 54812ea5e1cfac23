"""Checks what surrounds a model: the device that a step was captured for, autocast, the default dtype, and the kernels
that attention may use."""

from __future__ import annotations

import warnings

import torch

from ..errors import REPLAN, BindError
from ..flat_step.graph import Graph
from ..format.schedule import Model
from ..format.vocabulary import WITHOUT_DEVICE
from ..operator_calls.overloads import SHORT_DTYPES
from ..support.plain_text import plain
from ..support.platforms import platform_text


def check_device(planned: Model, device: torch.device) -> None:
    """Check that a step can run on a device.

    A step that was captured for a GPU without having one contains operators and layouts of CUDA only. A GPU of a
    different architecture leads to a warning.

    Raises:
        BindError: Such a step would run on the CPU.
    """
    if planned.captured not in WITHOUT_DEVICE or device.type == "meta":
        return
    if device.type != planned.device:
        raise BindError(
            f"the schedule is the step of a GPU ({plain(planned.architecture)}, captured {planned.captured}), and the "
            f"model is on {device}\n  model.to('cuda') before apply; or plan for the CPU: remate.plan without device="
        )
    if device.type != "cuda" or not torch.cuda.is_available():
        return  # tensors without memory, for an absent device
    here = "sm_{}{}".format(*torch.cuda.get_device_capability(device))
    if here != planned.architecture:
        warnings.warn(
            f"the schedule was planned for {plain(planned.architecture)}, and this GPU is {here}: PyTorch may run "
            f"other kernels here. {REPLAN} on this machine to plan its own step",
            UserWarning,
            stacklevel=4,
        )


def chosen_for(planned: Model) -> str:
    """Return the platform that the operators were chosen for without its device, as text; "" for other files."""
    if planned.captured not in WITHOUT_DEVICE:
        return ""
    architecture = planned.architecture or planned.device
    return plain(platform_text(architecture, planned.torch, planned.cuda, planned.cudnn))


def check_autocast(planned: str | None, device: torch.device) -> None:
    """Raise BindError unless the ambient autocast is the recorded one: its casts are part of the operations."""
    enabled = torch.is_autocast_enabled(device.type)
    now = SHORT_DTYPES.get(torch.get_autocast_dtype(device.type)) if enabled else None
    if now != planned:
        was, is_ = (f"autocast to {name}" if name else "no autocast" for name in (planned, now))
        raise BindError(
            f"the schedule was planned under {was}, the call is under {is_}\n  call as planned, or plan again so"
        )


def check_default_dtype(applied: torch.dtype) -> None:
    """Raise BindError if torch's default dtype has changed since `apply`: tensors that forward creates have it."""
    now = torch.get_default_dtype()
    if now is not applied:
        raise BindError(
            f"torch's default dtype was {applied} when the schedule was applied, now it is {now}: tensors that "
            f"forward creates have it\n  torch.set_default_dtype({applied}) before the call, or plan again and apply "
            "under the new one"
        )


class AttentionKernels:
    """The kernels that attention may use (`torch.nn.attention.sdpa_kernel`), at the first call."""

    def __init__(self, graph: Graph) -> None:
        self._chosen = any("attention" in op.op or op.op == "aten._safe_softmax" for op in graph.operations)
        self._first: list[bool] | None = None

    def check(self) -> None:
        """Raise BindError if other kernels are enabled than at the first call, which is compared with the model."""
        if not self._chosen:
            return
        cuda = torch.backends.cuda
        now = [
            cuda.flash_sdp_enabled(),
            cuda.mem_efficient_sdp_enabled(),
            cuda.math_sdp_enabled(),
            cuda.cudnn_sdp_enabled(),
        ]
        self._first = self._first or now
        if now != self._first:
            names = ("flash", "memory-efficient", "math", "cuDNN")
            was, is_ = (
                ", ".join(n for n, on in zip(names, kernels, strict=True) if on) for kernels in (self._first, now)
            )
            raise BindError(
                f"attention could use these kernels at the first call: {was or 'none'}; now: {is_ or 'none'}; the "
                "schedule has the planned ones\n  call it in the same sdpa_kernel(...), or plan again in this one"
            )
