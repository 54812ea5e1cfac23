"""Compiled segments that are slower than their interpretation are interpreted, if the budget permits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from remate.step_measurement.allocator import peak_bytes
from remate_runtime import Schedule, apply, predicted_peak
from remate_runtime.engine.compiled import compiled_engine, times
from remate_runtime.engine.compiled.artefacts import Artefacts, Function
from remate_runtime.engine.compiled.calls import Interpretation
from remate_runtime.engine.compiled.fit import FittedSegments, fit
from remate_runtime.engine.compiled.segments import Segment
from remate_runtime.engine.compiled.times import KnownTimes, SegmentTimes, compiled_run

from ..small import data, seeded
from ..stepping import assert_same, in_blocks, just_in_time, no_recomputes, step
from .subjects import Block, Mixed

_measured = KnownTimes.of  # before the suite replaces it
Run = Callable[[], Callable[[], Any]]


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(0.0) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


X = data(64, 8)


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> list[FittedSegments]:
    """What `fit` has returned."""
    results: list[FittedSegments] = []

    def watched(*given: Any) -> FittedSegments:
        results.append(fit(*given))
        return results[-1]

    monkeypatch.setattr(compiled_engine, "fit", watched)
    return results


def compiled_keys(result: FittedSegments) -> list[str]:
    return [planned.function.key for row in result.sections for planned in row if planned.function is not None]


def verdicts(monkeypatch: pytest.MonkeyPatch, slower: Callable[[str], bool]) -> None:
    """Functions whose key `slower` accepts take twice the time of the interpreter, and the others half of it."""

    def of(self: KnownTimes, key: str, compiled: Run, interpreted: Run) -> SegmentTimes:
        return SegmentTimes(2, 1) if slower(key) else SegmentTimes(1, 2)

    monkeypatch.setattr(KnownTimes, "of", of)


def applied(schedule: Schedule) -> nn.Module:
    return apply(seeded(Blocks()), schedule, engine="compiled")


@pytest.mark.slow
def test_slower_segments_are_interpreted(monkeypatch: pytest.MonkeyPatch, fitted: list[FittedSegments]) -> None:
    schedule = in_blocks(seeded(Blocks()), (X,), no_recomputes)
    verdicts(monkeypatch, lambda key: False)
    step(applied(schedule), (X,))
    every = compiled_keys(fitted[-1])
    slow = max(set(every), key=every.count)
    verdicts(monkeypatch, lambda key: key == slow)
    model = applied(schedule)
    assert_same(step(model, (X,)), step(seeded(Blocks()), (X,)), 1e-5)
    assert compiled_keys(fitted[-1]) == [key for key in every if key != slow]
    model.zero_grad()
    assert peak_bytes(lambda: model(X).backward()) == predicted_peak(model)


@pytest.mark.slow
def test_a_segment_stays_compiled_if_the_budget_requires_it(
    monkeypatch: pytest.MonkeyPatch, fitted: list[FittedSegments]
) -> None:
    schedule = in_blocks(seeded(Blocks()), (X,), just_in_time)
    verdicts(monkeypatch, lambda key: False)
    compiled = predicted_peak(applied(schedule))
    verdicts(monkeypatch, lambda key: True)
    interpreted = predicted_peak(applied(schedule))
    assert not compiled_keys(fitted[-1])
    assert compiled < interpreted
    tight = lambda linked, *rest: fit(linked._replace(budget=compiled), *rest)  # noqa: E731
    results: list[FittedSegments] = []
    monkeypatch.setattr(compiled_engine, "fit", lambda *given: results.append(tight(*given)) or results[-1])
    assert predicted_peak(applied(schedule)) <= compiled
    assert compiled_keys(results[-1])


@pytest.mark.slow
def test_equal_segments_are_measured_once_on_a_machine(
    monkeypatch: pytest.MonkeyPatch, fitted: list[FittedSegments]
) -> None:
    compared: list[SegmentTimes] = []
    original = times._compare

    def counted(*given: Any) -> SegmentTimes:
        compared.append(original(*given))
        return compared[-1]

    monkeypatch.setattr(KnownTimes, "of", _measured)
    monkeypatch.setattr(times, "_compare", counted)
    schedule = in_blocks(seeded(Blocks()), (X,), no_recomputes)
    step(applied(schedule), (X,))
    assert compared
    assert all(entry.compiled > 0 and entry.interpreted > 0 for entry in compared)
    count = len(compared)
    assert count >= len({*compiled_keys(fitted[-1])})
    step(applied(schedule), (X,))  # with functions and times from the disk
    assert len(compared) == count
    known, run = KnownTimes(torch.device("cpu")), lambda: lambda: None
    for _ in range(2):
        known.of("shared", run, run)
    assert len(compared) == count + 1


def test_a_segment_that_cannot_be_measured_stays_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any) -> SegmentTimes:
        raise RuntimeError("not with such data")

    monkeypatch.setattr(KnownTimes, "of", _measured)
    monkeypatch.setattr(times, "_compare", fails)
    known = KnownTimes(torch.device("cpu"))
    assert known.of("no such key", lambda: lambda: None, lambda: lambda: None) is None


@pytest.mark.parametrize(
    ("compiled", "interpreted", "prefers"), [(200, 100, True), (101, 100, False), (50, 100, False)]
)
def test_interpretation_must_be_faster_beyond_noise(compiled: int, interpreted: int, prefers: bool) -> None:
    assert SegmentTimes(compiled, interpreted).prefers_interpreter is prefers


@pytest.mark.slow
def test_the_interpreter_runs_the_same_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the artificial data of the comparison, both forms leave the same tensors."""
    segments: list[Segment] = []
    original = Interpretation.of

    def noted(self: Interpretation, segment: Segment) -> Run:
        segments.append(segment)
        return original(self, segment)

    def compared(self: Artefacts, function: Function, interpretation: Run) -> bool:
        results = compiled_run(function.run, function.about.input_types, self.device)()()
        slots = interpretation()()
        for owner, tensor in zip(segments[-1].makes, results, strict=True):
            torch.testing.assert_close(tensor, slots[owner], rtol=1e-4, atol=1e-5, check_stride=False)
        return False

    monkeypatch.setattr(Interpretation, "of", noted)
    monkeypatch.setattr(Artefacts, "prefers_interpreter", compared)
    model = seeded(Mixed())
    predicted_peak(apply(model, in_blocks(model, (data(64, 8),), just_in_time), engine="compiled"))
    assert len(segments) > 2
