"""One rank of torch.distributed plans a model, and the other ranks wait for its result.

Ranks exchange results through the key-value store of the process group, not through a collective. So a waiting rank
does not block the communication of others, and ranks with different models (pipeline stages) do not wait for each
other.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from remate_runtime.errors import RemateError
from remate_runtime.support.store_wait import missing_after
from remate_runtime.torch_private.distributed import group_store


class PlannedElsewhere(msgspec.Struct, frozen=True):
    """The planning result that one rank shares with the ranks of its kind.

    Attributes:
        texts: The schedule files.
        refused: The reason if planning failed; otherwise "".
    """

    texts: tuple[str, ...] = ()
    refused: str = ""


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
        RemateError: The timeout has passed.
    """
    store, rank = group_store("remate"), _rank()
    if store.add(f"{key}/asked", 1) == 1:
        store.set(f"{key}/rank", str(rank))
        try:
            result = make()
        except BaseException as error:
            refused = PlannedElsewhere(refused=str(error) or type(error).__name__)
            store.set(f"{key}/made", msgspec.json.encode(refused))
            raise
        store.set(f"{key}/made", msgspec.json.encode(result))
        return result
    say(f"waiting for another rank to plan {what}")
    if missing_after(store, [f"{key}/made"], timeout):
        planning = store.get(f"{key}/rank").decode() if store.check([f"{key}/rank"]) else "?"
        raise RemateError(
            f"rank {rank} has waited {timeout:g} s for rank {planning} to plan {what}\n  hint: check the output of "
            f"rank {planning}; wait longer with timeout=SECONDS, or plan beforehand and pass the file to all ranks"
        )
    return msgspec.json.decode(store.get(f"{key}/made"), type=PlannedElsewhere)


def is_first_rank() -> bool:
    """Return whether this process writes files for all ranks: rank 0, or the only process."""
    return not is_distributed() or _rank() == 0


def _rank() -> int:
    import torch.distributed as dist

    return dist.get_rank()
