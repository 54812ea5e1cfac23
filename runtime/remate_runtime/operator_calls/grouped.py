"""The result of a grouped matrix product, which torch infers for bfloat16 on CUDA alone."""

from __future__ import annotations

from typing import Any

import torch


def grouped_mm(
    one: torch.Tensor, other: torch.Tensor, offs: Any = None, bias: Any = None, out_dtype: Any = None
) -> torch.Tensor:
    """An empty tensor of the type that `aten._grouped_mm` returns for these arguments, on their device: rows are padded
    to 16 bytes, on the CPU too. Raises ValueError for arguments that do not fit each other.
    """
    both = one.dim(), other.dim()
    groups = offs if both != (3, 3) else one
    if (
        not {*both} <= {2, 3}
        or not isinstance(groups, torch.Tensor)
        or groups.dim() < 1
        or one.shape[-1] != other.shape[-2]
    ):
        raise ValueError(f"matrices of shapes {tuple(one.shape)} and {tuple(other.shape)} do not fit each other")
    sizes = [one.shape[-2], other.shape[-1]]
    if one.dim() == other.dim():
        sizes.insert(0, groups.shape[0])
    dtype = out_dtype or one.dtype
    row = -(-sizes[-1] * dtype.itemsize // 16) * 16 // dtype.itemsize
    strides = [sizes[1] * row, row, 1] if len(sizes) == 3 else [row, 1]
    return torch.empty_strided(sizes, strides, dtype=dtype, device=one.device)
