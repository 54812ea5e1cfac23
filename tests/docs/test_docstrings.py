"""Docstrings of public functions: every argument is described, and examples run."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import remate
import remate_runtime

from .page_blocks import working_in

FUNCTIONS = {
    f"{package.__name__}.{name}": getattr(package, name)
    for package in (remate, remate_runtime)
    for name in package.__all__
    if inspect.isfunction(getattr(package, name))
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_argument_has_a_line(name: str) -> None:
    function = inspect.unwrap(FUNCTIONS[name])
    section = re.search(r"^Args:\n(.*?)^\S", f"{inspect.getdoc(function)}\n.", re.DOTALL | re.MULTILINE)
    assert section is not None
    described = re.findall(r"^    (\w+): ", section[1], re.MULTILINE)
    assert described == list(inspect.signature(function).parameters)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_raised_errors_are_public(name: str) -> None:
    section = re.search(r"^Raises:\n(.*?)^\S", f"{inspect.getdoc(FUNCTIONS[name])}\n.", re.DOTALL | re.MULTILINE)
    for error in re.findall(r"^    (\w+): ", section[1] if section else "", re.MULTILINE):
        assert hasattr(remate, error) or hasattr(remate_runtime, error) or error in ("OSError", "TypeError"), error


@pytest.mark.parametrize("name", FUNCTIONS)
def test_examples_run(name: str, tmp_path: Path) -> None:
    function: Callable[..., Any] = FUNCTIONS[name]
    test = doctest.DocTestParser().get_doctest(inspect.getdoc(function) or "", {}, name, None, 0)
    with working_in(tmp_path):
        result = doctest.DocTestRunner().run(test)
    assert result.failed == 0
