"""Compares the results of a planned model with those of the model itself in eager PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Seen = dict[str, Tensor | None]

# Differences that some limit of docs/limits.md may explain: relative to the largest element of a tensor.
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 2e-2}
_SMALL = 1e-3  # of a tensor with smaller elements, such as a bias before a batch norm, the difference itself counts


def differences(wanted: Seen, got: Seen) -> dict[str, float]:
    """What two runs saw differently, with the size of each difference: infinite where no number says it.

    Equal to the bit is no difference, and neither are two NaN.
    """
    missing = {name: float("inf") for name in sorted(wanted.keys() ^ got.keys())}
    sizes = {name: _difference(wanted[name], got[name]) for name in wanted if name in got}
    return missing | {name: size for name, size in sizes.items() if size}


def _difference(wanted: Tensor | None, got: Tensor | None) -> float:
    if wanted is None or got is None:
        return 0.0 if wanted is got else float("inf")
    if (wanted.shape, wanted.dtype, wanted.requires_grad) != (got.shape, got.dtype, got.requires_grad):
        return float("inf")
    finite = wanted.isfinite()
    if not torch.equal(finite, got.isfinite()) or not _same_bits(wanted[~finite], got[~finite]):
        return float("inf")
    if not finite.any() or torch.equal(wanted[finite], got[finite]):
        return 0.0
    exact, other = wanted.detach()[finite].double(), got.detach()[finite].double()
    return float((exact - other).abs().max() / max(float(exact.abs().max()), _SMALL))


def _same_bits(wanted: Tensor, got: Tensor) -> bool:
    return torch.equal(wanted.isnan(), got.isnan()) and torch.equal(wanted.nan_to_num(), got.nan_to_num())


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors of an output, in order."""
    if isinstance(value, Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for item in items for tensor in tensors_of(item)]
