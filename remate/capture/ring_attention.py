"""Refuses attention within `context_parallel`, which replaces torch's function by one that sends keys and values round
the ranks. A schedule would run the operators below it, and DTensor's rules for them may search for hours on the CPU."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from unittest import mock

from torch.nn import functional

from ..errors import CaptureError

_HOME = "torch.distributed.tensor.experimental"


@contextmanager
def without_ring_attention() -> Generator[None]:
    """Let attention raise CaptureError in the `with` block, if it is that of `context_parallel`."""
    if not functional.scaled_dot_product_attention.__module__.startswith(_HOME):
        yield
        return
    with mock.patch.object(functional, "scaled_dot_product_attention", _refused):
        yield


def _refused(*args: object, **kwargs: object) -> None:
    raise CaptureError(
        "scaled_dot_product_attention is replaced by ring attention (context_parallel), which a schedule does not run",
        hint='outside of context_parallel, plan the parts without attention: at="layers.*.feed_forward"',
    )
