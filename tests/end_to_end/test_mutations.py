"""Files damaged at random: each is refused with located faults, or accepted, and then it trains like eager."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from remate.schedule_tools.analysis import open_text
from remate_runtime import apply
from remate_runtime.errors import ScheduleError, StaleModelError
from remate_runtime.format.codes import CODES
from remate_runtime.format.writer import encode
from tools.fuzz.mutations import mutated_bytes, mutated_plan, mutated_tree

from .subjects import Subject, assert_eager, subject

Mutate = Callable[[bytes, random.Random], bytes]
ROUNDS = 150
SUBJECTS = ("batch_norm", "layer_norm")


class Trial:
    """Tells what becomes of mutations of one file. Files that mean the same recomputations of the same step run
    once."""

    def __init__(self, of: Subject, path: Path) -> None:
        self.of, self.path = of, path
        self.text = encode(of.schedule)
        self.codes: Counter[str] = Counter()
        self.ran: set[object] = set()

    def take(self, data: bytes) -> None:
        self.path.write_bytes(data)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # a peak over the budget
                planned = apply(self.of.fresh(), self.path)
        except ScheduleError as error:
            self.refused(error)
            return
        except StaleModelError:  # what the file says of the model was mutated
            return
        meaning = open_text(data).expanded.recomputes
        if meaning not in self.ran:
            self.ran.add(meaning)
            assert_eager(planned, self.of)

    def refused(self, error: ScheduleError) -> None:
        for fault in error.faults:
            assert fault.code in CODES
            assert fault.line >= 1, fault
            assert fault.column >= 1, fault
            assert fault.where == "" or fault.where.startswith("/"), fault  # "" is the whole file
        self.codes[error.code] += 1


@pytest.mark.quick("layer_norm-mutated_bytes")
@pytest.mark.parametrize("mutate", [mutated_bytes, mutated_tree, mutated_plan])
@pytest.mark.parametrize("name", SUBJECTS)
def test_mutations(name: str, mutate: Mutate, tmp_path: Path) -> None:
    trial = Trial(subject(name), tmp_path / "s.json")
    dice = random.Random(name)
    for number in range(ROUNDS):
        data = mutate(trial.text, dice)
        try:
            trial.take(data)
        except Exception as error:
            pytest.fail(f"round {number}: {type(error).__name__}: {error}\n{data.decode(errors='replace')}")
    assert len(trial.codes) > 3
    if mutate is mutated_plan:
        assert len(trial.ran) > ROUNDS / 50  # distinct plans, which grow scarce
    elif mutate is mutated_tree:
        assert trial.codes["R083"] > 0  # operations are refused, however well they read
