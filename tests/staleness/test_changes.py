"""Models changed in every way that is known, between planning and `apply` (early) and after a step (late): each change
is noticed, or the schedule computes what the changed model computes, to the last bit; what changes nothing is
allowed."""

from __future__ import annotations

import functools
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from remate_runtime import BindError, Schedule, apply
from remate_runtime.format import decode, encode
from tests.runtime.stepping import schedule_of, step

from .changed_models import MODELS
from .changes import ALLOWED, HARMFUL, Change
from .sources import Sources, sources

__all__ = ["sources"]
CALLS = {
    "values": torch.randn(2, 4, generator=torch.Generator().manual_seed(0)),
    "code": torch.randn(2, 4, generator=torch.Generator().manual_seed(0)),
    "structure": torch.randn(2, 4, generator=torch.Generator().manual_seed(0)),
    "library": torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0)),
}
CFG = """
SCALE, FACTOR = 1.5, 0.5


def table(x):
    return x * FACTOR
"""


@pytest.fixture
def settings(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The module that a forward imports."""
    module = sources.load(CFG, "cfg_of_tests")
    monkeypatch.setitem(sys.modules, "cfg_of_tests", module)
    module.__name__ = "cfg_of_tests"
    return module


@pytest.fixture(scope="module")
def schedules(sources: Sources) -> Callable[[str], Schedule]:
    """Of each model, through its text, as in another process."""

    @functools.cache
    def planned(name: str) -> Schedule:
        net = sources.load(MODELS[name]).build()
        return decode(encode(schedule_of(net, (CALLS[name],))))

    return planned


def outcome(
    sources: Sources, schedule: Schedule, name: str, change: Change, late: bool, patch: pytest.MonkeyPatch
) -> tuple[str, bool, bool]:
    """(what `apply` or the call says against it, whether the steps are equal, whether the change changed the step)."""
    module, call = sources.load(MODELS[name]), (CALLS[name],)
    net = module.build()
    before = step(net, call)
    net.zero_grad()
    patch.setattr(sys, "dont_write_bytecode", True)  # makes `patch` know that there is something to undo
    planned = apply(net, schedule) if late else None
    if planned is not None:
        step(planned, call)
    change(net, module, patch)
    refused = ""
    by_name: dict[str, Any] = {}
    try:
        by_name = step(planned if planned is not None else apply(net, schedule), call)
    except BindError as error:
        refused = str(error)
    try:
        wanted = step(net, call)
    except Exception as error:
        wanted = {"error": repr(error)}
    return refused, _equal(by_name, wanted), not _equal(before, {name: wanted.get(name) for name in before})


def _equal(left: dict[str, Any], other: dict[str, Any]) -> bool:
    if left.keys() != other.keys():
        return False
    return all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) and b is not None else a is b
        for a, b in zip(left.values(), other.values(), strict=True)
    )


Case = tuple[str, Change]


def cases(table: dict[str, dict[str, Change]]) -> dict[str, Case]:
    return {f"{model}: {name}": (model, change) for model, changes in table.items() for name, change in changes.items()}


def when(changes: dict[str, Case]) -> Iterator[Any]:
    """Each change early and late; a tenth of the early ones and of the late ones of other changes are quick."""
    for number, (name, case) in enumerate(changes.items()):
        for late in (False, True):
            marks = [] if number % 10 == 5 * late else [pytest.mark.slow]
            yield pytest.param(*case, late, id=f"{name}-{'late' if late else 'early'}", marks=marks)


@pytest.mark.parametrize(("model", "change", "late"), when(cases(HARMFUL)))
def test_a_change_is_noticed(
    sources: Sources,
    schedules: Callable[[str], Schedule],
    settings: types.ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    change: Change,
    late: bool,
) -> None:
    refused, equal, changed = outcome(sources, schedules(model), model, change, late, monkeypatch)
    assert changed, "the case tests nothing: the model's own step is the same"
    assert refused or equal


@pytest.mark.parametrize(("model", "change", "late"), when(cases(ALLOWED)))
def test_what_changes_nothing_is_allowed(
    sources: Sources,
    schedules: Callable[[str], Schedule],
    settings: types.ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    change: Change,
    late: bool,
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        refused, equal, changed = outcome(sources, schedules(model), model, change, late, monkeypatch)
    assert not changed
    assert not refused
    assert equal
