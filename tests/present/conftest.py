"""The schedules that the pages of these tests show."""

from __future__ import annotations

from pathlib import Path

import pytest

from remate.schedule_tools.analysis import Analysis, open_schedule

SCHEDULE = Path(__file__).parents[1] / "cli" / "data" / "mlp.json"


@pytest.fixture(scope="session")
def mlp() -> Analysis:
    return open_schedule(str(SCHEDULE))
