"""Waits for other ranks in the key-value store of torch.distributed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

_BETWEEN = 0.05  # seconds between two checks


def missing_after(store: Any, keys: Sequence[str], timeout: float) -> list[str]:
    """Wait for keys of a store. Return those that are still missing after the timeout.

    Args:
        store: The store.
        keys: The keys.
        timeout: Seconds to wait.
    """
    until = time.monotonic() + timeout
    missing = list(keys)
    while True:
        missing = [key for key in missing if not store.check([key])]
        if not missing or time.monotonic() > until:
            return missing
        time.sleep(_BETWEEN)
