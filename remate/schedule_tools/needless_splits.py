"""Splits that lower no peak, for `lint`: each is removed in a trial."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from msgspec.structs import replace

from remate_runtime.errors import ScheduleError
from remate_runtime.flat_step import TILE
from remate_runtime.format import Page, Recompute, Schedule, Split, Statement, escape

from .analysis import Analysis, analyse

_TRIALS = 8  # splits that are tried


def needless_splits(opened: Analysis) -> Iterator[ScheduleError]:
    """Yield a finding for each split without which the peak is not higher."""
    places: dict[str, list[str]] = {}
    for split in opened.expanded.splits:
        places.setdefault(split.where, []).extend(split.operations)
    for where, operations in list(places.items())[:_TRIALS]:
        try:
            other = analyse(_without(opened, where, frozenset(operations)))
        except ScheduleError:  # a statement needs its tiles in another way
            continue
        if other.timeline.peak <= opened.timeline.peak:
            saved = opened.timeline.time - other.timeline.time
            takes = f"takes {abs(saved):,} ns {'less' if saved > 0 else 'more'}" if saved else "takes as long"
            message = (
                f"the split of {operations[0]} lowers no peak: without it, the peak is {other.timeline.peak:,} bytes, "
                f"and the step {takes}"
            )
            yield ScheduleError("L012", message, where, "delete it, and what recomputes its tiles")


def _without(opened: Analysis, where: str, split: Collection[str]) -> Schedule:
    """Return the schedule without the split at `where`, and without statements about its tiles."""
    schedule = opened.schedule

    def kept(statements: Sequence[Statement], pointer: str, prefixes: Sequence[str]) -> tuple[Statement, ...]:
        tiles = _Tiles(split, prefixes)
        numbered = enumerate(statements)
        left = (tiles.left(statement) for at, statement in numbered if f"{pointer}/{at}" != where)
        return tuple(statement for statement in left if statement is not None)

    blocks = {}
    for name, block in schedule.blocks.items():
        plans = {}
        for plan, statements in block.plans.items():
            pointer = f"/blocks/{escape(name)}/plans/{escape(plan)}"
            uses = [p for p in opened.expanded.places if (p.block_name, p.instance.plan) == (name, plan)]
            plans[plan] = kept(statements, pointer, [f"{place.id}." for place in uses])
        blocks[name] = replace(block, plans=plans)
    return replace(schedule, blocks=blocks, statements=kept(schedule.statements, "/statements", [""]))


class _Tiles:
    """The tiles of a split, by the names that a plan gives them."""

    def __init__(self, split: Collection[str], prefixes: Sequence[str]) -> None:
        self._split, self._prefixes = split, prefixes

    def left(self, statement: Statement) -> Statement | None:
        """Return what is left of a statement without the tiles; None if nothing is."""
        if isinstance(statement, Split):
            return statement
        if isinstance(statement, Recompute):
            names = tuple(name for name in statement.recompute if name not in self)
            return replace(statement, recompute=names) if names and statement.before not in self else None
        assert isinstance(statement, Page)
        names = tuple(name for name in statement.page if name not in self)
        points = statement.out, statement.gone, statement.back
        return replace(statement, page=names) if names and not any(point in self for point in points) else None

    def __contains__(self, name: str) -> bool:
        whole, tile, _ = name.partition(TILE)
        return bool(tile) and any(prefix + whole in self._split for prefix in self._prefixes)
