"""Values of attributes as a digest writes them: plain ones in full, functions by name and source, the rest by class."""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
import math
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ..operator_calls.overloads import SHORT_DTYPES
from .ownership import qualified

_LONG = 200  # characters of a text that is written down
MAX_CONSTANT = 65_536  # elements of a constant that a file may hold
_MANY = 64  # plain values inside one attribute that are written down
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.MethodWrapperType)
_UNSEEN = (torch.Tensor, nn.Module, torch.Generator, torch.device, torch.cuda.Stream)

Hash = Callable[[Any], str | None]  # of a function: of the user's own code, or None


class Opaque:
    """A value that a digest does not hold: tensors and modules are compared by the binding."""


OPAQUE = Opaque()
ABSENT = {"absent": True}


def short_hash(text: str) -> str:
    """64 bits are enough to notice a change; nothing relies on them against somebody who wants a collision."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def recorded(value: Any, source: Hash, tensors: bool = False) -> Any:
    """What a digest writes for a value, or OPAQUE. source: the hash of a function of the user's own, None of any other.
    tensors: a tensor is written, too; those inside of containers always are, as far as a step may hold their contents."""
    made = _tensor(value) if tensors and isinstance(value, torch.Tensor) else _recorded(value, source, 0)
    if isinstance(made, (list, dict)) and _count(made) > _MANY:
        return {"length": len(value), "hash": short_hash(json.dumps(made, sort_keys=True))}
    return made


def _recorded(value: Any, source: Hash, depth: int) -> Any:
    if value is None or isinstance(value, bool) or depth > 8:
        return value if depth <= 8 else OPAQUE
    if isinstance(value, enum.Enum):
        return {"is": f"{qualified(type(value))}.{value.name}"}
    if isinstance(value, int):
        return int(value) if -(1 << 63) <= value < 1 << 63 else {"hash": short_hash(str(value))}
    if isinstance(value, float):
        return float.__pos__(value) if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]} if math.isfinite(abs(value)) else {"hash": short_hash(repr(value))}
    if isinstance(value, str):
        written = len(value) <= _LONG and not any("\ud800" <= letter <= "\udfff" for letter in value)
        return str(value) if written else {"length": len(value), "hash": short_hash(value)}
    if isinstance(value, torch.dtype):
        return {"dtype": SHORT_DTYPES[value]} if value in SHORT_DTYPES else {"is": str(value)}
    if isinstance(value, torch.Tensor) and depth:
        return _tensor(value)
    if isinstance(value, _UNSEEN):
        return OPAQUE
    if isinstance(value, (list, tuple, set, frozenset, Mapping)):
        return _container(value, source, depth)
    return _by_name(value, source, depth)


def _tensor(value: torch.Tensor) -> Any:
    """Hash of a tensor's contents, if a step could hold them as a constant."""
    with torch._C.DisableTorchFunction():  # a trace may be listening
        if not is_constant(value):
            return OPAQUE
        return {"hash": short_hash(f"{value.dtype}{list(value.shape)}{value.tolist()}")}


def is_constant(value: Any) -> bool:
    """Whether forward reads this tensor as a constant, unless a module registers it: its contents go into the step."""
    return (
        type(value) is torch.Tensor
        and not value.requires_grad
        and value.layout is torch.strided
        and value.device.type != "meta"
        and value.numel() <= MAX_CONSTANT
    )


def _container(value: Any, source: Hash, depth: int) -> Any:
    if isinstance(value, Mapping):
        items = {str(key): _recorded(item, source, depth + 1) for key, item in value.items()}
        fits = len(items) == len(value) and all(len(key) <= _LONG and v is not OPAQUE for key, v in items.items())
        return {"dict": items} if fits else {"length": len(value)}
    items = [_recorded(item, source, depth + 1) for item in value]
    if any(item is OPAQUE for item in items):
        return {"length": len(value)}
    return sorted(items, key=repr) if isinstance(value, (set, frozenset)) else items


def _by_name(value: Any, source: Hash, depth: int) -> Any:
    """Functions, classes, partials; any other object by its class."""
    if isinstance(value, functools.partial):
        held = [*value.args, *(item for pair in sorted(value.keywords.items()) for item in pair)]
        inner = [_recorded(item, source, depth + 1) for item in (value.func, *held)]
        return {"is": "functools.partial", "of": [None if item is OPAQUE else item for item in inner]}
    value = unwrapped(value)
    if isinstance(value, (type, *_FUNCTIONS)) or hasattr(value, "__code__"):
        made = source(value)
        return {"is": qualified(value), **({"source": made} if made else {})}
    if type(value).__module__ == "numpy" and hasattr(value, "tobytes") and value.nbytes <= 1 << 20:
        kind = f"{value.dtype}{list(value.shape)}"
        return {"hash": short_hash(kind + value.tobytes().hex())}
    return {"object": qualified(type(value))}


def unwrapped(function: Any) -> Any:
    """The function that torch.compile was given."""
    return getattr(function, "_torchdynamo_orig_callable", function)


def is_config(value: Any) -> bool:
    """Whether an object is a bag of settings whose fields are compared one by one."""
    kind = type(value)
    if isinstance(value, (type, torch.Tensor, nn.Module, enum.Enum)):
        return False
    named = any(
        base.__name__ in ("PretrainedConfig", "PreTrainedConfig", "Namespace", "SimpleNamespace")
        for base in kind.__mro__
    )
    return named or dataclasses.is_dataclass(value)


def _count(made: Any) -> int:
    if isinstance(made, dict):
        return sum(map(_count, made.values()))
    return sum(map(_count, made)) if isinstance(made, list) else 1
