"""The names in `costs` and `tile_workspaces` of a schedule file: operations of its blocks, and their tiles."""

from __future__ import annotations

from itertools import chain

from ..errors import ScheduleError
from ..format.schedule import Schedule
from ..format.signature import escape
from ..format.suggest import did_you_mean
from .causes import Causes
from .tile_writer import TILE


def check_cost_names(schedule: Schedule, causes: Causes) -> None:
    """Add a fault (R033, R039) for each entry of a block or operation that the file does not contain."""
    blocks = schedule.blocks
    parts = ("costs", schedule.costs), ("tile_workspaces", schedule.tile_workspaces)
    for part, name, numbers in ((part, *entry) for part, entries in parts for entry in entries.items()):
        where = f"/{part}/{escape(name)}"
        if name not in blocks:
            hint = did_you_mean(name, blocks, "delete it")
            causes.add(ScheduleError("R033", f"{part} of a block {name[:120]!r} that does not exist", hint=hint), where)
            continue
        known = dict.fromkeys(line.id for line in chain(blocks[name].forward, blocks[name].backward))
        for unknown in (local for local in numbers if local.partition(TILE)[0] not in known):
            hint = did_you_mean(unknown, known, "delete it")
            message = f"block {name[:120]!r} has no operation {unknown[:120]!r}"
            causes.add(ScheduleError("R039", message, hint=hint), f"{where}/{escape(unknown)}")
