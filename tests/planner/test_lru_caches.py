"""Functions of functools.lru_cache: all of them are known at every trace, and the process is searched when others may
exist."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import remate
import remate_runtime
from remate.capture import lru_caches


def _cached() -> Callable[[int], torch.Tensor]:
    return functools.lru_cache(torch.ones)


def _known() -> list[Any]:
    return [function for function, _ in lru_caches.sizes()]


def _searches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    searches = []
    search = gc.get_referrers
    monkeypatch.setattr(gc, "get_referrers", lambda *objects: searches.append(1) or search(*objects))
    return searches


def test_the_process_is_searched_once_while_no_function_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = _cached()
    assert kept in _known()
    searches = _searches(monkeypatch)
    assert _known() == _known()
    assert kept in _known()
    assert not searches


@pytest.mark.slow
def test_a_new_function_is_known_also_when_another_went(monkeypatch: pytest.MonkeyPatch) -> None:
    old = _cached()
    assert old in _known()
    searches = _searches(monkeypatch)
    new = _cached()
    assert new in _known()
    del old
    newest = _cached()
    assert newest in _known()
    assert len(searches) == 2


def test_references_of_others_to_the_type_hide_no_function() -> None:
    references = [functools._lru_cache_wrapper] * 2
    kept = _cached()  # so that the process is searched while they exist
    assert kept in _known()
    references.clear()
    new = [_cached(), _cached()]
    assert {*new} <= {*_known()}


@pytest.mark.slow
def test_functions_that_the_garbage_collector_set_aside_are_known() -> None:
    frozen = gc.get_freeze_count() > 0
    kept = _cached()
    gc.freeze()
    try:
        new = _cached()  # so that the process is searched
        assert {kept, new} <= {*_known()}
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        if frozen:
            gc.freeze()


def test_results_of_a_trace_are_cleared_and_others_are_kept() -> None:
    traced, real = _cached(), _cached()
    before = lru_caches.sizes()
    real(2)
    with FakeTensorMode():
        traced(2)
    lru_caches.forget(before, lambda value: isinstance(value, FakeTensor))
    assert traced.cache_info().currsize == 0  # type: ignore[attr-defined]
    assert real.cache_info().currsize == 1  # type: ignore[attr-defined]


def test_scheduled_steps_are_no_reason_to_search(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = torch.nn.Linear(3, 1), torch.ones(2, 3)
    schedule = remate.plan(model, (x,))
    remate_runtime.apply(model, schedule)(x).sum().backward()
    _known()
    searches = _searches(monkeypatch)
    applied = remate_runtime.apply(model, schedule)
    applied(x).sum().backward()
    assert _known()
    assert not searches
