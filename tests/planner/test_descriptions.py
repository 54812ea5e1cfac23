"""Every strategy states its source, what follows it, and what differs and why."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from remate.strategy.descriptions import describe
from remate.strategy.paging import PAGING_STRATEGIES, PagingStrategy
from remate.strategy.registry import STRATEGIES, strategy


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_has_all_sections(name: str) -> None:
    about = describe(strategy(name))
    assert about.source
    assert about.from_paper
    assert about.differences
    if strategy(name).reference:
        assert "No paper" not in about.source
        assert "because" in about.differences, "a difference has a reason"


@pytest.mark.parametrize("listed", PAGING_STRATEGIES, ids=lambda listed: listed.name)
def test_every_strategy_that_pages_has_all_sections(listed: PagingStrategy) -> None:
    assert all(msgspec.structs.astuple(listed.description))
    if listed.reference:
        assert "because" in listed.description.differences


def test_a_docstring_without_sections_is_noticed() -> None:
    def propose(instance: Any, request: Any, context: Any) -> Any:
        """Propose nothing."""

    about = describe(replace(strategy("greedy"), propose=propose))
    assert (about.source, about.from_paper, about.differences) == ("", "", "")
