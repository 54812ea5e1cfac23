"""`remate strategies`: lists the names that can be requested."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from remate.strategy.registry import bound_names, strategy_names

Remate = Callable[..., Any]


def test_lists_everything_that_can_be_named(remate: Remate) -> None:
    outcome = remate("strategies")
    assert outcome.status == 0
    first = [line.split("  ")[0] for line in outcome.out.splitlines()]
    assert set(strategy_names()) | set(bound_names()) <= set(first)
    assert "Rockmate, ICML 2023" in outcome.out
    tried = next(line for line in outcome.out.splitlines() if line.startswith("auto tries"))
    assert "hierarchical" in tried
