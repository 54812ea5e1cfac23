"""Planning for a GPU that is not here: which one, what costs it has, and the call as it would be made there."""

from __future__ import annotations

import contextlib
import warnings

import torch

from remate_runtime.format import Schedule
from remate_runtime.support.callers import frames_to_caller

from ..capture.cuda.versions import without_rules
from ..capture.fake_call import fake_call
from ..capture.recorded import RecordedCall
from ..errors import CaptureError, ProfileError
from ..profile.costing import COMPILED, MEASURED
from ..profile.devices import DEVICES, Device, named_gpu


def gpu_elsewhere(device: str | None) -> Device | None:
    """The GPU that `device=` names, None without one. Raises ProfileError for what is no such name."""
    gpu = named_gpu(device)
    if device is not None and gpu is None:
        raise ProfileError(
            f"device={device!r} names no GPU to plan for: without one the step is planned for the device of the model\n"
            f'  hint: device="cuda:h100"; to plan on a device that is here, move the model and its inputs there'
        )
    return gpu


def gpu_of_file(schedule: Schedule) -> Device | None:
    """The GPU that a schedule was planned for where there was none, if there is none here either."""
    settings = schedule.solve.settings
    return named_gpu(settings.device) if settings and settings.device and not torch.cuda.is_available() else None


def cost_for(gpu: Device | None, cost: str | None) -> str:
    """The cost model to plan with: by default that of the GPU, or measured costs where the model is.

    Raises ProfileError for costs that only the GPU itself could give.
    """
    if gpu is None:
        return cost or MEASURED
    if cost in (MEASURED, COMPILED):
        raise ProfileError(
            f"cost={cost!r} needs the device, and {gpu.name} is not here\n  hint: leave it out for the roofline "
            f"model of {gpu.name}"
        )
    return cost or gpu.name


def on_device(gpu: Device | None, call: RecordedCall) -> contextlib.AbstractContextManager[RecordedCall]:
    """Meanwhile the call is one on that GPU; without one it stays as it is. Raises CaptureError on entry."""
    if gpu is None or gpu.gpu is None:
        return contextlib.nullcontext(call)
    from ..capture.cuda.on_cuda import on_cuda

    return on_cuda(call, gpu.gpu.capability, gpu.gpu.name, gpu.gpu.memory)


def on_device_of(schedule: Schedule, call: RecordedCall) -> contextlib.AbstractContextManager[RecordedCall]:
    """Meanwhile the call is made of tensors without memory, on the device that a schedule was planned for."""
    model = schedule.model
    if model.device == "cpu" or torch.cuda.is_available():
        return fake_call(call, model.device)
    if gpu := gpu_of_file(schedule):
        return on_device(gpu, call)
    from ..capture.cuda.on_cuda import on_cuda

    number = int(model.architecture.removeprefix("sm_") or 0)
    if not number:
        raise CaptureError(
            "the schedule does not say for which GPU it was planned, and there is none here",
            hint="plan it again: remate plan --device cuda:h100",
        )
    return on_cuda(call, divmod(number, 10), model.architecture, 0)


def priced_as_another(cost: str, kind: str) -> str:
    """What is to be said of the step of one kind of device (`cpu`, `cuda`) with the costs of another; "" for the same
    kind."""
    device = DEVICES.get(cost)
    if device is None or device.kind == kind:
        return ""
    if device.gpu is None:
        return f"the step is that of {kind}, with the costs of a CPU"
    return (
        f"the step is the one that PyTorch runs on the CPU, with the costs of a {cost}: other kernels run on CUDA, and "
        f"hold other memory. device='cuda:{cost}' plans the step of a {cost}"
    )


def doubts(cost: str, gpu: Device | None, call: RecordedCall) -> list[str]:
    """What is to be said before planning: costs of another kind of device than the step's, and rules of another torch.
    call: as it was given, on its own device."""
    on = next((tensor.device.type for tensor in call.model.parameters()), "cpu")
    found = priced_as_another(cost, "cuda" if gpu is not None or on == "cuda" else "cpu")
    return [said for said in (found, without_rules(torch.__version__) if gpu is not None else "") if said]


def warn_of_doubts(cost: str, gpu: Device | None, call: RecordedCall) -> None:
    """Warn of `doubts`."""
    for said in doubts(cost, gpu, call):
        warnings.warn(said, UserWarning, stacklevel=frames_to_caller())
