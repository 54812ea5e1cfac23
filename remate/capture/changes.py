"""Attributes that forward itself changes: a flag set by the first call, a counter."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from remate_runtime.staleness import MISSING, attribute

from ..errors import CaptureError
from .assigned import assigned_at
from .carried import holds, refuse_carried
from .outside import Changed


class Change(NamedTuple):
    """A changed attribute of a module or config. raw: the value that forward set. was, now: the values before and
    after, as in a digest."""

    obj: Any
    name: str
    raw: Any
    was: Any
    now: Any


class TraceChanges:
    """The changes of one trace, by path."""

    def __init__(self, by_path: Mapping[str, Change]) -> None:
        self._by_path = by_path

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(self._by_path)

    def __bool__(self) -> bool:
        return bool(self._by_path)

    def __str__(self) -> str:
        more = len(self._by_path) - 5
        return ", ".join(list(self._by_path)[:5]) + (f" and {more} more" if more > 0 else "")

    @contextmanager
    def applied(self) -> Generator[None]:
        """Set the attributes of configs to the values that forward set, in the `with` block."""
        held = [(change, change.obj.__dict__.get(change.name, MISSING)) for change in self._configs()]
        try:
            for change, _ in held:
                _put(change.obj.__dict__, change.name, change.raw)
            yield
        finally:
            for change, before in held:
                _put(change.obj.__dict__, change.name, before)

    def _configs(self) -> list[Change]:
        configs = self._by_path.values()
        return [c for c in configs if not isinstance(c.obj, nn.Module) and hasattr(c.obj, "__dict__")]

    def of_modules(self) -> bool:
        """Whether attributes of modules changed, not only those of configs."""
        return any(isinstance(change.obj, nn.Module) for change in self._by_path.values())

    def refuse(self) -> None:
        """Raise CaptureError: the step differs after these changes."""
        path, change = next(iter(self._by_path.items()))
        at = assigned_at(change.obj, change.name) if isinstance(change.obj, nn.Module) else ""
        raise CaptureError(
            f"forward changes attributes ({self}), and its next call computes something else",
            path.rpartition(".")[0] if at else "",
            at,
            "call the model once before planning, if that settles it; otherwise make them buffers",
            settles=True,
        )

    def refuse_carried(self, constants: Sequence[torch.Tensor]) -> None:
        """Raise CaptureError if one of the attributes had tensors before that the trace contains as constants."""
        for path, change in self._by_path.items():
            if holds(attribute(change.obj, change.name), constants):
                at = assigned_at(change.obj, change.name) if isinstance(change.obj, nn.Module) else ""
                refuse_carried(f"attribute {path!r}", path.rpartition(".")[0] if at else "", at)

    def numbers(self) -> list[Changed]:
        """Return the changed numbers."""
        held = [
            (path, c) for path, c in self._by_path.items() if type(c.raw) in (int, float) and hasattr(c.obj, "__dict__")
        ]
        return [Changed(f"attribute {path!r}", c.obj, c.name, c.raw) for path, c in held]

    def warn(self) -> None:
        """Warn of attributes that change from call to call without an effect on the step."""
        warnings.warn(
            f"forward reads and then changes attributes ({self}); a scheduled step computes with what they were when "
            "planned and does not change them: make them buffers if the result depends on them",
            UserWarning,
            stacklevel=5,
        )


def _put(attributes: dict[str, Any], name: str, value: object) -> None:
    if value is MISSING:
        attributes.pop(name, None)
    else:
        attributes[name] = value
