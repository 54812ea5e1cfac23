"""Random edits of the lists of a schedule, as a person makes them in an editor: not all of them are legal."""

from __future__ import annotations

import random

from msgspec.structs import replace

from remate_runtime.flat_step.expansion import expand
from remate_runtime.format.schedule import Recompute, Schedule


def by_hand(schedule: Schedule, draw: random.Random) -> Schedule:
    """Entries deleted, inserted, moved or shuffled in a plan or at the top level, or instances moved to other plans."""
    if draw.random() < 0.15:
        graph = expand(schedule).graph
        forward, points = [op.id for op in graph.operations[: graph.backward_start]], [op.id for op in graph.operations]
        return replace(schedule, statements=tuple(rearranged(forward, points, list(schedule.statements), draw)))
    name = draw.choice([n for n, block in schedule.blocks.items() if block.forward])
    block = schedule.blocks[name]
    if draw.random() < 0.3:
        program = [
            replace(i, plan=draw.choice(["baseline", *schedule.blocks[i.block].plans])) for i in schedule.program
        ]
        return replace(schedule, program=tuple(program))
    plan = draw.choice([*block.plans, "new"])
    forward = [op.id for op in block.forward]
    points = [op.id for op in (*block.forward, *block.backward)]
    entries = rearranged(forward, points, list(block.plans.get(plan, ())), draw)
    blocks = {**schedule.blocks, name: replace(block, plans={**block.plans, plan: tuple(entries)})}
    return replace(schedule, blocks=blocks)


def rearranged(forward: list[str], points: list[str], entries: list[Recompute], draw: random.Random) -> list[Recompute]:
    """forward, points: ids that may be recomputed, and before which."""
    chosen = tuple(draw.choice(forward) for _ in range(draw.randint(1, 3)))
    action = draw.choice(["insert", "delete", "move", "shuffle"])
    if action == "insert" or not entries:
        entries.insert(draw.randint(0, len(entries)), Recompute(recompute=chosen, before=draw.choice(points)))
    elif action == "delete":
        entries.pop(draw.randrange(len(entries)))
    elif action == "move":
        at = draw.randrange(len(entries))
        entries[at] = replace(entries[at], before=draw.choice(points))
    else:
        draw.shuffle(entries)
    return entries
