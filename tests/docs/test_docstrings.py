"""Docstrings of public functions: every argument is described, and examples run."""

from __future__ import annotations

import ast
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

SOURCES = [Path(package.__path__[0]) for package in (remate, remate_runtime)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_argument_has_a_line(name: str) -> None:
    function = inspect.unwrap(FUNCTIONS[name])
    described = _described(inspect.getdoc(function) or "", "Args")
    assert described
    assert described == list(inspect.signature(function).parameters)


def _described(docstring: str, section: str) -> list[str]:
    """Return the names that a section of a docstring has a line for."""
    matching = re.search(rf"^{section}:\n(.*?)^\S", f"{docstring}\n.", re.DOTALL | re.MULTILINE)
    return re.findall(r"^    \*{0,2}(\w+): ", matching[1], re.MULTILINE) if matching else []


def _attributes(node: ast.ClassDef) -> set[str]:
    names = {at.name for at in node.body if isinstance(at, ast.FunctionDef)}
    for at in ast.walk(node):
        if isinstance(at, ast.Attribute | ast.Name) and isinstance(at.ctx, ast.Store):
            names.add(at.attr if isinstance(at, ast.Attribute) else at.id)
    return names


def _arguments(node: ast.ClassDef | ast.FunctionDef) -> set[str] | None:
    """Return the arguments of a function or of a class; None if it takes any."""
    if isinstance(node, ast.ClassDef):
        made = [at for at in node.body if isinstance(at, ast.FunctionDef) and at.name == "__init__"]
        return _arguments(made[0]) if made else set()
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg]
    return None if node.args.kwarg else {argument.arg for argument in every if argument is not None}


@pytest.mark.slow
def test_described_names_exist() -> None:
    """Of all classes and functions: a name that was changed in the code only misleads."""
    wrong = []
    for file in (path for root in SOURCES for path in sorted(root.rglob("*.py"))):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ClassDef | ast.FunctionDef):
                continue
            docstring, arguments = ast.get_docstring(node) or "", _arguments(node)
            unknown = set() if arguments is None else set(_described(docstring, "Args")) - arguments
            if isinstance(node, ast.ClassDef):
                unknown |= set(_described(docstring, "Attributes")) - _attributes(node)
            wrong += [f"{file}:{node.lineno}: {node.name} has no {name}" for name in sorted(unknown)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_raised_errors_are_public(name: str) -> None:
    for error in _described(inspect.getdoc(FUNCTIONS[name]) or "", "Raises"):
        assert hasattr(remate, error) or hasattr(remate_runtime, error) or error in ("OSError", "TypeError"), error


@pytest.mark.slow(
    "remate.plan", "remate.record", "remate_runtime.apply", "remate.plan_pipeline", "remate_runtime.prepare"
)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.usefixtures("short_searches")
def test_examples_run(name: str, tmp_path: Path) -> None:
    function: Callable[..., Any] = FUNCTIONS[name]
    test = doctest.DocTestParser().get_doctest(inspect.getdoc(function) or "", {}, name, None, 0)
    with working_in(tmp_path):
        result = doctest.DocTestRunner().run(test)
    assert result.failed == 0
