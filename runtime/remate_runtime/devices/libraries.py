"""The versions of the libraries that choose and run the operators of a device."""

from __future__ import annotations

import torch

from ..support.platforms import platform_text


def cuda_version() -> str:
    """Return the version of CUDA that this PyTorch was built with ("13.0"), or ""."""
    return torch.version.cuda or ""


def cudnn_version() -> str:
    """Return the version of the installed cuDNN ("9.20.0"), or ""."""
    version = torch.backends.cudnn.version() if cuda_version() else None
    return cudnn_text(version) if version else ""


def cudnn_text(version: int) -> str:
    """Return the text of a version of cuDNN from 9 on: 92000 is "9.20.0"."""
    return f"{version // 10_000}.{version // 100 % 100}.{version % 100}"


def present_platform(device: torch.device) -> str:
    """Return a device of this machine and its libraries as text."""
    on_gpu = device.type == "cuda"
    name = "sm_{}{}".format(*torch.cuda.get_device_capability(device)) if on_gpu else device.type
    versions = (cuda_version(), cudnn_version()) if on_gpu else ("", "")
    return platform_text(name, torch.__version__.split("+")[0], *versions)
