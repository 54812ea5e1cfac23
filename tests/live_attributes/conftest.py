"""Settings of these tests."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def short(short_searches: None) -> None:
    """No test here needs a fast schedule, only one that fits its budget."""
