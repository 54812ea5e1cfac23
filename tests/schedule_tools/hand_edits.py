"""Random edits of the lists of a schedule, as in an editor. Not all of them are legal."""

from __future__ import annotations

import random

from msgspec.structs import replace

from remate_runtime.flat_step.expansion import expand
from remate_runtime.format.schedule import Page, Recompute, Schedule, Statement


def by_hand(schedule: Schedule, draw: random.Random) -> Schedule:
    """Entries deleted, inserted, moved or shuffled in a plan or at the top level, or instances moved to other plans."""
    if draw.random() < 0.15:
        graph = expand(schedule).graph
        forward, points = [op.id for op in graph.operations[: graph.backward_start]], [op.id for op in graph.operations]
        lasting = [v.name for v in graph.values if v.kind == "parameter"]
        lasting += [graph.values[gradient].name for _, gradient in graph.gradients]
        entries = rearranged(forward, points, lasting, list(schedule.statements), draw)
        return replace(schedule, statements=tuple(entries))
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
    lasting = [*block.parameters, *(text.removeprefix("%") for text in block.gradients.values())]
    entries = rearranged(forward, points, lasting, list(block.plans.get(plan, ())), draw)
    blocks = {**schedule.blocks, name: replace(block, plans={**block.plans, plan: tuple(entries)})}
    return replace(schedule, blocks=blocks)


def rearranged(
    forward: list[str], points: list[str], lasting: list[str], entries: list[Statement], draw: random.Random
) -> list[Statement]:
    """forward, points: ids that may be recomputed or paged, and before which. lasting: names of parameters and of
    gradients, which may be paged."""
    chosen = tuple(draw.choice(forward) for _ in range(draw.randint(1, 3)))
    action = draw.choice(["insert", "delete", "move", "shuffle"])
    if action == "insert" or not entries:
        if lasting and draw.random() < 0.3:
            statement = (
                paged((draw.choice(lasting),), points, draw) if draw.random() < 0.5 else Page((draw.choice(lasting),))
            )
        else:
            statement = paged(chosen, points, draw) if draw.random() < 0.4 else Recompute(chosen, draw.choice(points))
        entries.insert(draw.randint(0, len(entries)), statement)
    elif action == "delete":
        entries.pop(draw.randrange(len(entries)))
    elif action == "move":
        at = draw.randrange(len(entries))
        entry = entries[at]
        if isinstance(entry, Page):
            entries[at] = paged(entry.page, points, draw)
        else:
            entries[at] = replace(entry, before=draw.choice(points))
    else:
        draw.shuffle(entries)
    return entries


def paged(names: tuple[str, ...], points: list[str], draw: random.Random) -> Page:
    """A page with some of its points, in order."""
    at = sorted(draw.sample(range(len(points)), 3)) if len(points) >= 3 else [0, 0, 0]
    out, gone, back = (points[k] if draw.random() < 0.5 else "" for k in at)
    return Page(names, draw.choice(["disk", "host"]), out, gone, back)
