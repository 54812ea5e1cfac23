"""Settings of the process that the user's code reads: default dtype, threads, deterministic algorithms, process groups,
environment variables.

The self-check compares the first call with the model. The guard reads the settings again at every later call.
"""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

Ask = Callable[[], Any]
_OF_TORCH = (
    "get_default_dtype",
    "get_default_device",
    "get_num_threads",
    "get_num_interop_threads",
    "get_deterministic_debug_mode",
    "get_float32_matmul_precision",
    "are_deterministic_algorithms_enabled",
    "is_deterministic_algorithms_warn_only_enabled",
    "is_anomaly_enabled",
)
_OF_ATTENTION = ("flash_sdp_enabled", "math_sdp_enabled", "mem_efficient_sdp_enabled", "cudnn_sdp_enabled")
_OF_GROUPS = ("is_initialized", "get_world_size", "get_backend")
_FLAGS = "torch.backends"  # modules whose attributes are settings


def questions(value: object, rest: tuple[str, ...], texts: Iterable[str]) -> dict[str, Ask]:
    """Return the settings that a name of the user's code reads, as functions that read them, by name.

    Args:
        value: What the name resolves to.
        rest: Attributes of it that the code reads.
        texts: Texts in the code, which may name environment variables.
    """
    if isinstance(value, types.ModuleType):
        if rest and value.__name__.startswith(_FLAGS) and not callable(getattr(value, rest[0], None)):
            return {f"{value.__name__}.{rest[0]}": functools.partial(getattr, value, rest[0], None)}
        return {}
    if value is os.environ or value is os.getenv:
        return {f"the environment variable {text}": functools.partial(_variable, text) for text in texts}
    for name, function in _functions().items():
        if value is function:
            return {f"{name}()": functools.partial(_asked, function)}
    return {}


def _variable(name: str) -> str | None:
    try:
        return os.environ.get(name)
    except ValueError:  # a text that names no variable
        return None


def _functions() -> dict[str, Any]:
    modules: list[tuple[str, types.ModuleType, tuple[str, ...]]] = [
        ("torch", torch, _OF_TORCH),
        ("torch.backends.cuda", torch.backends.cuda, _OF_ATTENTION),
    ]
    if (distributed := sys.modules.get("torch.distributed")) is not None:
        modules.append(("torch.distributed", distributed, _OF_GROUPS))
    return {f"{label}.{name}": getattr(module, name, None) for label, module, names in modules for name in names}


def _asked(function: Any) -> Any:
    try:
        answer = function()
    except Exception as error:  # no process group
        return type(error).__name__
    return answer if isinstance(answer, bool | int | str) else str(answer)
