"""Planning with splits: which windows, in how many tiles, and the fastest schedule with them or without.

The number of tiles is searched: each number is expanded and costed, and a quick search plans it. The best one is then
planned as requested. Beyond loss heads, windows are searched by the most bytes that an operation may need. Each window
with more is split into as few tiles as it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from remate_runtime.errors import ScheduleError
from remate_runtime.format import Schedule, Settings
from remate_runtime.support.quantities import overhead, size

from ..budget import parse_budget
from ..errors import InfeasibleError, SplitFloor
from ..partition.hierarchy import Hierarchy
from ..profile.devices import is_estimated
from ..splits.enough_rows import rows_at_least
from ..splits.tiled_step import TiledStep, compatible, tiled_step
from ..splits.windows import ALL, HEAD, SPLITS, Window, head_windows, large_windows, loss_heads
from ..strategy import QUICK, CandidatePool, Request, Solution, StepInstance, effort_named, policy, solve
from .progress import Progress, silent
from .unsolved import without_recomputes

TILES = (2, 4, 8, 16, 32, 64, 128)  # numbers of tiles that are tried
FEWEST_ROWS = 8  # of a tile
SHARES = (2, 4, 8, 16, 32)  # of the floor: the most bytes that an operation may need
_AGAIN = 2  # numbers of tiles that are searched again if a quick search finds nothing that fits
NEVER = 1 << 62  # ns
_WORTH = 0.01  # of the baseline's time: the least that a split has to save, as it changes how gradients are rounded
_PROPOSED = 5000  # tiles of operations in a split that is proposed
_LOWER = 0.95  # of another floor: a floor that is proposed instead
_WORSE = 2  # numbers of tiles in a row that bring nothing end the search
_T = TypeVar("_T")


class _Tried(msgspec.Struct, frozen=True):
    """A step with so many tiles per window; without any, the step as it is.

    Attributes:
        words: What is split, for messages.
        peak: The least peak that was reached; the floor if that is over the budget.
        solution: Of the quick search; None if nothing fits.
        pool: The schedules that were found.
    """

    instance: StepInstance
    tiled: TiledStep | None
    words: str
    peak: int
    solution: Solution | None
    pool: CandidatePool

    @property
    def time(self) -> int:
        """Return ns; more than any time if nothing fits."""
        return NEVER if self.solution is None else self.solution.time


def plan_split(
    step: Hierarchy, settings: Settings, cost: str, *, name: str, note: str = "", progress: Progress | None = None
) -> Schedule:
    """Plan a step as `plan_step` does, with splits where they help.

    Args:
        step: The result of `prepare`.
        settings: With `split`.
        cost: Name of the costs.
        name: Name of the schedule.
        note: Remark to keep in the file.
        progress: Function that gets a line of text now and then.

    Raises:
        InfeasibleError: No schedule within the budget was found, with splits or without.
    """
    from .writing import schedule_of

    search = _SplitSearch(step, settings, cost, progress or silent)
    chosen, solution = search.solution()
    about: dict[str, Any] = {"settings": settings, "name": name, "note": note, "tiled": chosen.tiled}
    return schedule_of(step, solution, search.limit, cost, **about)


def fastest_split(step: Hierarchy, settings: Settings, cost: str, *, progress: Progress) -> TiledStep | None:
    """Return the split step that a quick search finds fastest within the budget; None if no split is faster.

    Where nothing fits, it is the one with the smallest peak.

    Args:
        step: The result of `prepare`.
        settings: With `split`.
        cost: Name of the costs.
        progress: Function that gets a line of text now and then.
    """
    return _SplitSearch(step, settings, cost, progress).fastest()


def floor_if_split(step: Hierarchy, cost: str, limit: int, permitted: str = "") -> SplitFloor | None:
    """Return the lowest proven floor with splits; None if none is lower than without.

    Args:
        step: The step.
        cost: Name of the costs.
        limit: The budget in bytes. Other operations than loss heads are split only if that takes more than heads.
        permitted: The splits that the request permits already, which are not proposed.
    """
    whole = StepInstance(step.captured.graph, step.parts)
    bare, best = _bare(step, whole, cost), None
    least = whole.floor
    for kind, numbers in _to_propose(step, whole.floor, permitted):
        if least <= limit:
            break
        try:
            tiled = tiled_step(bare, numbers if kind == HEAD else compatible(bare, numbers), cost, step.price)
        except ScheduleError:
            continue
        floor = StepInstance(tiled.expanded.graph, tiled.blocks).floor
        if floor < _LOWER * least:
            best, least = SplitFloor(kind, floor), floor
    return best


def _to_propose(
    step: Hierarchy, floor: int, permitted: str
) -> Iterator[tuple[Literal["head", "all"], Mapping[Window, int]]]:
    """Yield few splits, as the floor of each takes a while: those of loss heads first."""
    windows = head_windows(step) if permitted not in SPLITS else ()
    for into in TILES[1::2] if windows else ():
        if into <= _most(windows):
            yield HEAD, _numbers(windows, into)
    for share in SHARES[1::2] if permitted != ALL else ():
        numbers = _fitting(step, floor // share)
        if numbers and sum(len(window.operations) * into for window, into in numbers.items()) <= _PROPOSED:
            yield ALL, numbers


def why_not_split(step: Hierarchy) -> str:
    """Return why no loss head can be split; "" if one can."""
    heads = loss_heads(step)
    if heads.windows:
        return ""
    if not heads.refusals:
        return "no loss head can be split: the model has no loss that is known (cross_entropy, nll_loss, log_softmax)"
    refusal = heads.refusals[0]
    return f"no loss head can be split: {refusal.message}" + (f"\n  hint: {refusal.hint}" if refusal.hint else "")


def tiled_steps(
    step: Hierarchy, whole: StepInstance, permitted: str, cost: str
) -> Iterator[Iterator[tuple[str, TiledStep]]]:
    """Yield sequences of split steps, each from few tiles to many, with words for messages.

    Args:
        step: The result of `prepare`.
        whole: The step without splits.
        permitted: What may be split.
        cost: Name of the costs.
    """
    bare = _bare(step, whole, cost)
    for family in _families(step, permitted, whole.floor):
        compatibles = (
            (words, compatible(bare, rows_at_least(bare, numbers, _given(step)))) for words, numbers in family
        )
        yield ((words, tiled_step(bare, numbers, cost, step.price)) for words, numbers in compatibles if numbers)


def few_splits(step: Hierarchy, permitted: str, bare: Schedule) -> Iterator[TiledStep]:
    """Yield the step in few numbers of tiles, which cost their share.

    Args:
        step: The result of `prepare`.
        permitted: What may be split; "" for nothing.
        bare: The schedule of the step, without a plan.
    """
    if not permitted:
        return
    heads = head_windows(step)
    few = [_numbers(heads, into) for into in TILES[1::2] if into <= _most(heads)]
    if permitted == ALL:
        floor = StepInstance(step.captured.graph, step.parts).floor
        few += [_fitting(step, floor // share) for share in SHARES[1::2]]
    for windows in few:
        if numbers := compatible(bare, rows_at_least(bare, windows, _given(step))):
            yield tiled_step(bare, numbers, "", None)


def while_better(attempts: Iterator[_T], figure: Callable[[_T], Any]) -> Iterator[_T]:
    """Yield attempts until some in a row do not lower a figure."""
    worse, best = 0, None
    for attempt in attempts:
        yield attempt
        reached = figure(attempt)
        worse = 0 if best is None or reached < best else worse + 1
        best = reached if best is None else min(best, reached)
        if worse == _WORSE:
            return


def worth_a_split(time: int, whole: int, baseline: int) -> bool:
    """Return whether a schedule with splits saves enough time beside one without, in ns."""
    return whole - time >= _WORTH * baseline


def beside_whole(solution: Solution, whole: StepInstance) -> Solution:
    """Return a solution of a split step with the baseline of the step without splits."""
    base = whole.baseline
    gap = max(0.0, (solution.time - solution.lower_bound) / max(1, base.time))
    return replace(solution, baseline_peak=base.peak, baseline_time=base.time, gap=gap)


def narrowed_sizes(schedule: Schedule, step: Hierarchy) -> list[str]:
    """Return which sizes begin later than in the step because a window needs a row for every tile, as text."""
    before = {} if step.sized is None else step.sized.generic.model.dims
    return [
        f"{name} is from {dim.min}, not {before[name].min}: a split needs a row for every tile"
        for name, dim in schedule.model.dims.items()
        if name in before and dim.min > before[name].min
    ]


class _SplitSearch:
    """The search for the number of tiles."""

    def __init__(self, step: Hierarchy, settings: Settings, cost: str, say: Progress) -> None:
        self._step, self._settings, self._cost, self._say = step, settings, cost, say
        self._whole = StepInstance(step.captured.graph, step.parts)
        self.limit = parse_budget(settings.budget).resolve(self._whole.baseline.peak)
        self._policy, self._interrupted = policy(settings.strategy), False

    def solution(self) -> tuple[_Tried, Solution]:
        """Return the best step and its solution.

        Raises:
            InfeasibleError: Nothing fits.
        """
        tried = list(self._tried())
        if any(candidate.solution is not None for candidate in tried):
            return self._fastest_solution(tried)
        # A quick search may miss what fits: the smallest peaks are searched again as requested.
        able = sorted((c for c in tried if c.instance.floor <= self.limit), key=lambda c: c.peak)
        for best in able[:_AGAIN]:
            self._say_chosen(best)
            try:
                return best, beside_whole(self._solved(best), self._whole)
            except InfeasibleError:
                continue
        raise self._infeasible(tried)

    def fastest(self) -> TiledStep | None:
        """Return the fastest split that a quick search finds; otherwise that with the smallest peak."""
        best = self._best(list(self._tried()))
        self._say_chosen(best)
        return best.tiled

    def _fastest_solution(self, tried: Sequence[_Tried]) -> tuple[_Tried, Solution]:
        """Search the fastest split as requested, and the step without splits, which may improve more than it."""
        best, whole = self._best(tried), tried[0]
        self._say_chosen(best)
        solution = self._solved(best)
        if best.tiled is not None and whole.solution is not None:
            plain = self._solved(whole)
            if not worth_a_split(solution.time, plain.time, self._whole.baseline.time):
                self._say("no split is faster")
                best, solution = whole, plain
        return best, beside_whole(solution, self._whole)

    def _best(self, tried: Sequence[_Tried]) -> _Tried:
        """Return the fastest step, the one with the smallest peak if nothing fits. The first one has no splits."""
        best, whole = min(tried, key=lambda each: (each.time, each.peak)), tried[0]
        fits = whole.solution is not None
        return whole if fits and not worth_a_split(best.time, whole.time, self._whole.baseline.time) else best

    def _say_chosen(self, chosen: _Tried) -> None:
        self._say("no split is faster" if chosen.tiled is None else f"chosen: {chosen.words}")

    def _solved(self, tried: _Tried) -> Solution:
        """Search as requested; after Ctrl-C, take what the quick search found."""
        if tried.solution is not None and self._interrupted:
            return tried.solution
        request = Request(self.limit, self._settings.gap, effort_named(self._settings.effort))
        limits: dict[str, Any] = {"time_limit": self._settings.time_limit, "progress": self._say}
        return solve(tried.instance, request, self._policy, pool=tried.pool, **limits)

    def _tried(self) -> Iterator[_Tried]:
        yield self._quick(self._whole, None, "without a split")
        for family in tiled_steps(self._step, self._whole, self._settings.split, self._cost):
            attempts = (self._quick(StepInstance(t.expanded.graph, t.blocks), t, words) for words, t in family)
            for tried in while_better(
                attempts, lambda tried: (tried.time, tried.peak if tried.solution is None else 0)
            ):
                yield tried
                if self._interrupted:
                    return

    def _quick(self, instance: StepInstance, tiled: TiledStep | None, words: str) -> _Tried:
        request, pool = Request(self.limit, self._settings.gap, QUICK), CandidatePool()
        if instance.floor > self.limit:
            self._say(f"{words}: proven floor {size(instance.floor)}")
            return _Tried(instance, tiled, words, instance.floor, None, pool)
        try:
            solution = solve(instance, request, self._policy, pool=pool, time_limit=self._settings.time_limit)
        except InfeasibleError as error:
            self._say(f"{words}: at least {size(error.smallest)}")
            return _Tried(instance, tiled, words, error.smallest, None, pool)
        self._interrupted |= pool.interrupted
        more = overhead(solution.time, self._whole.baseline.time, "no cost")
        self._say(f"{words}: {more}, peak {size(solution.peak)}")
        return _Tried(instance, tiled, words, solution.peak, solution, pool)

    def _infeasible(self, tried: Sequence[_Tried]) -> InfeasibleError:
        least = min(tried, key=lambda candidate: candidate.peak)
        floor, smallest = min(candidate.instance.floor for candidate in tried), self._whole.baseline.peak
        try:
            self._solved(least)
        except InfeasibleError as error:
            smallest = error.smallest
        figures = smallest, floor, self._settings.strategy, None, self._whole.baseline.peak
        split = floor_if_split(self._step, self._cost, min(self.limit, floor - 1), self._settings.split)
        split = split if split is not None and split.floor < floor else None
        return InfeasibleError(self.limit, *figures).at(self._step.planned, is_estimated(self._cost), split)


def _bare(step: Hierarchy, whole: StepInstance, cost: str) -> Schedule:
    """Return the schedule of a step without a plan."""
    from .writing import schedule_of

    return schedule_of(step, without_recomputes(step.captured.graph, step.parts), whole.baseline.peak, cost, name="")


def _given(step: Hierarchy) -> Collection[str]:
    """Return the names of sizes whose smallest number the caller requested."""
    return step.sized.given if step.sized is not None else ()


def _families(step: Hierarchy, permitted: str, floor: int) -> Iterator[Iterator[tuple[str, Mapping[Window, int]]]]:
    """Yield sequences of splits, each from few tiles to many, with words for messages."""
    heads = head_windows(step)
    yield ((f"the loss head in {into} tiles", _numbers(heads, into)) for into in TILES if into <= _most(heads))
    if permitted == ALL:
        yield ((f"operations of more than {size(floor // k)}", _fitting(step, floor // k)) for k in SHARES)


def _most(windows: Sequence[Window]) -> int:
    """Return the largest number of tiles for loss heads."""
    return max((min(window.rows, window.lines // FEWEST_ROWS) for window in windows), default=0)


def _numbers(windows: Sequence[Window], into: int) -> Mapping[Window, int]:
    return {window: min(into, window.rows) for window in windows}


def _fitting(step: Hierarchy, most: int) -> Mapping[Window, int]:
    """Return windows of all operations that need more bytes, in as few tiles as it takes, a power of 2."""
    numbers: dict[Window, int] = {}
    for window in large_windows(step, most):
        into = 1 << (-(-window.need // max(1, most)) - 1).bit_length()
        if window.rows > 1:
            numbers[window] = max(2, min(into, window.rows, TILES[-1]))
    return numbers
