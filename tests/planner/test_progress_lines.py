"""Progress of a search: the plan, the proof and the gap between them."""

from __future__ import annotations

import re

import pytest

from remate.strategy import QUICK, Request, StepInstance, solve

from .strategy_graphs import transformer


@pytest.mark.slow
def test_the_gap_is_told_as_it_closes() -> None:
    instance, lines = StepInstance(transformer(2)), list[str]()
    request = Request(int(0.55 * instance.baseline.peak), gap=0.0, effort=QUICK)
    solution = solve(instance, request, progress=lines.append)
    told = [line for line in lines if line.startswith(("found:", "proven:"))]
    gaps = [float(match[1]) for line in told if (match := re.search(r", gap ([\d.]+)%$", line))]
    assert len(gaps) >= 2
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[0] > gaps[-1] == round(100 * solution.gap, 2)
    assert all((", gap " in line) == (line.startswith("found:") or n > 0) for n, line in enumerate(told))
