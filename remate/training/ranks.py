"""One rank of torch.distributed plans a model, and the other ranks wait for its result.

Ranks exchange results through the key-value store of the process group, not through a collective. So a waiting rank
does not block the communication of others, and ranks with different models (pipeline stages) do not wait for each
other. The rank that plans counts in the store meanwhile, so that the others notice if it ends.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any

import msgspec
import torch

from remate_runtime.errors import RemateError
from remate_runtime.format import Schedule, checked_text, decode
from remate_runtime.support.store_wait import wait_for
from remate_runtime.torch_private.distributed import group_store
from remate_runtime.torch_private.pytree import tree_leaves

from ..capture.recorded import RecordedCall

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

    @classmethod
    def of(cls, schedules: Iterable[Schedule]) -> PlannedElsewhere:
        """Return the result with these schedules."""
        return cls(tuple(checked_text(schedule).decode() for schedule in schedules))

    @property
    def is_news(self) -> bool:
        """Whether this process reports what another one planned: the first rank does, and an equal block is no news."""
        return _rank() == 0 and self.rank != 0

    def schedules_or_refusal(self, what: str) -> tuple[Schedule, ...]:
        """Return the schedules. Raises RemateError if `what` could not be planned."""
        if self.refused:
            raise RemateError(f"rank {self.rank} could not plan {what}: {self.refused}")
        return tuple(decode(text.encode()) for text in self.texts)


def kind_of(call: RecordedCall, *more: object) -> str:
    """Return a key that is equal on ranks that can share a plan. Input sizes may differ, so they do not count.

    Args:
        call: The call to plan.
        more: What else the plan depends on.
    """
    leaves = [
        (str(leaf.dtype), leaf.dim()) if isinstance(leaf, torch.Tensor) else type(leaf).__name__
        for leaf in tree_leaves((call.args, call.kwargs))
    ]
    parameters = [(name, tuple(p.shape), str(p.dtype), p.requires_grad) for name, p in call.model.named_parameters()]
    kind = type(call.model).__qualname__, parameters, leaves, *more
    return hashlib.sha256(repr(kind).encode()).hexdigest()


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
        return _made_here(store, key, make)
    if rank == 0 and not store.check([f"{key}/made"]):
        say(f"waiting for another rank to plan {what}")
    silence = _Silence(store, key)
    waited = wait_for(store, [f"{key}/made"], timeout, silence.report)
    if waited.missing:
        planner = silence.rank
        longer = "" if waited.why else "wait longer with timeout=SECONDS, or "
        raise RemateError(
            f"rank {rank} has waited {waited.seconds:g} s for {planner} to plan {what}"
            f"{waited.why and '; ' + waited.why}\n  hint: check the output of {planner}; {longer}plan beforehand "
            "and pass the file to all ranks"
        )
    return msgspec.json.decode(store.get(f"{key}/made"), type=PlannedElsewhere)


def on_the_first_rank(key: str, make: Callable[[], PlannedElsewhere]) -> PlannedElsewhere | None:
    """Compute a result on the first rank that requests `key`. Others get it once it is made, and None until then.

    Nobody waits, because ranks request this at different calls: the rank that plans may first need what a later one
    has not yet sent.

    Args:
        key: Identifies the result.
        make: Computes the result.
    """
    store = group_store("remate")
    if store.add(f"{key}/asked", 1) == 1:
        return _made_here(store, key, make)
    if not store.check([f"{key}/made"]):
        return None
    return msgspec.json.decode(store.get(f"{key}/made"), type=PlannedElsewhere)


def _made_here(store: Any, key: str, make: Callable[[], PlannedElsewhere]) -> PlannedElsewhere:
    """Compute a result, and put it into the store; of an error, its message."""
    rank = _rank()
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


@contextmanager
def _counting(store: Any, key: str) -> Generator[None]:
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
    """Notices that the rank that plans does not count any more."""

    def __init__(self, store: Any, key: str) -> None:
        self.rank = "the rank that plans"  # its name, as soon as it has written its number
        self._store, self._key, self._named = store, key, False
        self._next, self._since = 1, time.monotonic()

    def report(self) -> str:
        """Return the warning that the rank is silent; "" while it is not."""
        if not self._named and self._store.check([f"{self._key}/rank"]):
            self.rank, self._named = f"rank {self._store.get(f'{self._key}/rank').decode()}", True
        while self._store.check([f"{self._key}/count/{self._next}"]):
            self._next, self._since = self._next + 1, time.monotonic()
        silent = time.monotonic() - self._since
        return f"{self.rank} has ended or is stopped: no sign of life for {silent:.0f} s" if silent > SILENT else ""


def is_first_rank() -> bool:
    """Return whether this process writes files for all ranks: rank 0, or the only process."""
    return not is_distributed() or _rank() == 0


def _rank() -> int:
    import torch.distributed as dist

    return dist.get_rank()
