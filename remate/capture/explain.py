"""Turns whatever tracing raised into a CaptureError that names the module, the line and the remedy."""

from __future__ import annotations

import os
import re
from typing import Any

from torch import nn

from ..errors import CaptureError
from . import torch_api
from .eager_kernels import RefusedOperatorError
from .places import failed_line
from .static_parts import static_parts
from .watch import AttributeWatch

_BRANCH = (
    "write the choice with tensor operations (torch.where, masking), or take it out of the module; "
    "schedules are for static graphs"
)
_PADDED = (
    "pass the padded batch, and mask the positions after each length: the contents of a packed sequence at each time "
    "step depends on its lengths"
)
_INSTEAD = {  # by operator: a way that is known to work
    "aten._ctc_loss": (
        "let the module return the log-probabilities, plan that, and call ctc_loss on what the planned model returns: "
        "it is the same step"
    ),
    "aten._pack_padded_sequence": _PADDED,
}
_YES_OR_NO = ("aten.equal", "aten.allclose", "aten.is_nonzero")
_CAUSAL = (
    "say is_causal=True (or False) in the call, of nn.Transformer src_is_causal= and tgt_is_causal=: without, it looks "
    "at the mask's values to find out"
)
_WRITES_ELSEWHERE = (
    "forward writes in place to a tensor that is neither an input, a parameter nor a buffer",
    "register it with register_buffer, or update it in the training loop",
)
_ENDED = (
    "forward takes an item of an iterator, which ended: planning calls forward several times",
    "take the item in the training loop, and pass it to forward; or give the iterator more items",
)
_FOLDER = "TORCHINDUCTOR_CACHE_DIR"  # torch makes it when it imports what traces
_SOURCE = re.compile(r"self\.get_(?:buffer|parameter)\('model\.([^']+)'\)")
_REGISTER = "give it a fake implementation (torch.library.register_fake)"


def explained(error: Exception, watch: AttributeWatch, model: nn.Module) -> CaptureError:
    """Return the CaptureError for `error`, with the parts that can be traced."""
    if isinstance(error, CaptureError) and not isinstance(error, RefusedOperatorError):
        return error
    module, source = watch.module, failed_line(error) or watch.place.line
    message, hint = _what(error)
    if hint == _BRANCH and isinstance(_module(model, module), nn.RNNBase):
        hint = _PADDED
    if hint == _BRANCH and isinstance(_module(model, module), nn.TransformerEncoder | nn.TransformerDecoder):
        hint = _CAUSAL
    if hint == _BRANCH and (drops := _layer_drop(_module(model, module))):
        path = ".".join(part for part in ("model", module, drops) if part)
        hint = f"forward leaves out layers at random; to plan and to train without: {path} = 0.0"
    parts = [] if message == _WRITES_ELSEWHERE[0] else static_parts(model, module)  # no module is known
    return CaptureError(message, module, source, hint, parts)


def _what(error: Exception) -> tuple[str, str]:
    if isinstance(error, RefusedOperatorError):
        return error.message, error.hint
    if isinstance(error, torch_api.DATA_DEPENDENT):
        operator = getattr(error, "func", None) or (error.args[0] if error.args else "")
        name = _operator(operator)
        if "_local_scalar_dense" in name:
            return "forward reads a tensor's value (.item(), bool(), int(), or a Python `if` on a tensor)", _BRANCH
        hint = next((way for start, way in _INSTEAD.items() if name.startswith(start)), _BRANCH)
        return f"{'' if name in _YES_OR_NO else 'the shape of '}what {name} returns depends on the data", hint
    if isinstance(error, torch_api.NO_FAKE):
        operator = getattr(error, "func", None) or (error.args[0] if error.args else "")
        return f"operator {_operator(operator)} does not say what shape it returns", _REGISTER
    if isinstance(error, OSError) and error.filename is not None and error.filename == os.environ.get(_FOLDER):
        hint = f"let {_FOLDER} name a folder that can be written, or unset it"
        return f"torch cannot make its folder {error.filename} ({error.strerror})", hint
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    text, kind = text[:400], type(error).__name__
    if "share storage but are not differentiable views" in text:
        names = " and ".join(repr(name) for name in _SOURCE.findall(text))
        return f"forward writes into memory that {names} share", torch_api.ONE_OF_TWO
    if "data-dependent" in text or "GuardOnDataDependent" in kind:
        return f"forward depends on a tensor's value: {text}", _BRANCH
    if "no fake impl" in text:
        return f"an operator does not say what shape it returns: {text}", _REGISTER
    if "Unexpected fake buffer" in text or "Unexpected fake param" in text:
        return "forward makes parameters or buffers in its first call", "call the model once before planning"
    if "numpy" in text:
        return f"forward passes a tensor to numpy: {text}", "use the functions of torch, or take it out of the module"
    if "aot_autograd expected to have an entirely functional graph" in text:
        return _WRITES_ELSEWHERE
    if isinstance(error, StopIteration):
        return _ENDED
    return f"the model cannot be traced: {kind}: {text}", "run the model eagerly on the same inputs to see if it works"


def _module(model: nn.Module, path: str) -> nn.Module | None:
    return dict(model.named_modules()).get(path)


def _layer_drop(module: nn.Module | None) -> str:
    """The attribute with the rate at which a module skips layers, as in Hugging Face models, or ""."""
    held = {} if module is None else vars(module)
    names = (name for name, value in held.items() if "layerdrop" in name.lower() and isinstance(value, float) and value)
    return next(names, "")


def _operator(operator: Any) -> str:
    """`aten.nonzero` for an overload, else its text."""
    return str(operator).removesuffix(".default")
