"""Checks that all ranks of a mesh run the same collectives in the same order. Otherwise they would wait forever.

Ranks compare their steps when schedules are applied, through the key-value store of the process group and not through
a collective. They compare only the collectives, in execution order with the plan. Plans may differ in local operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import torch

from ..errors import BindError
from ..link.events import Linked, RecomputeRun, Run
from ..operators.collectives import COLLECTIVES
from ..support.store_wait import missing_after
from ..torch_private.distributed import group_ranks, group_store

TIMEOUT = 300.0  # seconds that a rank waits for the other ranks of its mesh


class Communicated(msgspec.Struct, frozen=True):
    """A collective of a step.

    Attributes:
        group: Name of torch's process group.
        text: Description for messages.
    """

    group: str
    text: str


def communicated(steps: Iterable[Linked]) -> Iterator[Communicated]:
    """Yield the collectives of these steps in execution order. Process groups must be resolved."""
    for linked in steps:
        for event in linked.events:
            if isinstance(event, Run | RecomputeRun):
                op = linked.graph.operations[event.op]
                known = COLLECTIVES.get(op.op)
                if known is not None:
                    given = ", ".join(str(linked.graph.values[value].type) for value in op.reads)
                    again = "recomputes " if isinstance(event, RecomputeRun) else ""
                    others = [arg for at, arg in enumerate(op.args[1:], 1) if at != known.group]
                    text = f"{again}{op.id}: {op.op}({given}{''.join(f', {arg}' for arg in others)})"
                    yield Communicated(str(op.args[known.group]), text)


def agree(groups: Mapping[str, str], collectives: Sequence[Communicated], timeout: float = TIMEOUT) -> None:
    """Check that all ranks of each mesh dimension run these collectives.

    Args:
        groups: Names of torch's process groups by mesh dimension.
        collectives: The collectives of this rank's steps.
        timeout: Seconds to wait for the other ranks.

    Raises:
        BindError: Another rank runs other collectives, or has not applied a schedule within the timeout.
    """
    for mesh, name in groups.items():
        ranks = group_ranks(name)
        if len(ranks) < 2:
            continue
        own = torch.distributed.get_rank()
        store = group_store(f"remate/collectives/{name}")
        turn = store.add(f"turn/{own}", 1)
        listed = [collective.text for collective in collectives if collective.group == name]
        store.set(f"{turn}/{own}", msgspec.json.encode(listed))
        missing = missing_after(store, [f"{turn}/{rank}" for rank in ranks], timeout)
        if missing:
            absent = _ranks_text([rank for rank in ranks if f"{turn}/{rank}" in missing])
            raise BindError(
                f"rank {own} has waited {timeout:g} s for {absent} to apply a schedule over {mesh!r}\n"
                "  apply the same schedules in the same order on all ranks of the mesh, and check the output of "
                f"{absent}"
            )
        for rank in ranks:
            _compare(mesh, own, listed, rank, msgspec.json.decode(store.get(f"{turn}/{rank}"), type=list[str]))


def _compare(mesh: str, own: int, listed: Sequence[str], rank: int, other: Sequence[str]) -> None:
    if list(listed) == list(other):
        return
    at = next((at for at, (mine, theirs) in enumerate(zip(listed, other, strict=False)) if mine != theirs), None)
    at = min(len(listed), len(other)) if at is None else at
    here, there = (texts[at] if at < len(texts) else "no more collectives" for texts in (listed, other))
    raise BindError(
        f"the schedules of ranks {own} and {rank} communicate differently over {mesh!r}: collective {at + 1} is\n"
        f"  - rank {own}: {here}\n  - rank {rank}: {there}\n  use one file on all ranks; if their steps differ, plan "
        "each with the same estimated costs: remate.plan(..., cost='h100')"
    )


def _ranks_text(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
