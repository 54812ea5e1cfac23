"""A model and a call of it on a GPU that is not here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from ..fake_call import fake_call
from ..recorded import RecordedCall
from .attention import Capability
from .no_gpu import no_gpu
from .rules import rules


@contextlib.contextmanager
def on_cuda(call: RecordedCall, capability: Capability, name: str, memory: int) -> Iterator[RecordedCall]:
    """The call as it would be made on a GPU of this capability; an ambient autocast of the CPU is CUDA's meanwhile.
    name, memory: what torch says of the GPU; bytes.

    Raises CaptureError.
    """
    with no_gpu(capability, name, memory), rules(), fake_call(call, "cuda") as made, contextlib.ExitStack() as stack:
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
            stack.enter_context(torch.autocast("cpu", enabled=False))
            stack.enter_context(torch.autocast("cuda", dtype))
        yield made
