"""The versions of PyTorch, CUDA and cuDNN for which a step of CUDA is captured."""

from __future__ import annotations

from typing import Any

import torch

from remate_runtime.devices import libraries

_CUDA = "13.0"  # of the builds of these versions whose rules are stated


def cudnn_of_build() -> int:
    """Return the version of cuDNN in builds of this torch for CUDA 13."""
    return 92400 if release(torch.__version__) >= (2, 14) else 92000


def chosen_for(without_device: bool) -> dict[str, Any]:
    """Return the fields of a file's model that say for which libraries, and how, CUDA's operators were chosen.

    Args:
        without_device: The step was traced with tensors without memory. A CUDA build that sees a device then chooses
            by its own dispatch, and any other build by rules.
    """
    count = getattr(torch._C, "_cuda_getDeviceCount", lambda: 0)
    if without_device and not count():
        return {"cuda": _CUDA, "cudnn": libraries.cudnn_text(cudnn_of_build()), "captured": "by rules"}
    how = "by torch's dispatch" if without_device else "on the device"
    return {"cuda": libraries.cuda_version(), "cudnn": libraries.cudnn_version(), "captured": how}


def release(version: str) -> tuple[int, int]:
    """Major and minor version of a PyTorch ("2.13.0+cpu")."""
    major, minor = version.split("+")[0].split(".")[:2]
    return int(major), int(minor)
