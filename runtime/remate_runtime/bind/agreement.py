"""Checks that all ranks of a mesh run the same collectives in the same order. Otherwise they would wait forever.

Ranks compare their steps when schedules are applied, and at the first call those whose parameters FSDP2 shards. This
goes through the key-value store of the process group and not through a collective. They compare only the collectives,
in execution order with the plan. Plans may differ in local operations. If the collectives differ, the ranks compare
their files, and the error names the field.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, cast

import msgspec
import torch

from ..errors import BindError
from ..format.positions import pointer
from ..link.borders import backward_borders, forward_borders
from ..link.events import Linked, RecomputeRun, Run
from ..operators.collectives import COLLECTIVES
from ..support.plain_text import plain
from ..support.store_wait import Waited, wait_for
from ..torch_private.distributed import group_ranks, group_store

TIMEOUT = 300.0  # seconds that a rank waits for the other ranks of its mesh
_SHOWN = 60  # characters of a value to show
_FOLLOWS = ("solve", "name", "note")  # fields of a file that follow from the others, or only describe it
_FOLLOWS_IN_MODEL = ("coordinate", "fingerprint")


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


def sharded_actions(linked: Linked, groups: Mapping[int, int], process_groups: Iterable[str]) -> list[Communicated]:
    """Return what a step does with the parameters that FSDP2 shards, in order.

    Args:
        linked: The step.
        groups: Number of the group of each parameter.
        process_groups: Names of torch's process groups that gather and reduce.
    """
    borders = [*forward_borders(linked.graph, linked.forward, groups)]
    borders += [border for part in backward_borders(linked, groups) for border in part]
    members: dict[int, str] = {}
    for value, group in groups.items():
        members.setdefault(group, linked.graph.values[value].name)
    texts = [f"{border.does} {members[border.group]} and its group" for border in borders]
    return [Communicated(name, text) for name in process_groups for text in texts]


def agree(
    groups: Mapping[str, str],
    collectives: Sequence[Communicated],
    files: Callable[[], Sequence[bytes]] = tuple,
    timeout: float = TIMEOUT,
    meanwhile: str = "apply a schedule",
    ended: Callable[[], str] = str,
) -> None:
    """Check that all ranks of each mesh dimension run these collectives.

    Args:
        groups: Names of torch's process groups by mesh dimension.
        collectives: The collectives of this rank's steps.
        files: Returns the texts of this rank's schedules. They are compared if the collectives differ.
        timeout: Seconds to wait for the other ranks.
        meanwhile: What the other ranks are expected to do, for messages.
        ended: Returns why the other ranks will not come; "" while they may.

    Raises:
        BindError: Another rank runs other collectives, or has not come here within the timeout.
    """
    for mesh, name in groups.items():
        ranks = group_ranks(name)
        if len(ranks) < 2:
            continue
        own = torch.distributed.get_rank()
        store = group_store(f"remate/collectives/{name}")
        turn = store.add(f"turn/{own}", 1)
        listed = [collective.text for collective in collectives if collective.group == name]
        texts, waited = _exchanged(store, f"{turn}", ranks, own, msgspec.json.encode(listed), timeout, ended)
        if waited.missing:
            raise BindError(_absent([rank for rank in ranks if rank not in texts], own, waited, mesh, meanwhile))
        of_ranks = {rank: msgspec.json.decode(text, type=list[str]) for rank, text in texts.items()}
        if any(other != listed for other in of_ranks.values()):
            own_files = msgspec.json.encode([text.decode() for text in files()])
            held, _ = _exchanged(store, f"{turn}/files", ranks, own, own_files, timeout, str)
            raise BindError(_differing(mesh, of_ranks, held))


def _exchanged(
    store: Any,
    key: str,
    ranks: Sequence[int],
    own: int,
    text: bytes,
    timeout: float,
    ended: Callable[[], str],
) -> tuple[dict[int, bytes], Waited]:
    """Return the texts of the ranks that give one within the timeout."""
    store.set(f"{key}/{own}", zlib.compress(text))
    waited = wait_for(store, [f"{key}/{rank}" for rank in ranks], timeout, ended)
    came = [rank for rank in ranks if f"{key}/{rank}" not in waited.missing]
    return {rank: zlib.decompress(store.get(f"{key}/{rank}")) for rank in came}, waited


def _absent(missing: Sequence[int], own: int, waited: Waited, mesh: str, meanwhile: str) -> str:
    absent = _ranks_text(missing)
    advice = "apply the same schedules in the same order on all ranks of the mesh, and check the output of"
    return (
        f"rank {own} has waited {waited.seconds:g} s for {absent} to {meanwhile} over {mesh!r}"
        f"{waited.why and '; ' + waited.why}\n  {advice} {absent}"
    )


def _differing(mesh: str, listed: Mapping[int, Sequence[str]], files: Mapping[int, bytes]) -> str:
    """Return which rank differs from most ranks, the same on all ranks: its first collective, and the field of its file
    that differs."""
    counts = Counter(map(tuple, listed.values()))
    usual = next(rank for rank, texts in listed.items() if tuple(texts) == counts.most_common(1)[0][0])
    odd = next(rank for rank, texts in listed.items() if texts != listed[usual])
    first, other = sorted((usual, odd))
    pairs = enumerate(zip_longest(listed[first], listed[other], fillvalue="no more collectives"))
    at, (here, there) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
    field = _field(files[first], files[other], first, other) if first in files and other in files else ""
    return (
        f"the schedules of ranks {first} and {other} communicate differently over {mesh!r}: collective {at + 1} is\n"
        f"  - rank {first}: {here}\n  - rank {other}: {there}\n{field}  use one file on all ranks; if their steps "
        "differ, plan each with the same estimated costs: remate.plan(..., cost='h100')"
    )


def _field(first: bytes, other: bytes, rank: int, other_rank: int) -> str:
    """Return the first field that differs between the files of two ranks, as a line; "" if the files are equal."""
    pairs = zip(*(msgspec.json.decode(texts, type=list[str]) for texts in (first, other)), strict=False)
    for texts in pairs:
        here, there = (_compared(msgspec.json.decode(text)) for text in texts)
        path = _first_difference(here, there)
        if path is not None:
            return (
                f"  the files differ at {pointer(path)}: {_value(here, path)} on rank {rank}, "
                f"{_value(there, path)} on rank {other_rank}\n"
            )
    return "  the files are the same, and the models differ\n"


def _compared(file: dict[str, Any]) -> dict[str, Any]:
    """Return a file without what follows from the rest of it, and what describes it, at the end."""
    left = {key: value for key, value in file.items() if key not in _FOLLOWS}
    model = {key: value for key, value in file["model"].items() if key not in _FOLLOWS_IN_MODEL}
    return {**left, "model": model}


def _first_difference(first: object, second: object, path: tuple[str | int, ...] = ()) -> tuple[str | int, ...] | None:
    """Return the path of the first difference between two JSON values; None if they are equal."""
    pairs: Iterable[tuple[str | int, object, object]]
    if isinstance(first, dict) and isinstance(second, dict):
        left, right = cast(dict[str, object], first), cast(dict[str, object], second)
        pairs = ((key, left.get(key), right.get(key)) for key in dict.fromkeys([*left, *right]))
    elif isinstance(first, list) and isinstance(second, list):
        both = zip_longest(cast(list[object], first), cast(list[object], second))
        pairs = ((at, *pair) for at, pair in enumerate(both))
    else:
        return None if first == second else path
    differences = (_first_difference(here, there, (*path, key)) for key, here, there in pairs)
    return next((difference for difference in differences if difference is not None), None)


def _value(file: Any, path: Sequence[str | int]) -> str:
    """Return a value of a file, shortened; "nothing" if the file does not have it."""
    for key in path:
        try:
            file = file[key]
        except (KeyError, IndexError):
            return "nothing"
    text = msgspec.json.encode(file).decode()
    return plain(text if len(text) <= _SHOWN else f"{text[:_SHOWN]} …")


def _ranks_text(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
