"""Checks `schema/corpus/expected`, the results for second implementations, with an independent implementation."""

from __future__ import annotations

import ast
import json
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from remate_runtime.errors import ScheduleError
from remate_runtime.format import decode, encode
from tests.schedule_tools.hand_edits import by_hand
from tests.schedule_tools.test_random_edits import scheduled
from tools.expected import CORPUS, expected, expected_of, text

from . import (
    independent_deliveries,
    independent_masks,
    independent_pages,
    independent_rows,
    independent_shards,
    independent_simulator,
    independent_split,
    independent_step,
)

ROOT = Path(__file__).parents[2]
VALID = sorted((CORPUS / "valid").glob("*.json"))
LARGER = [
    *(path for path in sorted(Path(__file__).parent.glob("fixtures/v1/*.json")) if path.name != "expected.json"),
    *sorted(path for path in (ROOT / "examples").glob("*.json") if "schema" not in path.name),
    ROOT / "tests/cli/data/mlp.json",
]


MODULES = [
    independent_deliveries,
    independent_simulator,
    independent_step,
    independent_pages,
    independent_masks,
    independent_rows,
    independent_shards,
    independent_split,
]


@pytest.mark.parametrize("module", MODULES)
def test_the_second_simulator_is_independent(module: ModuleType) -> None:
    tree = ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8"))
    named = [n.module or "." for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    named += [alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names]
    assert {name.partition(".")[0] for name in named} <= {
        *sys.stdlib_module_names,
        "__future__",
        "independent_step",
        "independent_pages",
        "independent_deliveries",
        "independent_masks",
        "independent_rows",
        "independent_shards",
        "independent_split",
    }


def test_every_valid_file_has_its_expectation() -> None:
    assert {path.name for path in (CORPUS / "expected").glob("*.json")} == {path.name for path in VALID}


@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_expected_files_are_what_the_linker_gives(path: Path) -> None:
    recorded = (CORPUS / "expected" / path.name).read_bytes()
    assert text(expected(path)) == recorded, "if this is right: python tools/expected.py"
    assert json.loads(recorded)["floor"] <= json.loads(recorded)["peak"]


@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_the_page_suffices_for_the_corpus(path: Path) -> None:
    recorded = json.loads((CORPUS / "expected" / path.name).read_bytes())
    del recorded["floor"]
    assert independent_simulator.simulate(json.loads(path.read_bytes())) == recorded


@pytest.mark.slow("gpt2", "encoder_decoder")
@pytest.mark.parametrize("path", LARGER, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_page_suffices_for_larger_files(path: Path) -> None:
    agree(path.read_bytes())


@pytest.mark.quick("2", "20", "15")
@pytest.mark.parametrize("seed", range(30))
def test_the_page_suffices_for_edited_plans(seed: int) -> None:
    draw, schedule = random.Random(seed), scheduled(seed).schedule
    for _ in range(6):
        edited = by_hand(schedule, draw)
        try:
            agree(encode(edited))
        except ScheduleError:
            continue  # an edit that no reader accepts
        schedule = edited


def agree(data: bytes) -> None:
    ours: dict[str, Any] = expected_of(decode(data), floor=False)
    assert independent_simulator.simulate(json.loads(data)) == ours
