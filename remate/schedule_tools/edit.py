"""Edits of the decisions in a schedule file: keep an operation, recompute or page one, give an instance another plan,
narrow the range of a size.

An edit changes the lines that a person would change, and the solve record, whose figures are computed anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from remate_runtime.errors import RemateError
from remate_runtime.flat_step import InstanceSpan, is_paged_gradient, is_parameter, lay_out
from remate_runtime.format import (
    BASELINE,
    Page,
    PageMemory,
    Recompute,
    Split,
    Statement,
    did_you_mean,
    fingerprint,
    named,
    ranged,
)

from ..block_templates.plan_names import fresh_name
from ..errors import UnknownNameError
from .analysis import Analysis, analyse
from .figures import computed, gap
from .lines import lines, with_features, with_plan
from .names import IdIndex, Named

_EDITED = "edited"


class EditError(RemateError):
    """An edit that cannot be made. The text says why, and what could be done instead."""


class Editor:
    """Edits one schedule. everywhere: an edit reaches all instances that share the line or the plan it changes."""

    def __init__(self, opened: Analysis, everywhere: bool = False) -> None:
        self.opened, self.schedule, self.everywhere = opened, opened.schedule, everywhere
        self._names = IdIndex(opened)

    def result(self) -> Analysis:
        """The edited schedule with its figures. Raise ScheduleError R04x if an edit is not legal."""
        found = analyse(self.schedule)
        solve = replace(
            self.schedule.solve,
            stopped_by=_EDITED,
            parts=(),  # of the plan as it was
            gap=gap(found),
            **computed(found),
        )
        if found.linked.paged:  # bounds are of plans that recompute only
            solve = replace(solve, lower_bound=None)
        return Analysis(
            replace(with_features(self.schedule), solve=solve), found.expanded, found.linked, found.timeline
        )

    def plan(self, instance: str, plan: str) -> None:
        """Let `instance` (full id) use another plan of its block."""
        place = self._names.find(instance).place
        if place is None:
            raise self._names.unknown(instance, "instance")
        place = self._place(place.id)
        known = {BASELINE: (), **place.block.plans}
        if plan not in known:
            hint = did_you_mean(plan, known, f"plans of {place.block_name}: {', '.join(known)}")
            raise UnknownNameError(f"block {place.block_name!r} has no plan {plan[:80]!r}\n  hint: {hint}")
        self._assign(place, plan)

    def keep(self, name: str) -> None:
        """Delete all recomputations and pages of an operation, of a parameter, or of all operations of an instance."""
        kept = set(self._kept(name))
        scopes = ["", *(p.id for p in self._places() if _related(p.id, name))]
        changed = False
        for scope in scopes:
            old = self._entries(scope)
            new = tuple(entry for entry in (self._without(entry, scope, kept) for entry in old) if named(entry))
            if new != old:
                self._write(scope, new)
                changed = True
        if not changed:
            raise EditError(
                f"{name} is neither recomputed nor paged, it is kept as it is\n"
                f"  hint: `remate explain` shows what is recomputed"
            )

    def recompute(self, names: Sequence[str], before: str) -> None:
        """Let operations, or all operations of instances, recompute before a point (an operation or an instance)."""
        for name in names:
            self._forward(self._names.find(name), name)
        point = self._point(before)
        scope = self._scope([*names, before])
        entries = list(self._entries(scope.removesuffix(".")))
        for name in sorted(names, key=self._start):
            self._insert(entries, name.removeprefix(scope), before.removeprefix(scope), scope, point)
        self._write(scope.removesuffix("."), tuple(entries))

    def page(
        self, names: Sequence[str], to: PageMemory = "disk", out: str = "", gone: str = "", back: str = ""
    ) -> None:
        """Let values, or all that can leave of instances, leave the device and come back. Points as in the file; "":
        its defaults."""
        for name in names:
            self._kept(name.partition(":")[0])
        points = [point for point in (out, gone, back) if point]
        for point in points:
            self._names.find(point)
        scope = self._scope([*names, *points])
        local = (point.removeprefix(scope) for point in (out, gone, back))
        made = Page(tuple(name.removeprefix(scope) for name in names), to, *local)
        entries = self._entries(scope.removesuffix("."))
        if made in entries:
            raise EditError(f"{', '.join(names)}: paged so already")
        self._write(scope.removesuffix("."), (*entries, made))

    def narrow(self, name: str, low: int, high: int) -> None:
        """Let the size `name` vary from `low` to `high` only, within its range and around what was planned. Every size
        that is left has been proven, so that the step's fingerprint is made again."""
        dims = self.schedule.model.dims
        if name not in dims:
            hint = f"named sizes: {', '.join(dims)}" if dims else "the schedule is for one size"
            raise UnknownNameError(f"there is no size {name[:80]!r}\n  hint: {hint}")
        dim = dims[name]
        if not dim.min <= low <= dim.planned <= high <= dim.max or (low % dim.multiple or high % dim.multiple):
            raise EditError(
                f"{name}={low}..{high} is not within {ranged(dim)} and around {dim.planned}, which was planned\n"
                "  hint: other ranges need `remate replan`, which proves them"
            )
        narrowed = {**dims, name: replace(dim, min=low, max=high)}
        made = replace(self.schedule, model=replace(self.schedule.model, dims=narrowed))
        self.schedule = replace(made, model=replace(made.model, fingerprint=fingerprint(made)))

    def split(self, names: Sequence[str], into: int) -> None:
        """Let operations run tile by tile; those that are split already, in another number of tiles."""
        named_now = {self._names.find(name).operation for name in names}
        if -1 in named_now:
            raise EditError(f"{', '.join(names)}: operations are split\n  hint: name them by their ids")
        scope = self._scope(names).removesuffix(".")
        made = Split(tuple(name.removeprefix(f"{scope}.") for name in names), into)
        others = (one for one in self._entries(scope) if not isinstance(one, Split) or one.split != made.split)
        self._write(scope, (made, *others))

    # Names

    def _places(self) -> list[InstanceSpan]:
        return lay_out(self.schedule)[0]

    def _place(self, name: str) -> InstanceSpan:
        return next(place for place in self._places() if place.id == name)

    def _forward(self, found: Named, name: str) -> list[int]:
        """The operations that `name` stands for, views left out."""
        graph = self.opened.graph
        if found.place is not None:
            return [i for i in found.place.forward if not graph.operations[i].view]
        if found.tiles:
            return [i for i in found.tiles if i < graph.backward_start and not graph.operations[i].view]
        if not 0 <= found.operation < graph.backward_start or graph.operations[found.operation].view:
            what = "a view" if 0 <= found.operation < graph.backward_start else "not a forward operation"
            raise EditError(f"{name} is {what}\n  hint: only forward operations that are no views are recomputed")
        return [found.operation]

    def _kept(self, name: str) -> list[int]:
        """The operations whose values `name` stands for; below -1, a parameter or a gradient, by its value."""
        found, graph = self._names.find(name), self.opened.graph
        value = self._names.values.get(name.removeprefix("%"), -1)
        if value >= 0 and (is_parameter(graph, value) or is_paged_gradient(graph, value)):
            return [-2 - value]
        return self._forward(found, name)

    def _point(self, name: str) -> int:
        found = self._names.find(name)
        index = found.operation
        if found.place is not None:
            index = found.place.backward.start if found.place.backward else -1
        if index < 0:
            raise EditError(f"{name} is no point\n  hint: name a backward operation, or an instance for its backward")
        return index

    def _start(self, name: str) -> int:
        """Where an operation, or the first operation of an instance, stands in the step."""
        found = self._names.find(name)
        return found.place.forward.start if found.place is not None else found.operation

    def _scope(self, names: Sequence[str]) -> str:
        """`id.` of the innermost instance around all `names`; "" for the top level."""
        around = [p.id + "." for p in self._places() if all(name.startswith(p.id + ".") for name in names)]
        return max(around, key=len, default="")

    # Entries

    def _entries(self, scope: str) -> tuple[Statement, ...]:
        return self._place(scope).plan() if scope else self.schedule.statements

    def _without(self, entry: Statement, scope: str, kept: set[int]) -> Statement:
        if isinstance(entry, Split):
            return entry
        prefix = f"{scope}." if scope else ""
        names: list[str] = []
        for name in named(entry):
            operation = name.partition(":")[0]
            inside = self._kept(prefix + operation)
            if kept.isdisjoint(inside):
                names.append(name)
            elif prefix + operation not in self._names.operations:  # an instance: the rest of it
                ids = (self.opened.graph.operations[i].id for i in inside if i not in kept)
                names += [full.removeprefix(prefix) for full in ids]
        if tuple(names) == named(entry):
            return entry
        return replace(entry, **{"page" if isinstance(entry, Page) else "recompute": tuple(names)})

    def _insert(self, entries: list[Statement], name: str, before: str, scope: str, point: int) -> None:
        points = {
            at: self._point(scope + entry.before) for at, entry in enumerate(entries) if isinstance(entry, Recompute)
        }
        at, entry = next(((at, entries[at]) for at, other in points.items() if other == point), (-1, None))
        if not isinstance(entry, Recompute):
            first = next((at for at, other in points.items() if other > point), len(entries))
            entries.insert(first, Recompute(recompute=(name,), before=before))
            return
        names = list(entry.recompute)
        if name in names:
            raise EditError(f"{scope}{name} recomputations before {scope}{before} already")
        start = self._start(scope + name)
        names.insert(sum(self._start(scope + other) < start for other in names), name)
        entries[at] = replace(entry, recompute=tuple(names))

    # Plans

    def _write(self, scope: str, entries: tuple[Statement, ...]) -> None:
        """Give the plan of an instance (or the top level) these entries; instances that share it keep theirs."""
        if not scope:
            self.schedule = replace(self.schedule, statements=entries)
            return
        place = self._place(scope)
        targets = self._targets(place)
        old, plans = place.instance.plan, place.block.plans
        shared = any(
            line.block == place.block_name and line.plan == old and where not in targets
            for where, line in lines(self.schedule).items()
        )
        equal = next((name for name, plan in plans.items() if plan == entries), None)
        if not entries:
            name = BASELINE
        elif equal is not None:
            name = equal
        else:
            name = old if old != BASELINE and not shared else self._fresh(place, entries)
            block = replace(place.block, plans={**plans, name: entries})
            self.schedule = replace(self.schedule, blocks={**self.schedule.blocks, place.block_name: block})
        self.schedule = with_plan(self.schedule, targets, name)

    def _assign(self, place: InstanceSpan, plan: str) -> None:
        self.schedule = with_plan(self.schedule, self._targets(place), plan)

    def _targets(self, place: InstanceSpan) -> list[str]:
        """Pointers of the instance lines that an edit of `place` changes."""
        if self.everywhere:
            mine = place.block_name, place.instance.plan
            return [where for where, line in lines(self.schedule).items() if (line.block, line.plan) == mine]
        same = [other.id for other in self._places() if other.where == place.where]
        if len(same) > 1:
            raise EditError(
                f"{place.id} stands on one line with {len(same) - 1} more instances, in a block that repeats\n"
                f"  hint: --all edits all of them: {', '.join(same[:6])}{', …' if len(same) > 6 else ''}"
            )
        return [place.where]

    def _fresh(self, place: InstanceSpan, entries: tuple[Statement, ...]) -> str:
        operations = self.opened.graph.operations
        prefix = place.id + "."
        every = [operations[i].id.removeprefix(prefix) for i in place.forward if not operations[i].view]
        recomputes = [name for entry in entries if isinstance(entry, Recompute) for name in entry.recompute]
        again = {i for n in recomputes for i in self._forward(self._names.find(prefix + n), n)}
        recompute = [operations[i].id.removeprefix(prefix) for i in sorted(again)]
        return fresh_name(entries, every, recompute, place.block.plans)


def _related(place: str, name: str) -> bool:
    """Whether an instance is, encloses or lies inside what `name` names."""
    return place == name or name.startswith(place + ".") or place.startswith(name + ".")
