"""The result of a grouped matrix product. torch infers it for bfloat16 on CUDA only."""

from __future__ import annotations

from typing import Any

import torch


def grouped_mm(
    left: torch.Tensor, right: torch.Tensor, offs: Any = None, bias: Any = None, out_dtype: Any = None
) -> torch.Tensor:
    """Return an empty tensor of the type that `aten._grouped_mm` returns for these arguments, on their device.

    Rows are padded to 16 bytes, also on the CPU.

    Raises:
        ValueError: The arguments do not fit each other.
    """
    both = left.dim(), right.dim()
    groups = offs if both != (3, 3) else left
    if (
        not {*both} <= {2, 3}
        or not isinstance(groups, torch.Tensor)
        or groups.dim() < 1
        or left.shape[-1] != right.shape[-2]
    ):
        raise ValueError(f"matrices of shapes {tuple(left.shape)} and {tuple(right.shape)} do not fit each other")
    sizes = [left.shape[-2], right.shape[-1]]
    if left.dim() == right.dim():
        sizes.insert(0, groups.shape[0])
    dtype = out_dtype or left.dtype
    row = -(-sizes[-1] * dtype.itemsize // 16) * 16 // dtype.itemsize
    strides = [sizes[1] * row, row, 1] if len(sizes) == 3 else [row, 1]
    return torch.empty_strided(sizes, strides, dtype=dtype, device=left.device)
