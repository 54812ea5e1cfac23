"""`remate strategies`: lists the names that can be requested."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from remate.strategy.paging import PAGED_STRATEGIES
from remate.strategy.registry import bound_names, strategy_names

Remate = Callable[..., Any]


def test_lists_everything_that_can_be_named(remate: Remate) -> None:
    outcome = remate("strategies")
    assert outcome.status == 0
    first = [line.split("  ")[0] for line in outcome.out.splitlines()]
    assert set(strategy_names()) | set(bound_names()) <= set(first)
    assert set(PAGED_STRATEGIES) <= set(first)
    assert "Rockmate, ICML 2023" in outcome.out
    assert any(line.startswith("auto tries") for line in outcome.out.splitlines())


def test_the_command_describes_a_strategy(remate: Remate) -> None:
    outcome = remate("strategies", "moccasin")
    assert outcome.status == 0
    assert "Source: B. Bartan" in outcome.out
    assert "Differences: " in outcome.out


def test_the_command_describes_a_strategy_that_pages(remate: Remate) -> None:
    outcome = remate("strategies", "poet")
    assert outcome.status == 0
    assert "needs: a disk budget" in outcome.out
    assert "Source: S. Patil" in outcome.out


def test_the_command_refuses_an_unknown_name(remate: Remate) -> None:
    outcome = remate("strategies", "nothing")
    assert outcome.status == 2
    assert "no strategy 'nothing'" in outcome.err
