"""Carries the plans of a schedule to a similar step: the part of `remate rebind` after capture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from msgspec.structs import replace

from remate_runtime.flat_step import TILE
from remate_runtime.format import BASELINE, Page, Schedule, Split, Statement

from .analysis import Analysis, analyse, unsplit
from .blocks_match import InstancePair, pairs
from .lines import with_features, with_plan
from .notes import Where, carry_notes


class Carried(msgspec.Struct, frozen=True):
    """instances: (matched, all) of the old schedule. left_out: one line for each item without a counterpart."""

    schedule: Schedule
    instances: tuple[int, int]
    left_out: tuple[str, ...]


def carry(old: Analysis, new: Schedule) -> Carried:
    """Add the plans, statements and notes of `old` to `new`, a schedule without plans, where instances match. The
    figures stay those of `new`. Raises ScheduleError if the result is not legal."""
    return _Carrying(old, new).result()


class _Carrying:
    def __init__(self, old: Analysis, new: Schedule) -> None:
        self.old, self.new = old, new
        self.opened = analyse(new)
        self.pairs = pairs(unsplit(old), self.opened)
        self.ids = {a: b for pair in self.pairs for a, b in pair.ids.items()}
        self.ids |= {pair.old.id: pair.new.id for pair in self.pairs}
        self.plans: dict[str, dict[str, tuple[Statement, ...]]] = {name: {} for name in new.blocks}
        self.names: dict[
            tuple[str, str, str], str
        ] = {}  # (old block, new block, plan) -> name of the plan in the new block
        self.left_out: dict[str, None] = {}

    def result(self) -> Carried:
        self._unmatched()
        for pair in self.pairs:
            self._plans(pair)
        blocks = {name: replace(block, plans=self.plans[name]) for name, block in self.new.blocks.items()}
        carried = with_features(replace(self.new, blocks=blocks, statements=self._top()))
        for pair in self.pairs:
            plan = self._plan_of(pair)
            if plan != BASELINE:
                carried = with_plan(carried, [pair.new.where], plan)
        carried, lost = carry_notes(self.old.schedule, carried, self._moved())
        notes = [f"a note whose place no longer exists: {note}" for note in lost]
        total = sum(place.leaf for place in self.old.expanded.places)
        return Carried(carried, (len(self.pairs), total), (*self.left_out, *notes))

    def _unmatched(self) -> None:
        ours, theirs = ({getattr(pair, side).id for pair in self.pairs} for side in ("old", "new"))
        for place in self.old.expanded.places:
            if place.leaf and place.id not in ours:
                plan = "" if place.instance.plan == BASELINE else f"; its plan {place.instance.plan} is left out"
                self._leave(f"{place.id} ({place.block_name}): nothing in the model is like it{plan}")
        for place in self.opened.expanded.places:
            if place.leaf and place.id not in theirs:
                self._leave(
                    f"{place.id} ({place.block_name}): nothing in the schedule is like it; it recomputes nothing"
                )

    def _plans(self, pair: InstancePair) -> None:
        there = self.plans[pair.new.block_name]
        for name, plan in pair.old.block.plans.items():
            key = pair.old.block_name, pair.new.block_name, name
            if key in self.names:
                continue
            where = f"plan {name} of {pair.old.block_name}"
            statements = self._translated(plan, f"{pair.old.id}.", f"{pair.new.id}.", where)
            if not statements and plan:
                self.names[key] = BASELINE
                continue
            free, k = name, 2
            while there.get(free, statements) != statements:
                free, k = f"{name}-{k}", k + 1
            there[free] = statements
            self.names[key] = free

    def _plan_of(self, pair: InstancePair) -> str:
        plan = pair.old.instance.plan
        return plan if plan == BASELINE else self.names[pair.old.block_name, pair.new.block_name, plan]

    def _top(self) -> tuple[Statement, ...]:
        """Statements of the top level, and plans of instances that contain other instances, written with full ids."""
        statements = self._translated(self.old.schedule.statements, "", "", "statements")
        for place in self.old.expanded.places:
            if not place.leaf:
                statements += self._translated(
                    place.plan(), f"{place.id}.", "", f"plan {place.instance.plan} of {place.id}"
                )
        return statements

    def _translated(self, plan: tuple[Statement, ...], old: str, new: str, where: str) -> tuple[Statement, ...]:
        """Translate statements of one instance (`old`, a prefix of ids) to the scope of its counterpart."""
        statements: list[Statement] = []
        for statement in plan:
            if isinstance(statement, Page):
                statements += self._page(statement, old, new, where)
                continue
            if isinstance(statement, Split):
                statements += self._split(statement, old, new, where)
                continue
            before = self._id(statement.before, old, new)
            recompute = {name: self._id(name, old, new) for name in statement.recompute}
            translated = tuple(name for name in recompute.values() if name is not None)
            lacking = [name for name, there in recompute.items() if there is None]
            if before is None:
                self._leave(f"{where}: recomputations before {statement.before}: no counterpart")
            elif lacking:
                self._leave(f"{where}: {', '.join(lacking)} before {statement.before}: no counterpart")
            if before is not None and translated:
                statements.append(replace(statement, recompute=translated, before=before))
        return tuple(statements)

    def _page(self, page: Page, old: str, new: str, where: str) -> Iterator[Page]:
        points = {field: getattr(page, field) for field in ("out", "gone", "back") if getattr(page, field)}
        moved = {field: self._id(point, old, new) for field, point in points.items()}
        values = {name: self._value(name, old, new) for name in page.page}
        kept = tuple(name for name in values.values() if name is not None)
        if None in moved.values():
            lacking = ", ".join(points[field] for field, there in moved.items() if there is None)
            self._leave(f"{where}: a page of {', '.join(values)} with {lacking}, which has no counterpart")
        else:
            if len(kept) < len(values):
                lacking = ", ".join(name for name, there in values.items() if there is None)
                self._leave(f"{where}: a page of {lacking}: no counterpart")
            if kept:
                yield replace(page, page=kept, **moved)

    def _split(self, split: Split, old: str, new: str, where: str) -> Iterator[Split]:
        """Translate a split as a whole, or drop it."""
        moved = {name: self._id(name, old, new) for name in split.split}
        kept = tuple(name for name in moved.values() if name is not None)
        if len(kept) == len(moved):
            yield replace(split, split=kept)
        else:
            lacking = ", ".join(name for name, there in moved.items() if there is None)
            self._leave(f"{where}: a split of {lacking}: no counterpart")

    def _value(self, name: str, old: str, new: str) -> str | None:
        operation, colon, number = name.partition(":")
        translated = self._id(operation, old, new)
        return None if translated is None else translated + colon + number

    def _id(self, name: str, old: str, new: str) -> str | None:
        whole, tile, number = name.partition(TILE)
        counterpart = self.ids.get(old + whole)
        return (
            counterpart.removeprefix(new) + tile + number
            if counterpart is not None and counterpart.startswith(new)
            else None
        )

    def _leave(self, line: str) -> None:
        self.left_out.setdefault(line)

    def _moved(self) -> Mapping[Where, Where]:
        """Places of the old schedule's notes in the new one."""
        moved: dict[Where, Where] = {}
        for pair in self.pairs:
            ours, theirs = ("blocks", pair.old.block_name), ("blocks", pair.new.block_name)
            moved.setdefault(ours, theirs)
            if pair.old.parent < 0:
                moved["program", pair.old.id] = "program", pair.new.id
            for a, b in pair.ids.items():
                local = (*ours, a.removeprefix(f"{pair.old.id}."))
                moved.setdefault(local, (*theirs, b.removeprefix(f"{pair.new.id}.")))
        return moved
