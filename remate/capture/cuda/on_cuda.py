"""A model and a call of it on a GPU that this machine does not have."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import torch

from ..fake_call import fake_call
from ..recorded import RecordedCall
from .attention import Capability
from .no_gpu import no_gpu
from .rules import rules


@contextlib.contextmanager
def on_cuda(call: RecordedCall, capability: Capability, name: str, memory: int) -> Generator[RecordedCall]:
    """Yield the call on a GPU of this capability. An ambient autocast of the CPU becomes CUDA's.

    Args:
        call: The call.
        capability: Compute capability.
        name: The GPU's name in torch.
        memory: The GPU's memory in bytes.

    Raises:
        CaptureError: See `no_gpu`.
    """
    with (
        no_gpu(capability, name, memory),
        rules(),
        fake_call(call, "cuda") as cuda_call,
        contextlib.ExitStack() as stack,
    ):
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
            stack.enter_context(torch.autocast("cpu", enabled=False))
            stack.enter_context(torch.autocast("cuda", dtype))
        yield cuda_call
