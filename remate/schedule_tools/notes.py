"""Notes of people in a schedule: finds them, and carries them to the schedule that replaces it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from remate_runtime.format import Block, Schedule, input_leaves

Where = tuple[Any, ...]  # names from the outside in; statements by their content
_Visit = Callable[[Where, Any], Any]


def notes_of(schedule: Schedule) -> dict[Where, str]:
    """Every note by its place. The note of the schedule itself has the place ()."""
    notes: dict[Where, str] = {}

    def visit(where: Where, item: Any) -> Any:
        if item.note:
            notes[where] = item.note
        return item

    _walk(schedule, visit)
    return notes


def carry_notes(
    old: Schedule, new: Schedule, moved: Mapping[Where, Where] | None = None
) -> tuple[Schedule, tuple[str, ...]]:
    """Copy the notes of `old` to the same places of `new`. Notes of `new` stay. Returns the schedule, and the notes
    without a place. moved: places of `old` that have another place in `new`."""
    left: dict[Where, str] = {}
    for where, note in notes_of(old).items():
        there = (moved or {}).get(where, where)
        left[there] = f"{left[there]}\n{note}" if there in left else note
    have = set(notes_of(new).values())
    left = {where: note for where, note in left.items() if note not in have}

    def visit(where: Where, item: Any) -> Any:
        note = left.pop(where, "")
        return replace(item, note=note) if note and not item.note else item

    noted = _walk(new, visit)
    names = {leaf.name for leaf in input_leaves(noted.model.inputs)}
    fill = {name: number for name, number in old.model.fill.items() if name in names} | noted.model.fill
    return replace(noted, model=replace(noted.model, fill=fill)), tuple(left.values())


def _walk(schedule: Schedule, visit: _Visit) -> Schedule:
    visited = replace(
        schedule,
        model=visit(("model",), schedule.model),
        solve=visit(("solve",), schedule.solve),
        blocks={name: _block(block, ("blocks", name), visit) for name, block in schedule.blocks.items()},
        program=_named(schedule.program, ("program",), visit),
        statements=_statements(schedule.statements, ("statements",), visit),
        digest=None if schedule.digest is None else visit(("digest",), schedule.digest),
    )
    return visit((), visited)


def _block(block: Block, where: Where, visit: _Visit) -> Block:
    visited = replace(
        block,
        constants={name: visit((*where, "constants", name), constant) for name, constant in block.constants.items()},
        forward=_named(block.forward, where, visit),
        backward=_named(block.backward, where, visit),
        instances=_named(block.instances, where, visit),
        plans={name: _statements(plan, (*where, "plans", name), visit) for name, plan in block.plans.items()},
    )
    return visit(where, visited)


def _named(items: Iterable[Any], where: Where, visit: _Visit) -> tuple[Any, ...]:
    return tuple(visit((*where, item.id), item) for item in items)


def _statements(plan: Iterable[Any], where: Where, visit: _Visit) -> tuple[Any, ...]:
    return tuple(visit((*where, replace(statement, note="")), statement) for statement in plan)
