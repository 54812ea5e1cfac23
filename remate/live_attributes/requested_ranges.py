"""Resolves the attributes and inputs in `live=` of `remate.plan`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType

from torch import nn

from remate_runtime.bind import is_number, modules_by_path
from remate_runtime.format import did_you_mean
from remate_runtime.staleness import attribute, is_config

from ..errors import CaptureError

_NAME = re.compile(r"[A-Za-z0-9_~-]+(?:\.[A-Za-z0-9_~-]+)*")
_MACHINERY = frozenset((*vars(nn.Module()), *vars(nn.Module)))
_MANY = 1 << 12
NO_INPUTS: Mapping[str, float] = MappingProxyType({})


def live_numbers(
    model: nn.Module, requested: Sequence[str], inputs: Mapping[str, float] = NO_INPUTS
) -> dict[str, tuple[str, ...]]:
    """Return the paths of attributes, in modules and in their configs, and names of inputs for each requested name.

    `*` matches a part between two dots: `h.*.drop.p`.

    Args:
        model: The live model.
        requested: Names, as they were written.
        inputs: The numbers among the arguments of the call, by name.

    Raises:
        CaptureError: A name matches no number, or an attribute and an input.
    """
    if isinstance(requested, str):
        raise CaptureError(f"live is the text {requested!r}", hint=f"name attributes in a list: live=[{requested!r}]")
    paths_of: dict[str, tuple[str, ...]] = {}
    known = dict(_numbers(model))
    both = known.keys() & inputs.keys()
    known |= inputs
    taken: set[str] = set()
    for pattern in requested:
        paths = [path for path in known if _matches(pattern, path)]
        if not paths:
            raise CaptureError(f"live: {_why(model, pattern)}", hint=did_you_mean(pattern, known, _hint(known)))
        for path in paths:
            if not _NAME.fullmatch(path):
                raise CaptureError(f"live: a file cannot name the attribute {path!r}", hint="rename the module")
            if path in both:
                raise CaptureError(f"live: both an attribute and an input are called {path!r}", hint="rename one")
        paths_of[pattern] = tuple(path for path in paths if path not in taken)
        taken |= set(paths)
    if len(taken) > _MANY:
        raise CaptureError(f"live: {len(taken)} attributes, over {_MANY}", hint="name those that change")
    return {pattern: paths for pattern, paths in paths_of.items() if paths}


def _numbers(model: nn.Module) -> Iterator[tuple[str, float]]:
    """Yield all attributes of modules and of their configs that are numbers."""
    for path, module in modules_by_path(model, each_once=True).items():
        names = dict.fromkeys([*vars(module), *(name for base in type(module).__mro__ for name in vars(base))])
        for name in names:
            value = None if name in _MACHINERY or name.startswith("__") else attribute(module, name)
            full = f"{path}.{name}".lstrip(".")
            if is_number(value):
                yield full, value
            elif is_config(value) and hasattr(value, "__dict__"):
                yield from ((f"{full}.{key}", each) for key, each in vars(value).items() if is_number(each))


def _matches(pattern: str, path: str) -> bool:
    wanted, parts = pattern.split("."), path.split(".")
    return len(wanted) == len(parts) and all(fnmatchcase(part, want) for part, want in zip(parts, wanted, strict=True))


def _why(model: nn.Module, pattern: str) -> str:
    *holders, name = pattern.split(".")
    for path, module in modules_by_path(model, each_once=True).items():
        if _matches(".".join(holders), path) and hasattr(module, name):
            kind = type(getattr(module, name)).__name__
            return f"{pattern!r} is of type {kind}, and a live number is an int or float"
    return f"neither the model nor its call has a number {pattern!r}"


def _hint(known: dict[str, float]) -> str:
    listed = ", ".join(list(known)[:8])
    return (
        f"numbers that the model has: {listed or 'none'}; "
        "a tensor or buffer is read at every call without being declared"
    )
