"""One rank of torch.distributed plans a model, and the other ranks wait for its result.

Ranks exchange results through the key-value store of the process group, not through a collective. So a waiting rank
does not block the communication of others, and ranks with different models (pipeline stages) do not wait for each
other. The rank that plans counts in the store meanwhile, so that the others notice if it ends.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from remate_runtime.errors import RemateError
from remate_runtime.support.store_wait import wait_for
from remate_runtime.torch_private.distributed import group_store

COUNTS_EVERY = 5.0  # seconds between two signs of life of the rank that plans
SILENT = 60.0  # seconds without one after which it has ended, or is stopped; it gives them during a solve, too


class PlannedElsewhere(msgspec.Struct, frozen=True):
    """The planning result that one rank shares with the ranks of its kind.

    Attributes:
        texts: The schedule files.
        refused: The reason if planning failed; otherwise "".
        rank: The rank that planned.
    """

    texts: tuple[str, ...] = ()
    refused: str = ""
    rank: int = 0


def is_distributed() -> bool:
    """Return whether this process is one of several ranks."""
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def on_one_rank(
    key: str, what: str, make: Callable[[], PlannedElsewhere], timeout: float, say: Callable[[str], None]
) -> PlannedElsewhere:
    """Compute a result on the first rank that requests `key`, and return it on all ranks that request it.

    If the computation fails, it raises on the first rank, and the other ranks receive the reason.

    Args:
        key: Identifies the result.
        what: Name of the planned model in messages.
        make: Computes the result.
        timeout: Seconds to wait for the first rank.
        say: Reports progress to the user.

    Raises:
        RemateError: The timeout has passed, or the first rank gives no sign of life.
    """
    store, rank = group_store("remate"), _rank()
    if store.add(f"{key}/asked", 1) == 1:
        store.set(f"{key}/rank", str(rank))
        try:
            with _counting(store, f"{key}/count"):
                result = msgspec.structs.replace(make(), rank=rank)
        except BaseException as error:
            refused = PlannedElsewhere(refused=str(error) or type(error).__name__, rank=rank)
            store.set(f"{key}/made", msgspec.json.encode(refused))
            raise
        store.set(f"{key}/made", msgspec.json.encode(result))
        return result
    say(f"waiting for another rank to plan {what}")
    planning = store.get(f"{key}/rank").decode() if store.check([f"{key}/rank"]) else "?"
    silence = _Silence(store, f"{key}/count")
    waited = wait_for(store, [f"{key}/made"], timeout, lambda: silence.told(f"rank {planning}"))
    if waited.missing:
        longer = "" if waited.why else "wait longer with timeout=SECONDS, or "
        raise RemateError(
            f"rank {rank} has waited {waited.seconds:g} s for rank {planning} to plan {what}"
            f"{waited.why and '; ' + waited.why}\n  hint: check the output of rank {planning}; {longer}plan beforehand "
            "and pass the file to all ranks"
        )
    return msgspec.json.decode(store.get(f"{key}/made"), type=PlannedElsewhere)


@contextmanager
def _counting(store: Any, key: str) -> Iterator[None]:
    """Set `key/1`, `key/2` and so on in the store during the `with` block, on a thread."""
    done = threading.Event()

    def count() -> None:
        try:
            for number in itertools.count(1):
                if done.wait(COUNTS_EVERY):
                    return
                store.set(f"{key}/{number}", "")
        except RuntimeError:  # the store has ended, which this rank notices elsewhere
            return

    threading.Thread(target=count, daemon=True).start()
    try:
        yield
    finally:
        done.set()


class _Silence:
    """Notices that another rank does not count any more."""

    def __init__(self, store: Any, key: str) -> None:
        self._store, self._key = store, key
        self._next, self._since = 1, time.monotonic()

    def told(self, rank: str) -> str:
        """Return that this rank is silent; "" while it is not."""
        while self._store.check([f"{self._key}/{self._next}"]):
            self._next, self._since = self._next + 1, time.monotonic()
        silent = time.monotonic() - self._since
        return f"{rank} has ended or is stopped: no sign of life for {silent:.0f} s" if silent > SILENT else ""


def is_first_rank() -> bool:
    """Return whether this process writes files for all ranks: rank 0, or the only process."""
    return not is_distributed() or _rank() == 0


def _rank() -> int:
    import torch.distributed as dist

    return dist.get_rank()
