"""Ranks of FSDP2 of which one runs a schedule, and another one the model's own forward in the same call.

Both gather and reduce, but in backward in different orders. Such ranks would wait for each other, or take gradients for
parameters. So they tell each other through the key-value store what they run, and count these calls, which all ranks
make in the same order: calls of the own forward before the first scheduled call, that call, and each later call of the
own forward with gradients enabled. Other scheduled calls cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import BindError
from ..support.store_wait import wait_for
from ..torch_private.distributed import group_ranks, group_store
from .fsdp2 import process_groups

TIMEOUT = 60.0  # seconds that a rank waits for the others to run their own forward, too
_ADVICE = "call the model on all ranks in the same mode, train() or eval()"


def tell_scheduled(names: Sequence[str]) -> Callable[[], str]:
    """Tell the other ranks that this rank runs a schedule.

    Args:
        names: Names of the process groups.

    Returns:
        A function that raises BindError if another rank runs its own forward instead, and otherwise returns "".
    """
    compared = [_compared(name, "scheduled", "own") for name in names]
    return lambda: "".join(compare() for compare, _, _ in compared)


def tell_own_forward(parts: Sequence[Any], gradients: bool) -> None:
    """Tell the other ranks that this rank runs the model's own forward.

    Args:
        parts: The modules that `fully_shard` was called on.
        gradients: Whether backward may follow. The ranks then wait for each other.

    Raises:
        BindError: Another rank runs a schedule instead.
    """
    states = [part._get_fsdp_state() for part in parts]
    known = [state for state in states if hasattr(state, "_fsdp_param_groups")]
    groups = [group for state in known for group in state._fsdp_param_groups]
    if not gradients and all(group.is_unsharded for group in groups):
        return  # nothing to gather: a rank may do that alone
    for name in sorted({group.group_name for state in known for group in process_groups(state)}):
        compare, store, turn = _compared(name, "own", "scheduled")
        compare()
        if gradients:
            keys = {f"own/{turn}/{rank}": rank for rank in group_ranks(name)}
            waited = wait_for(store, [*keys], TIMEOUT, compare)
            if waited.missing:
                late = f"rank {keys[waited.missing[0]]} has not done so within {waited.seconds:g} s"
                raise BindError(
                    f"rank {torch.distributed.get_rank()} runs the model's own forward with gradients, and {late}: "
                    f"backward under FSDP2 needs all ranks\n  {_ADVICE}"
                )


def _compared(name: str, what: str, other: str) -> tuple[Callable[[], str], Any, int]:
    """Publish to the ranks of a group what this rank runs. Return a function that compares, the store, and the number
    of the call."""
    rank, store = torch.distributed.get_rank(), group_store(f"remate/modes/{name}")
    turn = store.add(f"turn/{rank}", 1)
    store.set(f"{what}/{turn}/{rank}", "")
    store.set(f"{what}/{turn}", str(rank))

    def compare() -> str:
        if store.check([f"{other}/{turn}"]):
            there = store.get(f"{other}/{turn}").decode()
            own, scheduled = (rank, there) if what == "own" else (there, rank)
            raise BindError(
                f"rank {own} runs the model's own forward in a call that rank {scheduled} runs by its schedule: under "
                f"FSDP2 they would wait for each other forever\n  {_ADVICE}"
            )
        return ""

    return compare, store, turn
