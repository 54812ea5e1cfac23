"""The options of `plan`, `fit` and `frontier`: one list, with the public signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

import remate
from remate.api.options import PlanKeywords, PlanOptions, SearchKeywords


def test_the_lists_for_type_checkers_have_the_fields_of_the_struct() -> None:
    fields = {field.name: field for field in msgspec.structs.fields(PlanOptions)}
    assert set(fields) - {"at"} == set(PlanKeywords.__annotations__)
    assert set(SearchKeywords.__annotations__) < set(PlanKeywords.__annotations__)


@pytest.mark.parametrize(
    ("function", "keywords", "differs"),
    [
        (remate.plan, PlanKeywords, {}),
        (remate.frontier, SearchKeywords, {}),
        (remate.fit, SearchKeywords, {"dims": "auto"}),
    ],
)
def test_signatures_show_every_option_with_its_default(
    function: Callable[..., Any], keywords: type, differs: dict[str, Any]
) -> None:
    shown = inspect.signature(function).parameters
    defaults = {**msgspec.structs.asdict(PlanOptions()), **differs}
    assert "options" not in shown
    for name in keywords.__annotations__:
        assert shown[name].default == defaults[name]
        assert shown[name].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize("function", [remate.plan, remate.frontier])
def test_an_unknown_option_names_the_one_that_was_meant(function: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'efort'\n  hint: did you mean effort\?"):
        function(nn.Linear(2, 2), (torch.zeros(1, 2),), efort="quick")


def test_fit_refuses_options_of_plan_that_it_has_not() -> None:
    with pytest.raises(TypeError, match="'slowdown'"):
        remate.fit(nn.Linear(2, 2), (torch.zeros(1, 2),), device_memory="1GiB", optimizer="sgd", slowdown=0.1)  # type: ignore[call-arg]
