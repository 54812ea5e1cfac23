"""Finds what is legal in a schedule but probably a mistake.

Each finding has a code, which `schema/lint.md` documents. Every claim about memory is tried with the simulator.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from remate_runtime.errors import ScheduleError
from remate_runtime.format import BASELINE, Schedule, Statement, escape
from remate_runtime.link import Computation, PageBack, PageOut, PageReady

from .analysis import Analysis
from .check import promises
from .late import later_points
from .lines import lines
from .needless_splits import needless_splits
from .ranges import Maxima
from .steps import StepPositions, useful
from .what_if import ALLOWANCE, Trials

CODES = {
    "L001": "a recomputation whose result nobody uses",
    "L002": "a recomputation earlier than needed",
    "L003": "a plan that no instance uses",
    "L004": "a block that no instance uses",
    "L005": "a recomputation that the budget does not need",
    "L006": "a figure of the solve record that the schedule does not give",
    "L007": "two plans of one block that are equal",
    "L008": "an operation that is recomputed twice before one point",
    "L009": "a page without effect",
    "L010": "a page that the budget does not need",
    "L011": "a page that cannot be hidden",
    "L012": "a split that lowers no peak",
}


def lint(opened: Analysis, path: str) -> list[ScheduleError]:
    """All findings, without line and column. path: name of the file for hints."""
    findings = [
        *_unused_results(opened),
        *_twice(opened),
        *_unused_definitions(opened.schedule),
        *_equal(opened.schedule),
    ]
    for entry in later_points(opened, Trials(opened, ALLOWANCE // 2)):
        findings.append(ScheduleError("L002", entry.message, entry.where, entry.hint))
    findings += [*_without_effect(opened), *_needless_pages(opened, path)]
    findings += [*_unhidden(opened), *_slack(opened, path), *needless_splits(opened)]
    findings += [ScheduleError("L006", p.message, p.where, p.hint) for p in promises(opened, path) if p.code == "R081"]
    return findings


def _unused_results(opened: Analysis) -> Iterator[ScheduleError]:
    needed: dict[str, bool] = {}
    for where, use in zip(opened.expanded.stated, useful(opened.linked), strict=True):
        needed[where] = needed.get(where, False) or use
    names = _names(opened)
    for where, use in needed.items():
        if not use:
            message = f"nothing uses the result of this recomputation of {names[where]}"
            yield ScheduleError("L001", message, where, "delete it: the time falls, results do not change")


def _twice(opened: Analysis) -> Iterator[ScheduleError]:
    seen: set[tuple[int, int]] = set()
    reported: set[str] = set()
    names = _names(opened)
    for recompute, where in zip(opened.expanded.recomputes, opened.expanded.stated, strict=True):
        key = recompute.op, recompute.before
        if key in seen and where not in reported:
            reported.add(where)
            point = opened.graph.operations[recompute.before].id
            yield ScheduleError(
                "L008", f"{names[where]} is recomputed a second time before {point}", where, "delete one of the two"
            )
        seen.add(key)


def _without_effect(opened: Analysis) -> Iterator[ScheduleError]:
    """Pages that have no effect in any instance of their line."""
    leaving = {event.value for event in opened.linked.events if isinstance(event, PageOut | PageBack)}
    acts: dict[str, bool] = {}
    for page, where in zip(opened.expanded.pages, opened.expanded.paged, strict=True):
        acts[where] = acts.get(where, False) or page.value in leaving
    names = {
        w: opened.graph.values[p.value].name for p, w in zip(opened.expanded.pages, opened.expanded.paged, strict=True)
    }
    for where, act in acts.items():
        if not act:
            message = f"{names[where]} does not leave: nothing reads it after that point, or it is computed again"
            yield ScheduleError("L009", message, where, "delete it, or choose other points")


def _needless_pages(opened: Analysis, path: str) -> Iterator[ScheduleError]:
    """The values of one operation, or one parameter, that fit the budget without paging, the longest stall first. At
    most one finding."""
    clock, budget, trials = opened.timeline.clock, opened.schedule.solve.budget, Trials(opened, ALLOWANCE // 2)
    if clock is None or opened.timeline.peak > budget:
        return
    graph, busy = opened.graph, dict[tuple[int, ...], int]()
    for copy in clock.copies:
        producer = graph.values[copy.value].producer
        together = (copy.value,) if producer < 0 else graph.operations[producer].writes
        values = tuple(value for value in together if value is not None)
        busy[values] = busy.get(values, 0) + copy.end - copy.begin
    for values in sorted(busy, key=lambda values: (-busy[values], values)):
        outcome = trials.without_pages(values)
        if outcome is None:
            return
        if outcome.peak <= budget and outcome.time <= opened.timeline.time:
            name, saved = graph.values[values[0]].name.partition(":")[0], opened.timeline.time - outcome.time
            message = f"keeping {name} saves {saved:,} ns, and the peak is then {outcome.peak:,} bytes"
            yield ScheduleError("L010", message, "/solve/budget", f"remate edit {path} --keep {name}")
            return


def _unhidden(opened: Analysis) -> Iterator[ScheduleError]:
    """Pages whose copies take longer than the operations between the two reads. One finding for each line of the file.

    A plan for least energy accepts waits.
    """
    settings, graph = opened.schedule.solve.settings, opened.graph
    if settings is not None and settings.objective == "energy":
        return
    where: dict[int, str] = {}
    for page, line in zip(opened.expanded.pages, opened.expanded.paged, strict=True):
        where.setdefault(page.value, line)
    now, left, worst = 0, dict[int, int](), dict[str, tuple[int, int, int]]()
    for event in opened.linked.events:
        if isinstance(event, Computation):
            now += graph.operations[event.op].ns
        elif isinstance(event, PageOut):
            left[event.trip] = now
        elif isinstance(event, PageReady) and event.trip in left:
            lane, nbytes, meanwhile = graph.lanes[event.to], graph.nbytes(event.value), now - left[event.trip]
            copies = 2 * lane.latency + nbytes * 1_000_000_000 // lane.out + nbytes * 1_000_000_000 // lane.back
            line = where[event.value]
            if copies > meanwhile and copies - meanwhile > worst.get(line, (0, 0, 0))[0]:
                worst[line] = copies - meanwhile, event.value, meanwhile
    for line, (wait, value, meanwhile) in worst.items():
        name = graph.values[value].name.partition(":")[0]
        message = (
            f"copies of {name} take {wait + meanwhile:,} ns, and operations meanwhile {meanwhile:,} ns: the step waits"
        )
        hint = "delete it, recompute the value instead, or page a value with a longer time between its reads"
        yield ScheduleError("L011", message, line, hint)


def _names(opened: Analysis) -> dict[str, str]:
    """For each JSON pointer of a recomputation, the first operation that it stands for."""
    operations, names = opened.graph.operations, dict[str, str]()
    for recompute, where in zip(opened.expanded.recomputes, opened.expanded.stated, strict=True):
        names.setdefault(where, operations[recompute.op].id)
    return names


def _unused_definitions(schedule: Schedule) -> Iterator[ScheduleError]:
    used = _reachable(schedule)
    named = {(line.block, line.plan) for line in lines(schedule).values()}
    for name, block in schedule.blocks.items():
        where = f"/blocks/{escape(name)}"
        if name not in used:
            yield ScheduleError("L004", f"no instance uses block {name!r}", where, "delete it")
            continue
        several = sum(line.block == name for line in lines(schedule).values()) > 1
        for plan in (
            block.plans if not several else ()
        ):  # with several instances, an unused plan is a choice that editors may make
            if plan != BASELINE and (name, plan) not in named:
                hint = "delete it, or let an instance use it"
                yield ScheduleError("L003", f"no instance uses plan {plan!r}", f"{where}/plans/{escape(plan)}", hint)


def _reachable(schedule: Schedule) -> set[str]:
    names: set[str] = set()
    todo = [instance.block for instance in schedule.program]
    while todo:
        name = todo.pop()
        if name not in names:
            names.add(name)
            todo += [instance.block for instance in schedule.blocks[name].instances]
    return names


def _equal(schedule: Schedule) -> Iterator[ScheduleError]:
    for name, block in schedule.blocks.items():
        seen: dict[tuple[Statement, ...], str] = {}
        for plan, entries in block.plans.items():
            bare = tuple(replace(entry, note="") for entry in entries)
            if bare in seen or not (bare or plan == BASELINE):
                other = seen.get(bare, BASELINE)
                where = f"/blocks/{escape(name)}/plans/{escape(plan)}"
                yield ScheduleError("L007", f"plan {plan!r} is equal to {other!r}", where, f"use {other!r} for both")
            seen.setdefault(bare, plan)


def _slack(opened: Analysis, path: str) -> Iterator[ScheduleError]:
    """The most expensive operation whose recomputations the budget does not need. At most one finding."""
    graph, timeline, budget = opened.graph, opened.timeline, opened.schedule.solve.budget
    if timeline.peak > budget or not opened.expanded.recomputes:
        return
    steps, trials, maxima = StepPositions(opened), Trials(opened, ALLOWANCE // 2), Maxima(timeline.during)

    def spent(op: int) -> int:
        return graph.operations[op].ns * len(steps.recomputes_of[op])

    for op in sorted(steps.recomputes_of, key=lambda op: (-spent(op), op)):
        spans = [span for value in steps.results(op) for span in steps.spans.get(value, ())]
        first, last = min((s.start for s in spans), default=0), max((s.start for s in spans), default=0)
        if not spent(op) or maxima.within(first, last) + steps.nbytes(op) > budget:
            continue
        outcome = trials.keeping({op})
        if outcome is None:
            return
        if outcome.peak <= budget and outcome.time < timeline.time:
            name, saved = graph.operations[op].id, timeline.time - outcome.time
            unused = budget - timeline.peak
            why = f"the budget has {unused:,} bytes unused" if unused else "the peak is elsewhere"
            message = f"{why}: keeping {name} saves {saved:,} ns, and the peak is then {outcome.peak:,} bytes"
            yield ScheduleError("L005", message, "/solve/budget", f"remate edit {path} --keep {name}")
            return
