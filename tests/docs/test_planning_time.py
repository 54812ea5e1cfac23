"""The table of planning times has the plans and bounds that the code gives."""

from __future__ import annotations

import pytest

from tools.bench.low_budgets import measured
from tools.bench.planning_time import BUDGETS, TABLE, cells, instance, stored, text
from tools.bench.short_step_models import MODELS

_COMMAND = "write it again: python -m tools.bench.planning_time --again"
_SHORT = 1.0  # CPU seconds of the rows that are planned again


@pytest.mark.quick("regnet")
@pytest.mark.parametrize("name", [*MODELS][::3])
def test_plans_and_bounds_are_current(name: str) -> None:
    rows = [row for row in stored().values() if row.model == name and not row.below and row.cpu < _SHORT]
    if not rows:
        pytest.skip("every search takes longer")
    step = instance(name)
    for row in rows:
        now = cells(measured(name, row.budget, "auto", step))
        assert (*now[:6], now[-1]) == (*cells(row)[:6], cells(row)[-1]), _COMMAND


def test_the_table_has_every_row() -> None:
    assert set(stored()) == {(name, budget) for name in MODELS for budget in BUDGETS}
    assert TABLE.read_text(encoding="utf-8").splitlines()[-1] == text(list(stored().values())).splitlines()[-1]
