"""Turns whatever tracing raised into a CaptureError that names the module, the line and the remedy."""

from __future__ import annotations

import os
import re
from typing import Any

from torch import nn

from remate_runtime.bind import modules_by_path

from ..errors import CaptureError
from . import torch_api
from .advice import BRANCH, advice, logged
from .eager_kernels import RefusedOperatorError
from .places import failed_line
from .refused_calls import ASSIGNS_DATA
from .static_parts import static_parts
from .watch import AttributeWatch

_YES_OR_NO = ("aten.equal", "aten.allclose", "aten.is_nonzero")
_WRITES_ELSEWHERE = (
    "forward writes in place to a tensor that is neither an input, a parameter nor a buffer",
    "register it with register_buffer, or update it in the training loop; a module in a plain list or a global is not "
    "registered, so its buffers are not: use nn.ModuleList, or make it an attribute",
)
_FROM_ELSEWHERE = (
    "aot_autograd expected to have an entirely functional graph",
    "mutating a non-functional tensor with a functional tensor",
)
_MADE = (
    "forward keeps tensors of one call for its next one, or makes parameters or buffers",
    "call the model once before planning if only the first call does that; otherwise keep each tensor in an attribute "
    "of its own, self.h = h.detach(), or pass it to forward and return it",
)
_NESTED = "pad to a batch with a mask (torch.nested.to_padded_tensor), and leave torch.nested out of the module"
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
        if not error.message.startswith(ASSIGNS_DATA) or error.parts:
            return error
        parts = static_parts(model, error.module)  # a momentum encoder: the other one can be planned
        return CaptureError(error.message, error.module, error.source, error.hint, parts)
    module, source = watch.module, failed_line(error) or watch.place.line
    message, hint = _what(error, _module(model, module), module)
    parts = static_parts(model, module)
    return CaptureError(message, module, source, hint, parts, settles=message == _MADE[0])


def _what(error: Exception, module: nn.Module | None, path: str) -> tuple[str, str]:
    if isinstance(error, RefusedOperatorError):
        return error.message, error.hint
    if isinstance(error, torch_api.DATA_DEPENDENT):
        operator = getattr(error, "func", None) or (error.args[0] if error.args else "")
        name = _operator(operator)
        hint = advice(error, name, module, path)
        if "_local_scalar_dense" in name:
            return "forward reads a tensor's value (.item(), bool(), int(), or a Python `if` on a tensor)", hint
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
        return f"forward depends on a tensor's value: {text}", BRANCH
    if "no fake impl" in text:
        return f"an operator does not say what shape it returns: {text}", _REGISTER
    if "Unexpected fake buffer" in text or "Unexpected fake param" in text:
        return _MADE
    if "numpy" in text:
        return f"forward passes a tensor to numpy: {text}", logged(error)
    if "self.shape_env must not be None" in text:
        return "forward makes a nested tensor, whose sizes depend on the data", _NESTED
    if any(each in text for each in _FROM_ELSEWHERE):
        return _WRITES_ELSEWHERE
    if isinstance(error, StopIteration):
        return _ENDED
    return f"the model cannot be traced: {kind}: {text}", "run the model eagerly on the same inputs to see if it works"


def _module(model: nn.Module, path: str) -> nn.Module | None:
    return modules_by_path(model, each_once=True).get(path)


def _operator(operator: Any) -> str:
    """`aten.nonzero` for an overload, else its text."""
    return str(operator).removesuffix(".default")
