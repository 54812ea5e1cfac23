"""Several ranks of torch.distributed: one of them plans a model, the others wait for its result.

Ranks use the key-value store of the process group and no collective: a waiting rank keeps no other rank from
communicating, and ranks with different models (stages of a pipeline) do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from remate_runtime.errors import RemateError
from remate_runtime.support.store_wait import missing_after
from remate_runtime.torch_private.distributed import group_store


class PlannedElsewhere(msgspec.Struct, frozen=True):
    """The result of one rank for all ranks of its kind.

    Attributes:
        texts: The schedules.
        refused: Why there are none.
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
    """Return the result of the first rank that requests `key`, for all ranks that request it.

    If the first rank fails, the others receive the reason, and the error propagates on the first.

    Args:
        key: Identifies the result.
        what: Name of it in messages.
        make: Computes it.
        timeout: Seconds to wait.
        say: Receives text about the wait.

    Raises:
        RemateError: After the timeout.
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
            f"rank {rank} has waited {timeout:g} s for rank {planning} to plan {what}\n  hint: look at what rank "
            f"{planning} prints; give it more time with timeout=SECONDS, or plan beforehand and give all ranks the "
            "file"
        )
    return msgspec.json.decode(store.get(f"{key}/made"), type=PlannedElsewhere)


def is_first_rank() -> bool:
    """Return whether this process writes for all: rank 0, or the only one."""
    return not is_distributed() or _rank() == 0


def _rank() -> int:
    import torch.distributed as dist

    return dist.get_rank()
