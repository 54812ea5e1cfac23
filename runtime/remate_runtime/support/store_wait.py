"""Waits for other ranks in the key-value store of torch.distributed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

_FIRST, _MOST = 0.001, 0.05  # seconds between two checks, which grow


class Waited(NamedTuple):
    """How a wait ended.

    Attributes:
        missing: The keys that nobody has set.
        seconds: How long it took.
        why: Why it ended before its timeout with missing keys; otherwise "".
    """

    missing: list[str]
    seconds: float
    why: str


def wait_for(store: Any, keys: Sequence[str], timeout: float, ended: Callable[[], str] = str) -> Waited:
    """Wait for keys of a store.

    Args:
        store: The store.
        keys: The keys.
        timeout: Seconds to wait.
        ended: Returns why to wait no longer; "" to go on.
    """
    begun, missing, pause = time.monotonic(), list(keys), _FIRST
    while True:
        try:
            missing = [key for key in missing if not store.check([key])]
            why = ended() if missing else ""
        except RuntimeError as error:  # torch's errors of a store whose process has ended
            why = f"the store of the process group does not answer: {str(error).splitlines()[0]}"
        seconds = time.monotonic() - begun
        if not missing or why:
            return Waited(missing, round(seconds, 1), why)
        if seconds > timeout:
            return Waited(missing, timeout, "")
        time.sleep(pause)
        pause = min(_MOST, 2 * pause)
