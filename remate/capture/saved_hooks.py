"""Detects hooks on saved tensors that forward sets. They would never run, because a schedule saves nothing through
autograd."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from torch.autograd.graph import saved_tensors_hooks

from remate_runtime.engine import of_torch


@contextmanager
def saved_hooks_seen(seen: Callable[[str], None]) -> Generator[None]:
    """Call `seen` with the name of each hook that forward sets in the `with` block, except torch's own hooks."""
    kind: Any = saved_tensors_hooks
    usual = kind.__enter__

    def enter(self: Any) -> Any:
        if not (of_torch(self.pack_hook) and of_torch(self.unpack_hook)):
            seen(getattr(self.pack_hook, "__qualname__", type(self.pack_hook).__qualname__))
        return usual(self)

    kind.__enter__ = enter
    try:
        yield
    finally:
        kind.__enter__ = usual
