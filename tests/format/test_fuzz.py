"""Reading a damaged file gives a schedule, or a ScheduleError with a known code and a place."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from remate.schedule_tools.analysis import open_text
from remate.schedule_tools.schema_file import load_schema
from remate_runtime.errors import ScheduleError
from remate_runtime.format.codes import CODES
from remate_runtime.format.reader import decode
from tools.fuzz.mutations import mutated_bytes, mutated_tree

VALID = sorted((Path(__file__).parents[2] / "schema/corpus/valid").glob("*.json"))


def check(data: bytes) -> str:
    """The code of the first fault, or "" if the file is accepted. Fails on any other exception."""
    try:
        open_text(data)
        faults = ()
    except ScheduleError as error:
        faults = error.faults
    for fault in faults:
        assert fault.code in CODES, fault
        assert fault.line >= 1, fault
        assert fault.column >= 1, fault
        assert fault.code in str(fault)
    return faults[0].code if faults else ""


def run(mutate: Callable[[bytes, random.Random], bytes], rounds: int, seed: int) -> None:
    dice = random.Random(seed)
    seen: set[str] = set()
    for number in range(rounds):
        data = mutate(dice.choice(VALID).read_bytes(), dice)
        try:
            seen.add(check(data))
        except Exception as error:
            pytest.fail(
                f"seed {seed}, round {number}: {type(error).__name__}: {error}\n{data.decode(errors='replace')}"
            )
    assert len(seen) > 5


@pytest.mark.slow("mutated_tree")
@pytest.mark.parametrize("mutate", [mutated_bytes, mutated_tree])
def test_mutations(mutate: Callable[[bytes, random.Random], bytes]) -> None:
    run(mutate, 1500, 1)


@pytest.mark.slow
@pytest.mark.parametrize("mutate", [mutated_bytes, mutated_tree])
def test_many_mutations(mutate: Callable[[bytes, random.Random], bytes]) -> None:
    run(mutate, 2500, 2)


@pytest.mark.slow
def test_what_the_reader_accepts_of_mutated_files_the_json_schema_accepts() -> None:
    dice = random.Random(3)
    validator = Draft202012Validator(load_schema())
    accepted = 0
    for _ in range(600):
        data = mutated_tree(dice.choice(VALID).read_bytes(), dice)
        try:
            decode(data)
        except ScheduleError:
            continue
        accepted += 1
        assert [error.message for error in validator.iter_errors(json.loads(data))] == [], data
    assert accepted > 50
