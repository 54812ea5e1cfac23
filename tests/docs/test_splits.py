"""The table of splits is what the code gives, where it does not depend on the machine."""

from __future__ import annotations

import pytest

from tools.bench.split_models import SPLIT_MODELS
from tools.bench.splits import FLOORS, SHARES, TIMES, extra_times, floors
from tools.documentation.results import text_tables

_COMMAND = "write it again: python -m tools.bench.splits -o tools/bench/results/splits.txt"
_PLANNED = ("gpt2", "llama")  # again; all of them take a minute
ESTIMATED = [name for name, subject in SPLIT_MODELS.items() if subject.cost != "measured"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ESTIMATED)
def test_floors_are_current(name: str) -> None:
    head, *rows = text_tables("splits.txt")[0]
    assert tuple(head) == FLOORS
    assert tuple(next(row for row in rows if row[0] == name)) == floors(name), f"splits.txt: {_COMMAND}"


@pytest.mark.slow
@pytest.mark.parametrize("name", _PLANNED)
def test_extra_times_are_current(name: str) -> None:
    head, *rows = text_tables("splits.txt")[1]
    assert tuple(head) == TIMES
    written = {row[1]: row[2:5] for row in rows if row[0] == name}
    for share in SHARES[:1]:
        extra, schedule = extra_times(name, share)
        assert written[share][:2] == list(extra), f"splits.txt: {_COMMAND}"
        assert (written[share][2] != "–") == (schedule is not None)


def test_every_model_has_its_rows() -> None:
    first, second = text_tables("splits.txt")
    assert [row[0] for row in first[1:]] == list(SPLIT_MODELS)
    assert [(row[0], row[1]) for row in second[1:]] == [(name, share) for name in SPLIT_MODELS for share in SHARES]
