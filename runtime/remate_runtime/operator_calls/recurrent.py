"""LSTM layers as oneDNN runs them on the CPU: an operator for all time steps of a direction, and one for backward.

torch infers no workspace for it, although it is most of what the layer keeps for backward. The kernel assumes
contiguous arguments of consistent sizes without checking. Time is always their first dimension, because the kernel does
not read `batch_first`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..devices.onednn_rows import row_elements
from ..torch_private.execution import DisableAutocast, set_gradients_enabled
from ..torch_private.operators import function_of

LAYER = torch.ops.aten.mkldnn_rnn_layer.default
LAYER_BACKWARD = torch.ops.aten.mkldnn_rnn_layer_backward.default
_LSTM = 2  # `mode`
_GATES = 4
_PAGE = 4096
_MOST = 1 << 31  # oneDNN uses 32-bit counts of elements in some places


def lstm_layer(
    input: torch.Tensor, w0: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, w3: torch.Tensor, hx: torch.Tensor,
    cx: torch.Tensor,
    reverse: bool, batch_sizes: list[int], mode: int, hidden_size: int, num_layers: int, has_biases: bool,
    bidirectional: bool,
    batch_first: bool, train: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return empty tensors of the types that `aten.mkldnn_rnn_layer` returns with gradients enabled.

    These are output, last hidden and cell state, workspace.

    Raises:
        ValueError: The arguments do not fit each other, or are not an LSTM's.
    """
    _check((input, w0, w1, w2, w3, hx, cx), (mode, hidden_size, batch_sizes), has_biases)
    time, batch, width = input.shape
    output = input.new_empty((time, batch, hidden_size))
    size = workspace_bytes(time, batch, width, hidden_size, input.itemsize)
    workspace = torch.empty(size, dtype=torch.uint8, device=input.device)
    return output, hx.new_empty(hx.shape), cx.new_empty(cx.shape), workspace


def lstm_layer_backward(
    input: torch.Tensor, w0: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, w3: torch.Tensor, hx: torch.Tensor,
    cx: torch.Tensor,
    output: torch.Tensor, hy: torch.Tensor, cy: torch.Tensor, grad_output: torch.Tensor | None, grad_hy: torch.Tensor
    | None,
    grad_cy: torch.Tensor | None, reverse: bool, mode: int, hidden_size: int, num_layers: int, has_biases: bool,
    train: bool,
    bidirectional: bool, batch_sizes: list[int], batch_first: bool, workspace: torch.Tensor,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Return empty tensors of the types that `aten.mkldnn_rnn_layer_backward` returns.

    These are the gradients of the first seven arguments, in single precision.

    Raises:
        ValueError: As `lstm_layer`, or all gradients are missing.
    """
    leading = (input, w0, w1, w2, w3, hx, cx)
    _check(leading, (mode, hidden_size, batch_sizes), has_biases)
    if grad_output is None and grad_hy is None and grad_cy is None:
        raise ValueError("it has no gradient of any result")
    for result, grad in ((output, grad_output), (hy, grad_hy), (cy, grad_cy)):
        _same(result, input)
        if grad is not None and (grad.shape != result.shape or grad.dtype is not result.dtype):
            raise ValueError(f"a gradient of shape {tuple(grad.shape)} for a result of shape {tuple(result.shape)}")
    time, batch, width = input.shape
    if output.shape != (time, batch, hidden_size) or hy.shape != hx.shape or cy.shape != cx.shape:
        raise ValueError("its results do not fit its arguments")
    if workspace.numel() != workspace_bytes(time, batch, width, hidden_size, input.itemsize):
        raise ValueError(f"a workspace of {workspace.numel()} bytes does not fit its arguments")
    shapes = [t.shape for t in leading]
    shapes[3] = shapes[4] = torch.Size((_GATES * hidden_size,))
    results = [input.new_empty(shape, dtype=torch.float32) for shape in shapes]
    return tuple(results)


def workspace_bytes(time: int, batch: int, width: int, hidden: int, itemsize: int) -> int:
    """Return the size of the workspace that forward leaves for backward.

    It consists of gates, hidden states, states of layer and cell, and their gradients, each aligned to a page (oneDNN,
    `src/cpu/rnn/rnn_utils.hpp`).

    Args:
        time: Number of time steps.
        batch: Batch size.
        width: Width of the input.
        hidden: Width of the hidden state.
        itemsize: Bytes of an element of the input.
    """
    wide, cells, states = max(width, hidden), time * batch, 2 * (time + 1) * batch
    kept = [
        cells * row_elements(_GATES * hidden, itemsize) * itemsize,
        cells * row_elements(hidden, itemsize) * itemsize,
        states * row_elements(wide, itemsize) * itemsize,
        states * hidden * itemsize,
        states * row_elements(wide, 4) * 4,
        states * row_elements(wide, 4) * 4,
        states * hidden * 4,
    ]
    return sum(-(-size // _PAGE) * _PAGE for size in kept)


def uses_known_workspace(dtype: torch.dtype) -> bool:
    """Return whether the installed oneDNN uses the sizes of `workspace_bytes`, tested on two small layers."""
    return all(
        _left(dtype, *sizes) == workspace_bytes(*sizes, dtype.itemsize) for sizes in ((1, 1, 1, 1), (3, 5, 260, 64))
    )


def _left(dtype: torch.dtype, time: int, batch: int, width: int, hidden: int) -> int:
    gates = _GATES * hidden
    shapes = [
        (time, batch, width),
        (gates, width),
        (gates, hidden),
        (gates,),
        (gates,),
        (batch, hidden),
        (batch, hidden),
    ]
    tensors = [torch.zeros(shape, dtype=dtype) for shape in shapes]
    try:
        with DisableAutocast():
            layer = whole_layer(function_of(LAYER))
            return layer(*tensors, False, [], _LSTM, hidden, 1, True, False, False, True)[3].numel()
    except RuntimeError:  # a torch without oneDNN, or an unsupported processor
        return -1


def whole_layer(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `function` (forward or backward) to run as in eager: with contiguous arguments and gradients enabled.

    Without gradients, forward leaves no workspace.
    """

    def run(*args: Any) -> Any:
        enabled = torch.is_grad_enabled()
        set_gradients_enabled(True)
        try:
            return function(args[0].contiguous(), *args[1:5], args[5].contiguous(), args[6].contiguous(), *args[7:])
        finally:
            set_gradients_enabled(enabled)

    return run


def _check(tensors: tuple[torch.Tensor, ...], sizes: tuple[int, int, list[int]], biases: bool) -> None:
    mode, hidden, batch_sizes = sizes
    if mode != _LSTM or batch_sizes:
        raise ValueError("only LSTMs over sequences of one length run as one layer")
    layer_input = tensors[0]
    if layer_input.dim() != 3:
        raise ValueError(f"an input of {layer_input.dim()} dimensions")
    time, batch, width = layer_input.shape
    gates = _GATES * hidden
    bias = [(gates,), (gates,)] if biases else [tuple(t.shape) for t in tensors[3:5]]
    wanted = [(time, batch, width), (gates, width), (gates, hidden), *bias, (batch, hidden), (batch, hidden)]
    for tensor, shape in zip(tensors, wanted, strict=True):
        _same(tensor, layer_input)
        if tuple(tensor.shape) != shape or 0 in shape:
            raise ValueError(f"a tensor of shape {tuple(tensor.shape)}, where the others ask for {shape}, none empty")
    if layer_input.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"elements of {layer_input.dtype}")
    if 2 * (time + 1) * batch * max(width, gates) >= _MOST or max(tensor.numel() for tensor in tensors) >= _MOST:
        raise ValueError("more elements than oneDNN counts")


def _same(tensor: torch.Tensor, other: torch.Tensor) -> None:
    if tensor.dtype is not other.dtype or tensor.device != other.device:
        raise ValueError(f"tensors of {tensor.dtype} and {other.dtype}, or on more than one device")
