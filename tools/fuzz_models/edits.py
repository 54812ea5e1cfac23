"""Random edits of a planned schedule: what is recomputed, paged or split. None may change a result."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from remate.schedule_tools.analysis import analyse
from remate.schedule_tools.edit import Editor
from remate_runtime.errors import RemateError, ScheduleError
from remate_runtime.format import Schedule

_TILES = (2, 4)
_TRIES = 8  # of a split, each without an operation that the one before was refused for


def edited(schedule: Schedule, dice: random.Random, pages: bool, splits: bool) -> Schedule:
    """The schedule after some edits; those that are not legal are left out.

    Args:
        schedule: The planned schedule.
        dice: What decides.
        pages: Whether the engine can page.
        splits: Whether sums may be rounded differently, as splits do.
    """
    graph = analyse(schedule).graph
    if graph.backward_start in (0, len(graph.operations)):
        return schedule
    edits = [_recompute, _recompute]
    edits += [_page] * 2 if pages else []
    edits += [_split] if splits else []
    for _ in range(dice.randint(1, 6)):
        edit = dice.choice(edits)
        try:
            schedule = edit(Editor(analyse(schedule), everywhere=dice.random() < 0.5), dice)
        except RemateError:
            continue
    return schedule


def _forward(editor: Editor) -> list[str]:
    graph = editor.opened.graph
    return [op.id for op in graph.operations[: graph.backward_start] if not op.view]


def _recompute(editor: Editor, dice: random.Random) -> Schedule:
    graph, forward = editor.opened.graph, _forward(editor)
    later = [op.id for op in graph.operations[graph.backward_start :]]
    editor.recompute(dice.sample(forward, min(len(forward), dice.randint(1, 3))), dice.choice(later))
    return editor.result().schedule


def _page(editor: Editor, dice: random.Random) -> Schedule:
    parameters = [value.name for value in editor.opened.graph.values if value.kind == "parameter"]
    editor.page([dice.choice(_forward(editor) + parameters)])
    return editor.result().schedule


def _split(editor: Editor, dice: random.Random) -> Schedule:
    """Split operations that follow one another, without those that the refusals name."""
    names = [op.id for op in editor.opened.graph.operations if not op.view]
    first = dice.randrange(len(names))
    names, tiles = names[first : first + dice.randint(1, 12)], dice.choice(_TILES)
    schedule = editor.schedule
    for _ in range(_TRIES):
        try:
            return _split_into(schedule, names, tiles)
        except ScheduleError as error:
            named = [name for name in names if f"'{name}'" in error.message or _names(error.hint, name)]
            names = [name for name in names if name not in named[:1]]
            if not named or not names:
                raise
    return schedule


def _split_into(schedule: Schedule, names: Sequence[str], tiles: int) -> Schedule:
    editor = Editor(analyse(schedule))
    editor.split(names, tiles)
    return editor.result().schedule


def _names(hint: str, name: str) -> bool:
    return re.search(rf"leave '?{re.escape(name)}'? out", hint) is not None
