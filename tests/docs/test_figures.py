"""Figures about large models in the documentation are what the code gives: operations, memory and time of the step
without recomputation, and the extra time of plans."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from remate.budget import parse_budget
from remate.strategy import Request, StepInstance, solve
from tools.bench.absent_gpu import step_on
from tools.bench.models import LARGE
from tools.bench.suite import COST
from tools.documentation.results import lines_of

_COMMAND = "write it again by the command in its first line, with -o tools/bench/results/suite.txt"
_SMALL = ("gpt2",)  # quick enough for each run of the tests
_REPEATED = ("gpt2-xl",)  # more of the blocks of another
_CLOSE = 0.1  # percentage points: a strategy may become a little better before the table is written again


class Figures(NamedTuple):
    """Of a model in `suite.txt`. overheads: in %, by budget; without those that a solve's time limit decided."""

    operations: str
    baseline: str
    overheads: dict[str, float]


def written() -> dict[str, Figures]:
    models: dict[str, Figures] = {}
    name = ""
    for line in lines_of("suite.txt"):
        if about := re.match(r"([\w-]+): .*; ([\d,]+) operations, prepared in", line):
            name = about[1]
            models[name] = Figures(about[2], "", {})
        elif name and line.startswith("without recomputation"):
            models[name] = models[name]._replace(baseline=line.split("; ")[0])
        elif (row := re.match(r"(\d+%) .*? \+([\d.]+)%", line)) and " gap " in line:
            models[name].overheads[row[1]] = float(row[2])
    return models


WRITTEN = written()


def test_every_table_was_read() -> None:
    assert set(WRITTEN) >= {"gpt2", "gpt2-xl", "t5", "resnet101"}
    assert all(figures.operations and figures.baseline and figures.overheads for figures in WRITTEN.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in _SMALL else [pytest.mark.slow])
        for name in WRITTEN
        if name not in _REPEATED
    ],
)
def test_figures_of_large_models_are_current(name: str) -> None:
    figures = WRITTEN[name]
    step = step_on(COST, LARGE[name].build())
    instance = StepInstance(step.captured.graph, step.parts)
    base = instance.baseline
    operations = f"{sum(not op.view for op in step.captured.graph.operations):,}"
    baseline = f"without recomputation {base.peak / 2**30:.2f} GiB, {base.time / 1e6:.1f} ms"
    assert (operations, baseline) == (figures.operations, figures.baseline), f"suite.txt: {_COMMAND}"
    for budget, overhead in list(figures.overheads.items())[:1]:
        plan = solve(instance, Request(parse_budget(budget).resolve(base.peak)))
        assert 100 * (plan.time / base.time - 1) == pytest.approx(overhead, abs=_CLOSE), (
            f"suite.txt, {budget}: {_COMMAND}"
        )
