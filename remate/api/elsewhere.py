"""Planning for a GPU that this machine need not have: its name, its costs, and the call on it."""

from __future__ import annotations

import contextlib
import warnings

import torch

from remate_runtime.format import Schedule
from remate_runtime.support.callers import frames_to_caller

from ..capture.fake_call import fake_call
from ..capture.recorded import RecordedCall
from ..errors import CaptureError, ProfileError
from ..profile.costing import COMPILED, MEASURED
from ..profile.devices import DEVICES, Device, named_gpu
from ..schedule_tools.rule_versions import without_rules


def gpu_elsewhere(device: str | None) -> Device | None:
    """The GPU of `device=`, or None. Raises ProfileError for an unknown name."""
    gpu = named_gpu(device)
    if device is not None and gpu is None:
        raise ProfileError(
            f"device={device!r} is not the name of a GPU to plan for\n"
            f'  hint: device="cuda:h100"; to plan for a device of this machine, move the model and its inputs there'
        )
    return gpu


def gpu_of_file(schedule: Schedule) -> Device | None:
    """The GPU that a schedule was planned for without having it, if this machine has no CUDA device; else None."""
    settings = schedule.solve.settings
    return named_gpu(settings.device) if settings and settings.device and not torch.cuda.is_available() else None


def cost_for(gpu: Device | None, cost: str | None) -> str:
    """The cost model to plan with. Default: that of the GPU, or costs measured on the model's device.

    Args:
        gpu: The GPU of `device=`, or None.
        cost: The requested cost model, or None.

    Raises:
        ProfileError: The costs must be measured on the GPU itself.
    """
    if gpu is None:
        return cost or MEASURED
    if cost in (MEASURED, COMPILED):
        raise ProfileError(
            f"cost={cost!r} needs the device, but device= plans without it\n  hint: leave cost out for the "
            f"roofline model of {gpu.name}"
        )
    return cost or gpu.name


def on_device(gpu: Device | None, call: RecordedCall) -> contextlib.AbstractContextManager[RecordedCall]:
    """Inside, the call is on that GPU; without a GPU it is unchanged. Raises CaptureError on entry."""
    if gpu is None or gpu.gpu is None:
        return contextlib.nullcontext(call)
    from ..capture.cuda.on_cuda import on_cuda

    return on_cuda(call, gpu.gpu.capability, gpu.gpu.name, gpu.gpu.memory)


def on_device_of(schedule: Schedule, call: RecordedCall) -> contextlib.AbstractContextManager[RecordedCall]:
    """Inside, the call has fake tensors on the device that a schedule was planned for."""
    model = schedule.model
    if model.device == "cpu" or torch.cuda.is_available():
        return fake_call(call, model.device)
    if gpu := gpu_of_file(schedule):
        return on_device(gpu, call)
    from ..capture.cuda.on_cuda import on_cuda

    number = int(model.architecture.removeprefix("sm_") or 0)
    if not number:
        raise CaptureError(
            "the schedule does not name its GPU, and this machine has none",
            hint="plan it again: remate plan --device cuda:h100",
        )
    return on_cuda(call, divmod(number, 10), model.architecture, 0)


def priced_as_another(cost: str, kind: str) -> str:
    """A warning if the step is for one kind of device (`cpu`, `cuda`) and the costs for another; otherwise ""."""
    device = DEVICES.get(cost)
    if device is None or device.kind == kind:
        return ""
    if device.kind == "cpu":
        return f"the step is for {kind}, but the costs are for a CPU"
    if device.gpu is None:
        return f"the step is for the CPU, but the costs are for a {cost}: a GPU runs other kernels, with other memory"
    return (
        f"the step is for the CPU, but the costs are for a {cost}: CUDA runs other kernels, with other memory. "
        f"device='cuda:{cost}' plans the step of a {cost}"
    )


def doubts(cost: str, gpu: Device | None, call: RecordedCall) -> list[str]:
    """Warnings before planning: costs for another kind of device than the step, and rules of another torch.

    Args:
        cost: The cost model.
        gpu: The GPU of `device=`, or None.
        call: The call on its own device.
    """
    device = next((tensor.device.type for tensor in call.model.parameters()), "cpu")
    costs = priced_as_another(cost, "cuda" if gpu is not None or device == "cuda" else "cpu")
    return [doubt for doubt in (costs, without_rules(torch.__version__) if gpu is not None else "") if doubt]


def warn_of_doubts(cost: str, gpu: Device | None, call: RecordedCall) -> None:
    """Issue a UserWarning for each of `doubts`."""
    for doubt in doubts(cost, gpu, call):
        warnings.warn(doubt, UserWarning, stacklevel=frames_to_caller())
