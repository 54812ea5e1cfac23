"""The table of layouts of clusters is what the code gives."""

from __future__ import annotations

import pytest

from tools.bench.layouts import HEAD, ROWS, predicted, published, shown
from tools.documentation.results import text_tables

_COMMAND = "layouts.txt: write it again: python -m tools.bench.layouts -o tools/bench/results/layouts.txt"


def written() -> dict[tuple[str, int], list[str]]:
    head, *rows = text_tables("layouts.txt")[0]
    assert head == HEAD
    return dict(zip([(name, at) for name, row in ROWS.items() for at in range(len(row.layouts))], rows, strict=True))


def test_layouts_and_published_figures_are_current() -> None:
    for (name, at), cells in written().items():
        row = ROWS[name]
        assert cells[2:4] == [str(part) for part in row.layouts[at]], _COMMAND
        how, rate, reserved = published(row) if at == 0 else ("-", "-", "-")
        assert [cells[4], cells[5], cells[8]] == [how, rate, reserved], _COMMAND


@pytest.mark.slow
@pytest.mark.parametrize(("name", "at"), [("8b-8", 2)])  # with tensor parallelism and FSDP2; all rows take minutes
def test_a_prediction_is_current(name: str, at: int) -> None:
    row = ROWS[name]
    assert written()[name, at] == shown(row, at, predicted(row, *row.layouts[at])), _COMMAND
