"""Hooks on saved tensors that forward itself sets: a schedule saves nothing through autograd, so they would never
run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.autograd.graph import saved_tensors_hooks

from remate_runtime.engine import of_torch


@contextmanager
def saved_hooks_seen(seen: Callable[[str], None]) -> Iterator[None]:
    """Calls `seen` with the name of each hook that is not torch's own and that forward sets meanwhile."""
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
