"""Whatever is done to a file, reading it gives a schedule or a ScheduleError with a known code and a place."""

from __future__ import annotations

import copy
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from remate.opened import open_text
from remate.schema_file import load_schema
from remate_runtime.codes import CODES
from remate_runtime.decode import decode
from remate_runtime.errors import ScheduleError

VALID = sorted((Path(__file__).parents[2] / "schema/corpus/valid").glob("*.json"))
ODD = [
    None,
    True,
    False,
    0,
    -1,
    2**63,
    -(2**70),
    1e308,
    "",
    "%",
    "%%",
    "%x",
    "..",
    "a/b",
    "\u202e",
    [],
    {},
    [[]],
    {"": 0},
]


def check(data: bytes) -> str:
    """The code of the first fault, or "" if the file is accepted. Fails on any other exception, or after a second."""
    start = time.perf_counter()
    try:
        open_text(data)
        faults = ()
    except ScheduleError as error:
        faults = error.faults
    assert time.perf_counter() - start < 2
    for fault in faults:
        assert fault.code in CODES, fault
        assert fault.line >= 1, fault
        assert fault.column >= 1, fault
        assert fault.code in str(fault)
    return faults[0].code if faults else ""


def mutated_bytes(data: bytes, dice: random.Random) -> bytes:
    text = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 5))):
        at = dice.randrange(len(text))
        kind = dice.randrange(5)
        if kind == 0:
            text[at] = dice.randrange(256)
        elif kind == 1:
            del text[at : at + dice.choice((1, 2, 30))]
        elif kind == 2:
            text[at:at] = dice.choice((b'"', b"{", b"}", b"[", b",", b":", b"-", b"9", b"\\", b"%", b"\xff", b"null"))
        elif kind == 3:
            other = dice.randrange(len(text))
            text[at:at] = text[other : other + dice.choice((1, 10, 80))]
        else:
            text[at : at + 1] = bytes([text[at] ^ (1 << dice.randrange(8))])
        if not text:
            return b""
    return bytes(text)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items):
        yield value, key
        yield from places(item)


def mutated_tree(data: bytes, dice: random.Random) -> bytes:
    tree = json.loads(data)
    for _ in range(dice.choice((1, 1, 2, 4))):
        holders = list(places(tree))
        holder, key = dice.choice(holders)
        kind = dice.randrange(5)
        if kind == 0:
            holder[key] = copy.deepcopy(dice.choice(ODD))
        elif kind == 1:
            del holder[key]
        elif kind == 2:
            other, name = dice.choice(holders)
            holder[key] = copy.deepcopy(other[name]) if name in other or isinstance(other, list) else None
        elif kind == 3 and isinstance(holder, dict):
            holder[dice.choice(("note", "", "id", "a/b", "plans", "keep-all", "instances"))] = copy.deepcopy(
                holder[key]
            )
        elif isinstance(holder, list):
            holder.insert(dice.randrange(len(holder) + 1), copy.deepcopy(holder[key]))
        if not tree:
            break
    return json.dumps(tree).encode()


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


@pytest.mark.parametrize("mutate", [mutated_bytes, mutated_tree])
def test_mutations(mutate: Callable[[bytes, random.Random], bytes]) -> None:
    run(mutate, 1500, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
@pytest.mark.parametrize("mutate", [mutated_bytes, mutated_tree])
def test_many_mutations(mutate: Callable[[bytes, random.Random], bytes], seed: int) -> None:
    run(mutate, 5000, seed)


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
