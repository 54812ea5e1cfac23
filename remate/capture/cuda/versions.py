"""The versions of PyTorch, CUDA and cuDNN for which a step of CUDA is captured."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from typing import Any

import torch

from remate_runtime.devices import libraries

_CUDA = "13.0"  # of the builds of torch that the registry has for these versions
_CUDNN = {(2, 11): 91900, (2, 12): 92000, (2, 13): 92000}  # which each of these requires
_NEWER_CUDNN = 92400


def cuda_of_build() -> str:
    """Return the version of CUDA for which this torch is built, or a CUDA build of its version in the registry."""
    return libraries.cuda_version() or _CUDA


def cudnn_of_build() -> int:
    """Return the version of cuDNN of this torch if it is a CUDA build, or of such a build of its version."""
    own = torch.backends.cudnn.version() if libraries.cuda_version() else None
    return own or _CUDNN.get(release(torch.__version__), _NEWER_CUDNN)


def chosen_for(without_device: bool) -> dict[str, Any]:
    """Return the fields of a file's model that say for which libraries, and how, CUDA's operators were chosen.

    Args:
        without_device: The step was traced with tensors without memory. A CUDA build that sees a device then chooses
            by its own dispatch, and any other build by rules.
    """
    count = getattr(torch._C, "_cuda_getDeviceCount", lambda: 0)
    if without_device and not count():
        return {"cuda": cuda_of_build(), "cudnn": libraries.cudnn_text(cudnn_of_build()), "captured": "by rules"}
    how = "by torch's dispatch" if without_device else "on the device"
    return {"cuda": libraries.cuda_version(), "cudnn": libraries.cudnn_version(), "captured": how}


def release(version: str) -> tuple[int, int]:
    """Major and minor version of a PyTorch ("2.13.0+cpu")."""
    major, minor = version.split("+")[0].split(".")[:2]
    return int(major), int(minor)
