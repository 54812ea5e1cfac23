"""The table of published graphs: each cell has a value or a reason, and a value that changes is noticed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from tools.bench.instance_tables import NONE_FITS, NOT_APPLICABLE, Cell, text
from tools.bench.instances import STRATEGIES, changed, measured, stored
from tools.documentation.figures import instances

from ..standalone_graphs.dags import random_dag

NAME = "VGG16_256_224x224x3_train_small"


def test_each_stored_cell_has_a_value_or_a_reason() -> None:
    for cell in stored():
        assert (cell.time is not None) != (cell.lacks in (NONE_FITS, NOT_APPLICABLE)), cell
        assert bool(cell.reason) == (cell.lacks == NOT_APPLICABLE), cell


def test_no_cell_of_the_page_is_empty() -> None:
    for row in instances():
        assert all(row), row
        assert "not run" not in row, row


def test_the_text_says_why_a_strategy_has_no_row() -> None:
    cells = [
        Cell(NAME, 9, 90, "auto", 1.5, 1.0, 88.0, 2.0, 3),
        Cell(NAME, 9, 90, "dtr", lacks=NONE_FITS, limit=60.0),
        Cell(NAME, 9, 90, "rotor", lacks=NOT_APPLICABLE, reason="the strategy 'rotor' needs a chain"),
    ]
    said = text(cells, ("auto", "dtr", "rotor", "coop"))
    assert "rotor does not apply: the strategy 'rotor' needs a chain\nnot run: coop" in said
    assert ["dtr", "-", "t"] in [line.split()[:3] for line in said.splitlines()]


@pytest.mark.slow
def test_a_value_that_changed_is_noticed(tmp_path: Path) -> None:
    bare = random_dag(3, 30)
    (tmp_path / f"{NAME}.json").write_bytes(msgspec.json.encode(bare))
    cells = [measured(bare, NAME, strategy, 95) for strategy in ("anneal", "checkmate")]
    assert cells[0].time is not None
    assert changed(tmp_path, cells) == []
    assert changed(tmp_path, [replace(cell, cpu=cell.cpu + 1) for cell in cells]) == []
    (line,) = changed(tmp_path, [replace(cells[0], time=cells[0].time + 0.01), *cells[1:]])
    assert line.startswith(f"{NAME}, 95%: anneal ")
    assert changed(tmp_path, [replace(cells[0], time=cells[0].time + 0.01, stopped_by="time")]) == []


def test_strategies_of_stored_cells_exist() -> None:
    assert {cell.strategy for cell in stored()} <= set(STRATEGIES)
