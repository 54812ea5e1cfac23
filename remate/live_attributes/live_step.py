"""The step with live numbers, of the model or of its call, as inputs: traced at and near their planned values, and
written as one step."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from remate_runtime.flat_step import LIVE, NUMBER, Graph, Number, Op, Value
from remate_runtime.format import Tree, is_object, names_of, renamed, written_number

from ..capture.captured import Captured
from ..errors import CaptureError
from .alike import At, Leak, floats, leak
from .defaults import explicit, implicit
from .fitting import NumberFitter, Values, at_values, equal
from .ranges import Interval, interval
from .tracked import NumberComparison, Tracking

# Captures the step with these numbers (or tracked ones) in attributes, by path.
Trace = Callable[[Mapping[str, Any]], Captured]
Groups = Mapping[str, tuple[str, ...]]  # paths by requested name
_SPECIAL = (-1.0, 0.0, 0.5, 1.0, 2.0)  # values at which operators may behave differently
_GOLDEN = (math.sqrt(5) - 1) / 2
_STEPS = 8  # captures to locate the end of a range
_REFUSED = "compute with it by + - * / ** alone and give it to operators as a number, or do not declare it live"


class LiveStep:
    """Writes the step.

    Raises CaptureError, with module and line, for a step that depends on an attribute in a way that a file cannot
    express.

    Args:
        requested: The attributes by requested name.
        planned: Their current values.
        trace: Captures the step and leaves the model unchanged.
    """

    def __init__(
        self, requested: Groups, planned: Mapping[str, int | float], trace: Trace, say: Callable[[str], None]
    ) -> None:
        self._requested, self._trace, self._say = requested, trace, say
        self._exact = planned
        self._planned: Values = {path: float(value) for path, value in planned.items()}
        self._given = trace(planned)
        self._first = self._plain(self._given)
        self._trace_samples: list[Values] = [self._planned]
        self._captured = [self._first]
        self._decisions: dict[NumberComparison, None] = {}
        known: dict[Tree, None] = dict.fromkeys(planned)
        for k in (0, 1):
            tracking = Tracking()
            values = {path: _beside(value, k, at) for at, (path, value) in enumerate(self._planned.items())}
            self._add(values, tracking)
            known.update(dict.fromkeys(tracking.computed.values()))
            self._decisions.update(tracking.decisions)
        self._fitter = NumberFitter(list(known), self._trace_samples)
        self._rows = {at: numbers for at, numbers in self._numbers() if len({*map(repr, map(float, numbers))}) > 1}
        self._trees = {at: self._tree(at, numbers) for at, numbers in self._rows.items()}

    def written(self, probing: bool = True) -> Captured:
        """Return the planned step with numbers that follow from the attributes, and the ranges over which it is valid.

        Args:
            probing: Determine the ranges by captures; otherwise they follow from forward's comparisons.
        """
        ranges = {path: interval(self._decisions, path, self._planned) for path in self._planned}
        if not probing:
            return self._as(ranges)
        self._refuse_unused()
        for requested, paths in self._requested.items():
            range_ = self._probed(requested, paths, ranges)
            ranges.update(dict.fromkeys(paths, range_))
        return self._as(ranges)

    def _as(self, ranges: Mapping[str, Interval]) -> Captured:
        live = {path: ranges[path].live(value) for path, value in self._exact.items()}
        return replace(self._given, graph=self._graph(), model=replace(self._given.model, live=live))

    def _add(self, values: Values, tracking: Tracking) -> None:
        captured = self._traced(values, tracking.plant(values))
        leaked = leak(self._first, captured)
        if leaked is not None:
            raise self._refusal(leaked, values)
        self._trace_samples.append(values)
        self._captured.append(captured)

    def _traced(self, values: Values, overridden_attributes: Mapping[str, object]) -> Captured:
        self._say(f"tracing with {_spelled(values)}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the first trace emits them
                return self._plain(self._trace(overridden_attributes))
        except CaptureError as error:
            message = f"live numbers: with {_spelled(values)}, {error.message}"
            raise CaptureError(message, error.module, error.source, error.hint, error.parts) from error

    @staticmethod
    def _plain(captured: Captured) -> Captured:
        return replace(captured, graph=explicit(captured.graph))

    def _refusal(self, leaked: Leak, values: Values) -> CaptureError:
        """Return the error for the first requested attribute that causes the difference alone, if one does."""
        for requested, paths in self._requested.items() if len(self._requested) > 1 else ():
            alone = {**self._planned, **{path: values[path] for path in paths}}
            differs = leak(self._first, self._traced(alone, alone))
            if differs is not None:
                return _leaking(differs, [requested], self._planned, alone)
        return _leaking(leaked, list(self._requested), self._planned, values)

    def _numbers(self) -> Iterator[tuple[At, tuple[float, ...]]]:
        for every in zip(*(floats(captured.graph) for captured in self._captured), strict=True):
            yield every[0][0], tuple(number for _, number in every)

    def _tree(self, at: At, numbers: tuple[float, ...]) -> Tree:
        expression = self._fitter.expression(numbers)
        if expression is None:
            op, module = self._first.graph.operations[at[0]], self._first.modules[at[0]]
            shown = ", ".join(f"{number:.6g}" for number in numbers)
            message = (
                f"{op.op} is given a number that follows from {_spelled(self._planned)} in a way that a file cannot "
                f"say: {shown} with {'; '.join(map(_spelled, self._trace_samples))}"
            )
            raise CaptureError(message[:1000], module, op.source, _REFUSED)
        return expression

    def _refuse_unused(self) -> None:
        used = {name for tree in self._trees.values() for name in names_of(tree)}
        used |= {name for d in self._decisions for side in (d.left, d.right) for name in names_of(side)}
        for requested, paths in self._requested.items():
            if used.isdisjoint(paths):
                hint = "leave it out of live=, or check that forward reads it itself, and not a copy that __init__ made"
                raise CaptureError(f"live: forward computes the same whatever {requested!r} is", hint=hint)

    # Ranges

    def _probed(self, requested: str, paths: Sequence[str], ranges: Mapping[str, Interval]) -> Interval:
        """Return the interval around the planned value in which all tried values give the written step."""
        around = Interval()
        for path in paths:
            around = around.within(ranges[path])
        planned = [self._planned[path] for path in paths]
        known: dict[float, bool] = {}

        def holds(value: float) -> bool:
            if value not in known:
                known[value] = self._as_written(dict.fromkeys(paths, value))
            return known[value]

        least, most = min(planned), max(planned)
        between = [n for n in _SPECIAL if least <= n <= most and least < most]
        if least < around.low or most > around.high or not all(map(holds, between)):
            what = f"live: {requested!r} stands for attributes that have no range in common"
            raise CaptureError(
                f"{what}: {_spelled({p: self._planned[p] for p in paths})}", hint="declare them one by one"
            )
        low = self._end(holds, least, around.low, sorted(_SPECIAL, reverse=True))
        high = self._end(holds, most, around.high, sorted(_SPECIAL))
        return Interval(low, high)

    def _end(self, holds: Callable[[float], bool], start: float, limit: float, special: Sequence[float]) -> float:
        """Return how far from `start` towards `limit` `holds` is true at all tried numbers."""
        up = limit > start
        towards = [n for n in special if (start < n < limit if up else limit < n < start)]
        last = start
        for number in [*towards, *([limit] if abs(limit) < 1e300 and limit != start else [])]:
            if not holds(number):
                return _last_holding(holds, last, number)
            last = number
        return limit

    def _as_written(self, values: Values) -> bool:
        """Return whether the step with these numbers is the written one."""
        try:
            captured = self._traced(values, {**self._planned, **values})
        except CaptureError:
            return False
        if leak(self._first, captured) is not None:
            return False
        every = {**self._planned, **values}
        first = dict(floats(self._first.graph))
        return all(
            equal(at_values(self._trees[at], every) if at in self._trees else float(first[at]), number)
            for at, number in floats(captured.graph)
        )

    # What is written

    def _graph(self) -> Graph:
        graph = self._given.graph
        start = len(graph.values)
        number = {path: start + at for at, path in enumerate(self._exact)}
        added = tuple(Value(path, NUMBER, LIVE, data=(value,)) for path, value in self._exact.items())
        taken = {value.name for value in graph.values}
        for path in self._exact:
            if path in taken:
                raise CaptureError(
                    f"live: an input and an attribute are both called {path!r}", hint="rename one of the two"
                )
        replaced: dict[int, Op] = {}
        for (at, where), tree in self._trees.items():
            op = replaced.get(at, self._first.graph.operations[at])
            names = names_of(tree)
            text = written_number(renamed(tree, lambda name, names=names: str(names.index(name))))
            written = Number(text, tuple(map(number.get, names)))  # type: ignore[arg-type]
            placed = _put({"args": op.args, "kwargs": op.kwargs}, where, written)
            replaced[at] = replace(op, args=placed["args"], kwargs=placed["kwargs"])
        operations = tuple(implicit(replaced[at]) if at in replaced else op for at, op in enumerate(graph.operations))
        root = (*graph.root, *range(start, start + len(added)))
        return replace(graph, values=(*graph.values, *added), operations=operations, root=root)


def _put(value: Any, where: tuple[Any, ...], number: Number) -> Any:
    """Replace the number at one place of the arguments."""
    if not where:
        return number
    head, *rest = where
    if is_object(value):
        return {key: _put(item, tuple(rest), number) if key == head else item for key, item in value.items()}
    return tuple(_put(item, tuple(rest), number) if at == head else item for at, item in enumerate(value))


def _beside(planned: float, trace_sample: int, at: int) -> float:
    """Return a number of many digits near the planned one, on the same side of special values, different for each
    attribute."""
    share = 0.05 + 0.2 * math.modf((2 * at + trace_sample + 1) * _GOLDEN)[0]
    if planned == 0:
        return share + 0.3 * trace_sample
    room = min(abs(planned - special) for special in (-1.0, 0.0, 1.0) if planned != special)
    return planned + room * (share if trace_sample == 0 else -share)


def _last_holding(holds: Callable[[float], bool], inside: float, outside: float) -> float:
    """Return the last number before `outside` at which `holds` is known to be true, as it is at `inside`."""
    if not holds(math.nextafter(inside, outside)):
        return inside
    for number in (math.nextafter(outside, inside), outside + (inside - outside) * 2.0**-20):
        if holds(number):
            return number
    left = _STEPS
    last = inside
    while left:
        middle = last + (outside - last) / 2
        last, outside = (middle, outside) if holds(middle) else (last, middle)
        left -= 1
    return last


def _leaking(leaked: Leak, requested: Sequence[str], planned: Values, values: Values) -> CaptureError:
    differ = {path: value for path, value in values.items() if value != planned[path]}
    was = _spelled({path: planned[path] for path in differ})
    named = ", ".join(map(repr, requested))
    plural = "s" * (len(requested) > 1)
    message = f"the step depends on the live number{plural} {named}: {leaked.what} ({was}, or {_spelled(differ)})"
    return CaptureError(message[:1000], leaked.module, leaked.source, _REFUSED)


def _spelled(values: Values) -> str:
    """Format values: `alpha=0.5, drop.p=0.1`."""
    listed = [f"{path}={value:.6g}" for path, value in values.items()]
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")
