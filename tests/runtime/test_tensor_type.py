"""Types of tensors: a gradient is laid out as PyTorch lays out a copy."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from remate_runtime.format.tensor_type import TensorType


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    tensor = torch.empty(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, tensor.dim() - 1))
        kind = draw(st.sampled_from(["transpose", "narrow", "step", "expand"]))
        if kind == "transpose":
            tensor = tensor.transpose(at, draw(st.integers(0, tensor.dim() - 1)))
        elif kind == "narrow":
            tensor = tensor.narrow(at, 0, draw(st.integers(1, tensor.shape[at])))
        elif kind == "step":
            tensor = tensor[(slice(None),) * at + (slice(None, None, 2),)]
        else:
            tensor = tensor.unsqueeze(at).expand(*tensor.shape[:at], draw(st.integers(1, 3)), *tensor.shape[at:])
    return tensor


@given(tensors())
def test_a_dense_type_is_that_of_a_copy(tensor: torch.Tensor) -> None:
    strides = None if tensor.is_contiguous() else tuple(tensor.stride())
    dense = TensorType("f32", tuple(tensor.shape), strides).dense
    copy = tensor.clone()
    output = dense.strides or torch.empty(dense.shape, device="meta").stride()
    assert all(n < 2 or have == want for n, have, want in zip(copy.shape, output, copy.stride(), strict=True))
    assert dense.nbytes == 4 * tensor.numel()
