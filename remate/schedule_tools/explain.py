"""Why an operation, value or instance is kept or recomputed: its bytes, how long it is held, and the cost of
alternatives."""

from __future__ import annotations

import msgspec

from remate_runtime.flat_step import FlatPage, FlatRecompute, InstanceSpan, held_outside, stays
from remate_runtime.link import Computation, PageOut

from .analysis import Analysis, StorageGroup, grouped, operation_at
from .lines import with_plan
from .names import IdIndex, Named
from .steps import ResidentSpan, StepPositions
from .what_if import TrialResult, Trials

_HOLDERS = 5


class ResidentValue(msgspec.Struct, frozen=True):
    """A value in memory from `start` to `end`, both inclusive. steps: number of operations in between."""

    value: str
    nbytes: int
    start: str
    end: str
    steps: int
    at_peak: bool


class Alternative(msgspec.Struct, frozen=True):
    """Another choice and the cost of the step with it: peak in bytes, time in ns (null: not tried)."""

    what: str
    operations: tuple[str, ...]
    peak: int | None
    time: int | None


class Moment(msgspec.Struct, frozen=True):
    """The first moment of the peak, and which values are in memory then."""

    step: str
    part: str  # forward | backward
    nbytes: int
    holders: tuple[StorageGroup, ...]


class Explanation(msgspec.Struct, frozen=True):
    """kind: operation | source | instance. facts: one line each. choices: the current one first, then alternatives."""

    name: str
    kind: str
    about: str
    facts: tuple[str, ...]
    held: tuple[ResidentValue, ...]
    choices: tuple[Alternative, ...]
    peak: Moment


def explain(opened: Analysis, text: str) -> Explanation:
    """Explain what `text` names. Raise UnknownNameError."""
    target = IdIndex(opened).find(text)
    about = _Explainer(opened)
    if target.place is not None:
        return about.instance(target.place)
    operation = _operation(opened, target)
    return about.operation(operation) if operation >= 0 else about.source(target.value)


def moment(opened: Analysis, limit: int | None = _HOLDERS) -> Moment:
    """The first moment of the peak, with at most `limit` groups of values."""
    timeline = opened.timeline
    part = "forward" if timeline.peak_at < timeline.backward_start else "backward"
    step = operation_at(opened, timeline.peak_at) if timeline.during else "(the step has no operations)"
    return Moment(step, part, timeline.peak, tuple(grouped(opened, timeline.peak_at)[:limit]))


def _operation(opened: Analysis, target: Named) -> int:
    return target.operation if target.operation >= 0 else opened.graph.values[target.value].producer


class _Explainer:
    def __init__(self, opened: Analysis) -> None:
        self.opened, self.graph = opened, opened.graph
        self.steps, self.trials = StepPositions(opened), Trials(opened)

    def operation(self, index: int) -> Explanation:
        op = self.graph.operations[index]
        types = ", ".join("-" if v is None else str(self.graph.values[v].type) for v in op.writes)
        facts = [f"{op.op} -> {types}"]
        if op.source:
            facts.append(f"source: {op.source}")
        if op.view:
            base = self.graph.values[self.graph.root[op.reads[0]]]
            facts.append(f"a view of %{base.name}: it takes no memory and no time, and is computed again on demand")
            return self._done(op.id, "operation", "view", facts, (), ())
        if index >= self.graph.backward_start:
            facts.append("backward operations run once; only forward operations are recomputed")
            facts += self._trips(index)
            return self._done(op.id, "operation", "backward", facts, self._held(index), ())
        facts += self._uses(index)
        choices = self._choices(index)
        return self._done(op.id, "operation", self._decision(index), facts, self._held(index), choices)

    def source(self, value: int) -> Explanation:
        about = self.graph.values[value]
        counted = "tangents count" if about.kind == "tangent" else f"{about.kind}s do not count towards the peak"
        if about.kind == "parameter" and self.opened.linked.parameters_paged:
            counted = "parameters count towards the peak, because some are paged"
        readers = self.steps.readers.get(value, [])
        facts = [f"{about.kind} {about.type}, {counted}", f"read by {self._listed(readers)}", *self._resident(value)]
        return self._done(about.name, "source", about.kind, facts, (), self._places(value))

    def _places(self, value: int) -> tuple[Alternative, ...]:
        """For a parameter: stay on the device, or leave it whenever nothing reads it."""
        pages = self.opened.expanded.pages
        if any(page.value == value for page in pages):
            return self._now(), self._tried("keep it", (), self.trials.without_pages([value]))
        if not self.opened.linked.parameters_paged or stays(self.graph, value, held_outside(self.graph)):
            return ()
        return self._now(), self._tried("page it to the disk", (), self.trials.paging(FlatPage(value)))

    def instance(self, place: InstanceSpan) -> Explanation:
        plan, block = place.instance.plan, place.block
        recomputes = [r for r in self.opened.expanded.recomputes if r.op in place.forward]
        spent = sum(self.graph.operations[r.op].ns for r in recomputes)
        facts = [
            f"block {place.block_name}, {len(place.forward)} forward and {len(place.backward)} backward operations",
            f"{len(recomputes)} of its operations are recomputed, {spent:,} ns in all"
            if recomputes
            else "none of its operations are recomputed",
        ]
        held = tuple(h for op in place.forward for h in self._held(op) if h.at_peak)
        facts.append(f"holds {sum(h.nbytes for h in held):,} bytes at the peak")
        choices = [self._now()]
        if place.leaf:
            others = [name for name in ("baseline", *block.plans) if name != plan]
            choices += [self._with_plan(place, name) for name in dict.fromkeys(others)]
        return self._done(place.id, "instance", f"plan {plan}", facts, held, tuple(choices))

    def _done(
        self,
        name: str,
        kind: str,
        about: str,
        facts: list[str],
        held: tuple[ResidentValue, ...],
        choices: tuple[Alternative, ...],
    ) -> Explanation:
        return Explanation(name, kind, about, tuple(facts), held, choices, moment(self.opened))

    def _decision(self, index: int) -> str:
        again = self.steps.recomputes_of.get(index, [])
        if again:
            return "recompute" if len(again) == 1 else f"recompute {len(again)} times"
        if to := {
            event.to
            for event in self.opened.linked.events
            if isinstance(event, PageOut) and event.value in self.steps.results(index)
        }:
            return f"paged to the {' and the '.join(sorted(to))}"
        backward_start = self.opened.timeline.backward_start
        spans = [span for value in self.steps.results(index) for span in self.steps.spans.get(value, ())]
        return "kept" if any(span.start < backward_start < span.end for span in spans) else "freed in forward"

    def _uses(self, index: int) -> list[str]:
        graph, operations = self.graph, self.graph.operations
        readers = dict.fromkeys(r for value in self.steps.results(index) for r in self.steps.readers.get(value, ()))
        forward = [r for r in readers if r < graph.backward_start]
        backward = [r for r in readers if r >= graph.backward_start]
        facts = [f"read in forward by {self._listed(forward)}; in backward by {self._listed(backward)}"]
        if not readers:
            facts = ["read by nothing"]
        if any(graph.root[v] in self.steps.results(index) for v in graph.outputs):
            facts.append("an output of the model: the caller holds it until the step ends")
        points = [
            operations[self.opened.expanded.recomputes[k].before].id for k in self.steps.recomputes_of.get(index, ())
        ]
        if points:
            facts.append(f"recomputations before {', '.join(points)}: {operations[index].ns:,} ns each time")
        facts += self._trips(index)
        if operations[index].random and points:
            facts.append("draws random numbers: its recomputations replay the generator state of the first run")
        return facts

    def _trips(self, index: int) -> list[str]:
        """Facts about the pages of the operation's values."""
        clock, values = self.opened.timeline.clock, self.steps.results(index)
        copies = [copy for copy in clock.copies if copy.value in values] if clock is not None else []
        pages = sum(page.value in values for page in self.opened.expanded.pages)
        if not copies:
            return (
                ["a page of it has no effect: nothing reads it after the point where it would leave"] if pages else []
            )
        busy = sum(copy.end - copy.begin for copy in copies)
        nbytes = sum(self.graph.nbytes(copy.value) for copy in copies if copy.direction == "out")
        if index >= self.graph.backward_start:
            return [f"leaves the device when it is complete, {nbytes:,} bytes: {busy:,} ns of the lane"]
        return [
            f"leaves the device and comes back, {nbytes:,} bytes: {len(copies)} copies, which take "
            f"{busy:,} ns of the lanes"
        ]

    def _resident(self, value: int) -> list[str]:
        """When a paged parameter is on the device."""
        clock = self.opened.timeline.clock
        copies = [copy for copy in clock.copies if copy.value == value] if clock is not None else []
        if not copies:
            return []
        held = [self._first_and_last(span) for span in self.steps.spans.get(value, ())]
        busy = sum(copy.end - copy.begin for copy in copies)
        return [
            f"on the device from {', '.join(' to '.join(names) for names in held if names)}; "
            f"{len(copies)} copies back, which take {busy:,} ns of the lane"
        ]

    def _first_and_last(self, span: ResidentSpan) -> tuple[str, str] | None:
        """The first and the last operation that run during a span."""
        events = self.opened.linked.events
        at = [k for k in range(span.start, min(span.end + 1, len(events))) if isinstance(events[k], Computation)]
        return (operation_at(self.opened, at[0]), operation_at(self.opened, at[-1])) if at else None

    def _listed(self, operations: list[int]) -> str:
        names = [self.graph.operations[i].id for i in operations]
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        return ", ".join(names[:4]) + more if names else "nothing"

    def _held(self, index: int) -> tuple[ResidentValue, ...]:
        residents: list[ResidentValue] = []
        for value in self.steps.results(index):
            residents += [self._span(value, span) for span in self.steps.spans.get(value, ()) if span.allocation.nbytes]
        return tuple(residents)

    def _span(self, value: int, span: ResidentSpan) -> ResidentValue:
        at_peak = span.start <= self.opened.timeline.peak_at <= span.end
        start, end = operation_at(self.opened, span.start), operation_at(self.opened, span.end)
        name = self.graph.values[value].name
        return ResidentValue(name, span.allocation.nbytes, start, end, self.steps.count(span), at_peak)

    def _now(self) -> Alternative:
        return Alternative("as it is", (), self.opened.timeline.peak, self.opened.timeline.time)

    def _choices(self, index: int) -> tuple[Alternative, ...]:
        if self.steps.recomputes_of.get(index):
            return self._now(), self._tried("keep it", (), self.trials.keeping({index}))
        point = self.steps.first_backward_read(index)
        if any(page.value in self.steps.results(index) for page in self.opened.expanded.pages):
            own_values = self.steps.results(index)
            kept = self._now(), self._tried("keep it", (), self.trials.without_pages(own_values))
            if point < 0:
                return kept
            operations = self.graph.operations
            readers = [r for r in self.opened.expanded.recomputes if set(operations[r.op].reads) & set(own_values)]
            point = min([point, *(reader.before for reader in readers)])
            closure = self.steps.closure(index, point)
            instead = self.trials.without_pages(own_values, [FlatRecompute(op, point) for op in closure])
            others = ", and what it needs" if len(closure) > 1 else ""
            return *kept, self._tried(f"recompute it instead{others}", tuple(closure), instead)
        if point < 0 or self._decision(index) != "kept":
            return ()
        closure = self.steps.closure(index, point)
        before = self.graph.operations[point].id
        choices = [self._now()]
        alone = self.trials.recomputing([FlatRecompute(index, point)])
        choices.append(self._tried(f"recompute it before {before}", (index,), alone))
        values = [value for value in self.steps.results(index) if self.graph.nbytes(value)]
        if len(values) == 1 and not stays(self.graph, values[0], held_outside(self.graph)):
            choices.append(self._tried("page it to the disk", (), self.trials.paging(FlatPage(values[0]))))
        if len(closure) > 1:
            both = self.trials.recomputing([FlatRecompute(op, point) for op in closure])
            choices.append(self._tried("recompute it, and what it needs", tuple(closure), both))
        return tuple(choices)

    def _tried(self, what: str, operations: tuple[int, ...], result: TrialResult | None) -> Alternative:
        names = tuple(self.graph.operations[i].id for i in operations)
        return Alternative(what, names, result.peak if result else None, result.time if result else None)

    def _with_plan(self, place: InstanceSpan, plan: str) -> Alternative:
        result = self.trials.of_schedule(with_plan(self.opened.schedule, [place.where], plan))
        return self._tried(f"plan {plan}", (), result)
