"""Attributes that forward sets to numbers, text or shapes, in a step for a range of sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from remate_runtime.errors import ScheduleError
from remate_runtime.format import Real, Size, attributes_of, literals_in, plain_attributes, returned_by

from ..capture.surroundings import warn_of_lost_values
from .align import bare, differs, numbers_of
from .fitting import SizeFitter
from .sampling import Sizes, TraceSample


def without_unfitted(
    trace_samples: Sequence[TraceSample], fitter: SizeFitter, probes: Sequence[Sizes]
) -> tuple[TraceSample, ...]:
    """Return the trace samples without the plain attributes that no expressions of the sizes give. Warns of them.

    probes: Sizes at which all expressions that fit a number must agree.
    """
    trees = [attributes_of(trace_sample.captured.model.outputs) for trace_sample in trace_samples]
    paths = dict.fromkeys(
        path for trace_sample in trace_samples for path in plain_attributes(trace_sample.captured.model.outputs)
    )
    unfitted = [path for path in paths if not _fits([tree.get(path) for tree in trees], fitter, probes)]
    if not unfitted:
        return tuple(trace_samples)
    warn_of_lost_values(unfitted)
    return tuple(_without(trace_sample, unfitted) for trace_sample in trace_samples)


def _fits(trees: Sequence[Any], fitter: SizeFitter, probes: Sequence[Sizes]) -> bool:
    if any(tree is None or bare(tree) != bare(trees[0]) for tree in trees):
        return False
    rows = zip(*(numbers_of(tuple(literals_in(tree))) for tree in trees), strict=True)
    return all(_follows(fitter.expressions(row), probes) for row in rows if differs(row))


def _follows(candidates: Sequence[Size | Real], probes: Sequence[Sizes]) -> bool:
    try:
        return bool(candidates) and all(len({each.at(sizes) for each in candidates}) == 1 for sizes in probes)
    except ScheduleError:  # one of them has no number there
        return False


def _without(trace_sample: TraceSample, paths: Sequence[str]) -> TraceSample:
    model = trace_sample.captured.model
    kept = {path: tree for path, tree in attributes_of(model.outputs).items() if path not in paths}
    outputs = {**model.outputs, "attributes": kept} if kept else returned_by(model.outputs)
    captured = replace(trace_sample.captured, model=replace(model, outputs=outputs))
    return replace(trace_sample, captured=captured)
