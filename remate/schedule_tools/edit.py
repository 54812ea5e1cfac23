"""Edits of the decisions in a schedule file: keep, recompute, page or split operations, change plans, narrow sizes.

An edit changes the lines that a person would change. It also computes the figures of the solve record again.
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
from .figures import bounded, computed, gap
from .lines import lines, with_features, with_plan
from .names import IdIndex, Named

_EDITED = "edited"


class EditError(RemateError):
    """An edit that is not possible. The text says why, and what to do instead."""


class Editor:
    """Edits one schedule. everywhere: an edit changes every instance that shares the line or plan."""

    def __init__(self, opened: Analysis, everywhere: bool = False) -> None:
        self.opened, self.schedule, self.everywhere = opened, opened.schedule, everywhere
        self._names = IdIndex(opened)

    def result(self) -> Analysis:
        """The edited schedule with its figures. Raise ScheduleError R04x if an edit is not legal."""
        analysis = analyse(self.schedule)
        solve = replace(
            self.schedule.solve,
            stopped_by=_EDITED,
            parts=(),  # they refer to the previous plan
            gap=gap(analysis),
            **computed(analysis),
        )
        if not bounded(analysis):
            solve = replace(solve, lower_bound=None)
        return Analysis(
            replace(with_features(self.schedule), solve=solve), analysis.expanded, analysis.linked, analysis.timeline
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
                f"{name} is already kept: it is neither recomputed nor paged\n"
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
        """Page values, or all values of instances that can leave the device. Points are as in the file; "" means the
        default."""
        if self.schedule.model.sharded is not None:
            hint = "recompute them instead, --recompute ID --before POINT"
            raise EditError(f"beside parameters that FSDP2 shards, no values are paged\n  hint: {hint}")
        for name in names:
            self._kept(name.partition(":")[0])
        points = [point for point in (out, gone, back) if point]
        for point in points:
            self._names.find(point)
        scope = self._scope([*names, *points])
        local = (point.removeprefix(scope) for point in (out, gone, back))
        page = Page(tuple(name.removeprefix(scope) for name in names), to, *local)
        entries = self._entries(scope.removesuffix("."))
        if page in entries:
            raise EditError(f"{', '.join(names)}: already paged like this")
        self._write(scope.removesuffix("."), (*entries, page))

    def narrow(self, name: str, low: int, high: int) -> None:
        """Restrict the size `name` to `low` through `high`, within its range and around the planned size. The remaining
        sizes are already proven, so the fingerprint is computed again."""
        dims = self.schedule.model.dims
        if name not in dims:
            hint = f"named sizes: {', '.join(dims)}" if dims else "the schedule is for one size"
            raise UnknownNameError(f"there is no size {name[:80]!r}\n  hint: {hint}")
        dim = dims[name]
        if not dim.min <= low <= dim.planned <= high <= dim.max or (low % dim.multiple or high % dim.multiple):
            raise EditError(
                f"{name}={low}..{high} is not within {ranged(dim)} or leaves out {dim.planned}, the planned size\n"
                "  hint: run `remate replan` to prove other ranges"
            )
        narrowed = {**dims, name: replace(dim, min=low, max=high)}
        narrowed_schedule = replace(self.schedule, model=replace(self.schedule.model, dims=narrowed))
        self.schedule = replace(
            narrowed_schedule, model=replace(narrowed_schedule.model, fingerprint=fingerprint(narrowed_schedule))
        )

    def split(self, names: Sequence[str], into: int) -> None:
        """Run operations tile by tile. For operations that are split already, change the number of tiles."""
        named_now = {self._names.find(name).operation for name in names}
        if -1 in named_now:
            raise EditError(f"{', '.join(names)}: operations are split\n  hint: name them by their ids")
        scope = self._scope(names).removesuffix(".")
        split = Split(tuple(name.removeprefix(f"{scope}.") for name in names), into)
        others = (entry for entry in self._entries(scope) if not isinstance(entry, Split) or entry.split != split.split)
        self._write(scope, (split, *others))

    # Names

    def _places(self) -> list[InstanceSpan]:
        return lay_out(self.schedule)[0]

    def _place(self, name: str) -> InstanceSpan:
        return next(place for place in self._places() if place.id == name)

    def _forward(self, target: Named, name: str) -> list[int]:
        """The forward operations that `name` refers to, without views."""
        graph = self.opened.graph
        if target.place is not None:
            return [i for i in target.place.forward if not graph.operations[i].view]
        if target.tiles:
            return [i for i in target.tiles if i < graph.backward_start and not graph.operations[i].view]
        if not 0 <= target.operation < graph.backward_start or graph.operations[target.operation].view:
            what = "a view" if 0 <= target.operation < graph.backward_start else "not a forward operation"
            raise EditError(f"{name} is {what}\n  hint: only forward operations that are no views are recomputed")
        return [target.operation]

    def _kept(self, name: str) -> list[int]:
        """The operations whose values `name` refers to. A number below -1 encodes the value of a parameter or a
        gradient."""
        target, graph = self._names.find(name), self.opened.graph
        value = self._names.values.get(name.removeprefix("%"), -1)
        if value >= 0 and (is_parameter(graph, value) or is_paged_gradient(graph, value)):
            return [-2 - value]
        return self._forward(target, name)

    def _point(self, name: str) -> int:
        target = self._names.find(name)
        index = target.operation
        if target.place is not None:
            index = target.place.backward.start if target.place.backward else -1
        if index < 0:
            raise EditError(f"{name} is no point\n  hint: name a backward operation, or an instance for its backward")
        return index

    def _start(self, name: str) -> int:
        """The position in the step of an operation, or of the first operation of an instance."""
        target = self._names.find(name)
        return target.place.forward.start if target.place is not None else target.operation

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
            elif prefix + operation not in self._names.operations:  # inside an instance
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
            raise EditError(f"{scope}{name} is already recomputed before {scope}{before}")
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
                f"{place.id} shares its line with {len(same) - 1} more instances of a repeated block\n"
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
    """Return whether an instance is what `name` names, encloses it, or is within it."""
    return place == name or name.startswith(place + ".") or place.startswith(name + ".")
