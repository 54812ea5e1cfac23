"""Kept bytes and recomputations of each plan of each block, summed over the instances of the plan."""

from __future__ import annotations

import re

import msgspec

from remate_runtime.flat_step import InstanceSpan

from ...schedule_tools.analysis import Analysis, held_at
from ...schedule_tools.names import owners

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


class Share(msgspec.Struct, frozen=True):
    """Figures of an instance. kept: Bytes that its forward keeps for backward. recomputes, ns: Its recomputations."""

    kept: int
    recomputes: int
    ns: int


class PlanUse(msgspec.Struct, frozen=True):
    """A plan, its instances, and the figures of each instance."""

    plan: str
    instances: tuple[str, ...]
    shares: tuple[Share, ...]


class BlockUse(msgspec.Struct, frozen=True):
    """A block. forward, backward: Its operations, with those of nested blocks. note: Its note in the file."""

    name: str
    forward: int
    backward: int
    inside: int  # nested instances of other blocks; 0 for a block of operations
    note: str
    plans: tuple[PlanUse, ...]


def block_uses(opened: Analysis) -> list[BlockUse]:
    """Return the blocks in the order of the file, with unused blocks and plans."""
    shares = _shares(opened)
    groups: dict[str, dict[str, list[tuple[InstanceSpan, Share]]]] = {}
    for name, block in opened.schedule.blocks.items():
        groups[name] = {plan: [] for plan in block.plans}
    for place, share in zip(opened.expanded.places, shares, strict=True):
        groups[place.block_name].setdefault(place.instance.plan, []).append((place, share))
    return [_use(opened, name, plans) for name, plans in groups.items()]


def _use(opened: Analysis, name: str, plans: dict[str, list[tuple[InstanceSpan, Share]]]) -> BlockUse:
    block = opened.schedule.blocks[name]
    first = next((uses[0][0] for uses in plans.values() if uses), None)
    forward, backward = (
        (len(first.forward), len(first.backward)) if first else (len(block.forward), len(block.backward))
    )
    uses = [PlanUse(p, tuple(x.id for x, _ in used), tuple(s for _, s in used)) for p, used in plans.items()]
    uses.sort(key=lambda use: -len(use.instances))
    return BlockUse(name, forward, backward, len(block.instances), block.note, tuple(uses))


def _shares(opened: Analysis) -> list[Share]:
    """Return the figures of each place. An enclosing place has the sums of its nested places."""
    places, graph = opened.expanded.places, opened.graph
    numbers = {place.id: at for at, place in enumerate(places)}
    home = [numbers[place.id] for place in owners(opened)]
    kept, recomputes, spent = [0] * len(places), [0] * len(places), [0] * len(places)
    backward_start = opened.timeline.backward_start
    for allocation in held_at(opened, backward_start) if opened.timeline.during else ():
        value = [value for start, value in opened.contents[allocation] if start <= backward_start][-1]
        producer = graph.values[value].producer if value is not None else -1
        if producer >= 0:
            kept[home[producer]] += allocation.nbytes
    for recompute in opened.expanded.recomputes:
        recomputes[home[recompute.op]] += 1
        spent[home[recompute.op]] += graph.operations[recompute.op].ns
    for at in range(len(places) - 1, -1, -1):  # nested places come after enclosing places
        parent = places[at].parent
        if parent >= 0:
            for column in (kept, recomputes, spent):
                column[parent] += column[at]
    return [Share(k, r, n) for k, r, n in zip(kept, recomputes, spent, strict=True)]


def listed(ids: tuple[str, ...]) -> str:
    """Abbreviate runs of numbered names: `h.0 … h.4, h.7`."""
    runs: list[list[str]] = []
    for name in ids:
        if runs and _next(runs[-1][-1]) == name:
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(f"{run[0]} … {run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)


def _next(name: str) -> str:
    """Increment the last number of a name: `h.3` -> `h.4`."""
    numbers = list(_NUMBER.finditer(name))
    if not numbers or len(numbers[-1][0]) > 15:
        return ""
    start, end = numbers[-1].span()
    return f"{name[:start]}{int(numbers[-1][0]) + 1}{name[end:]}"
