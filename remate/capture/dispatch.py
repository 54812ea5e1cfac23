"""While tracing: replaces how fake tensors run operators."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator

from remate_runtime.torch_private.fake_tensors import FakeTensorMode


@contextlib.contextmanager
def dispatched_by(mode: FakeTensorMode, dispatch: Callable[..., object]) -> Generator[None]:
    """Let `mode` run operators by `dispatch`, which gets operator, types, positional and keyword arguments."""
    outer = vars(mode).get("dispatch")
    mode.dispatch = dispatch
    try:
        yield
    finally:
        del mode.dispatch
        if outer is not None:
            mode.dispatch = outer
