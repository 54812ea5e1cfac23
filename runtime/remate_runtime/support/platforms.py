"""A device and its libraries as text. Does not require torch."""

from __future__ import annotations


def platform_text(device: str, pytorch: str, cuda: str, cudnn: str) -> str:
    """Return a device and its libraries as text.

    Args:
        device: Architecture of a GPU, or "cpu".
        pytorch: Version of PyTorch.
        cuda: Version of CUDA, or "".
        cudnn: Version of cuDNN, or "".
    """
    named = (("torch", pytorch), ("CUDA", cuda), ("cuDNN", cudnn))
    return ", ".join([device, *(f"{name} {version}" for name, version in named if version)])
