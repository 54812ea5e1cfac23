"""The plans of one schedule in another one of a similar step: what `remate rebind` does once the model is captured."""

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
    """instances: how many of the old schedule have a counterpart, of how many. left_out: what does not carry over, a
    line each."""

    schedule: Schedule
    instances: tuple[int, int]
    left_out: tuple[str, ...]


def carry(old: Analysis, new: Schedule) -> Carried:
    """`new`, a schedule without plans, with the plans, statements and notes of `old`, as far as instances match.
    Figures are those of `new`. Raises ScheduleError if what comes out is not legal."""
    return _Carrying(old, new).result()


class _Carrying:
    def __init__(self, old: Analysis, new: Schedule) -> None:
        self.old, self.new = old, new
        self.opened = analyse(new)
        self.pairs = pairs(unsplit(old), self.opened)
        self.ids = {a: b for pair in self.pairs for a, b in pair.ids.items()}
        self.ids |= {pair.old.id: pair.new.id for pair in self.pairs}
        self.plans: dict[str, dict[str, tuple[Statement, ...]]] = {name: {} for name in new.blocks}
        self.names: dict[tuple[str, str, str], str] = {}  # (old block, new block, plan) -> name of the plan there
        self.left_out: dict[str, None] = {}

    def result(self) -> Carried:
        self._unmatched()
        for pair in self.pairs:
            self._plans(pair)
        blocks = {name: replace(block, plans=self.plans[name]) for name, block in self.new.blocks.items()}
        made = with_features(replace(self.new, blocks=blocks, statements=self._top()))
        for pair in self.pairs:
            plan = self._plan_of(pair)
            if plan != BASELINE:
                made = with_plan(made, [pair.new.where], plan)
        made, lost = carry_notes(self.old.schedule, made, self._moved())
        notes = [f"a note that stands on what is no more: {note}" for note in lost]
        total = sum(place.leaf for place in self.old.expanded.places)
        return Carried(made, (len(self.pairs), total), (*self.left_out, *notes))

    def _unmatched(self) -> None:
        ours, theirs = ({getattr(pair, side).id for pair in self.pairs} for side in ("old", "new"))
        for place in self.old.expanded.places:
            if place.leaf and place.id not in ours:
                plan = "" if place.instance.plan == BASELINE else f"; its plan {place.instance.plan} is left out"
                self._leave(f"{place.id} ({place.block_name}): nothing in the model is like it{plan}")
        for place in self.opened.expanded.places:
            if place.leaf and place.id not in theirs:
                self._leave(f"{place.id} ({place.block_name}): nothing in the schedule is like it; it keeps all")

    def _plans(self, pair: InstancePair) -> None:
        there = self.plans[pair.new.block_name]
        for name, plan in pair.old.block.plans.items():
            key = pair.old.block_name, pair.new.block_name, name
            if key in self.names:
                continue
            where = f"plan {name} of {pair.old.block_name}"
            made = self._translated(plan, f"{pair.old.id}.", f"{pair.new.id}.", where)
            if not made and plan:
                self.names[key] = BASELINE
                continue
            free, k = name, 2
            while there.get(free, made) != made:
                free, k = f"{name}-{k}", k + 1
            there[free] = made
            self.names[key] = free

    def _plan_of(self, pair: InstancePair) -> str:
        plan = pair.old.instance.plan
        return plan if plan == BASELINE else self.names[pair.old.block_name, pair.new.block_name, plan]

    def _top(self) -> tuple[Statement, ...]:
        """Statements of the whole; and, by full ids, those of blocks of instances, whose own instances have other
        ids."""
        made = self._translated(self.old.schedule.statements, "", "", "statements")
        for place in self.old.expanded.places:
            if not place.leaf:
                made += self._translated(place.plan(), f"{place.id}.", "", f"plan {place.instance.plan} of {place.id}")
        return made

    def _translated(self, plan: tuple[Statement, ...], old: str, new: str, where: str) -> tuple[Statement, ...]:
        """Statements in the scope of one instance (`old`, the start of its ids) for the scope of its counterpart."""
        made: list[Statement] = []
        for statement in plan:
            if isinstance(statement, Page):
                made += self._page(statement, old, new, where)
                continue
            if isinstance(statement, Split):
                made += self._split(statement, old, new, where)
                continue
            before = self._id(statement.before, old, new)
            recompute = {name: self._id(name, old, new) for name in statement.recompute}
            found = tuple(name for name in recompute.values() if name is not None)
            lacking = [name for name, there in recompute.items() if there is None]
            if before is None:
                self._leave(f"{where}: recomputations before {statement.before}, which has no counterpart")
            elif lacking:
                self._leave(f"{where}: {', '.join(lacking)} before {statement.before}: no counterpart")
            if before is not None and found:
                made.append(replace(statement, recompute=found, before=before))
        return tuple(made)

    def _page(self, page: Page, old: str, new: str, where: str) -> Iterator[Page]:
        points = {field: getattr(page, field) for field in ("out", "gone", "back") if getattr(page, field)}
        moved = {field: self._id(point, old, new) for field, point in points.items()}
        values = {name: self._value(name, old, new) for name in page.page}
        found = tuple(name for name in values.values() if name is not None)
        if None in moved.values():
            lacking = ", ".join(points[field] for field, there in moved.items() if there is None)
            self._leave(f"{where}: a page of {', '.join(values)} with {lacking}, which has no counterpart")
        else:
            if len(found) < len(values):
                lacking = ", ".join(name for name, there in values.items() if there is None)
                self._leave(f"{where}: a page of {lacking}: no counterpart")
            if found:
                yield replace(page, page=found, **moved)

    def _split(self, split: Split, old: str, new: str, where: str) -> Iterator[Split]:
        """A split belongs together: all of it, or nothing."""
        moved = {name: self._id(name, old, new) for name in split.split}
        found = tuple(name for name in moved.values() if name is not None)
        if len(found) == len(moved):
            yield replace(split, split=found)
        else:
            lacking = ", ".join(name for name, there in moved.items() if there is None)
            self._leave(f"{where}: a split of {lacking}: no counterpart")

    def _value(self, name: str, old: str, new: str) -> str | None:
        operation, colon, number = name.partition(":")
        found = self._id(operation, old, new)
        return None if found is None else found + colon + number

    def _id(self, name: str, old: str, new: str) -> str | None:
        whole, tile, number = name.partition(TILE)
        found = self.ids.get(old + whole)
        return found.removeprefix(new) + tile + number if found is not None and found.startswith(new) else None

    def _leave(self, line: str) -> None:
        self.left_out.setdefault(line)

    def _moved(self) -> Mapping[Where, Where]:
        """Where notes of the old schedule belong in the new one."""
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
