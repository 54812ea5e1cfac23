"""Overrides attributes of a model while it is traced."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from remate_runtime.staleness import MISSING, at_path

from ..errors import CaptureError


@contextmanager
def overridden_attributes(model: nn.Module, values: Mapping[str, object]) -> Generator[None]:
    """Set the attributes at these paths, of modules or their configs, in the `with` block. Raises CaptureError for an
    attribute that cannot be set."""
    saved: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for path, value in values.items():
            above, _, name = path.rpartition(".")
            held = getattr(at_path(model, above) if above else model, "__dict__", None)
            if held is None:
                raise CaptureError(f"live: the attribute {path!r} cannot be set", hint="give its holder a __dict__")
            saved.append((held, name, held.get(name, MISSING)))
            held[name] = value
        yield
    finally:
        for held, name, before in reversed(saved):
            if before is MISSING:
                held.pop(name, None)
            else:
                held[name] = before
