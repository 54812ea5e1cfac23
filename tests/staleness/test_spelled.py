"""Names that forward spells as text, and modules that it looks up when it runs, are compared as if it named them."""

from __future__ import annotations

import ast
import sys
from types import ModuleType

import pytest
import torch

from remate_runtime import StaleModelError, apply
from remate_runtime.staleness.syntax import Reference, references
from tests.runtime.stepping import schedule_of, step

from .sources import Sources, sources

__all__ = ["sources"]
X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
NAME = "settings_of_spelled"  # a module
TEXT = f"""
import importlib
import sys

import {NAME} as named
import torch
from torch import nn

GAIN = 1.5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        return (self.lin(x) * READ).sin().mean()
"""
OWN = ('globals()["GAIN"]', 'getattr(sys.modules[__name__], "GAIN")', "sys.modules[__name__].GAIN")
HELD = ('vars(named)["gain"]', 'named.__dict__["gain"]', 'getattr(named, "gain")')
FOUND = (f'sys.modules["{NAME}"].gain', f'importlib.import_module("{NAME}").gain', f'__import__("{NAME}").gain')


@pytest.fixture
def settings() -> ModuleType:
    module = sys.modules[NAME] = ModuleType(NAME)
    module.__dict__["gain"] = 1.5
    return module


@pytest.mark.usefixtures("settings")
@pytest.mark.quick(OWN[0], HELD[0], FOUND[0])
@pytest.mark.parametrize("read", [*OWN, *HELD, *FOUND])
def test_a_change_is_refused(sources: Sources, read: str) -> None:
    module = sources.load(TEXT.replace("READ", read))
    model = module.Net()
    planned = apply(model, schedule_of(model, (X,)), verify="never")
    step(planned, (X,))
    module.__dict__["GAIN"] = sys.modules[NAME].__dict__["gain"] = 2.5
    with pytest.raises(StaleModelError, match=r"was 1\.5, is 2\.5"):
        step(planned, (X,))


IMPORTS = (FOUND[0], FOUND[1])


@pytest.mark.quick(FOUND[0])
@pytest.mark.parametrize("read", IMPORTS)
def test_another_module_of_the_same_name_is_noticed(sources: Sources, settings: ModuleType, read: str) -> None:
    module = sources.load(TEXT.replace("READ", read))
    model = module.Net()
    planned = apply(model, schedule_of(model, (X,)), verify="never")
    step(planned, (X,))
    for gain in (1.5, 2.5):
        sys.modules[NAME] = other = ModuleType(NAME)
        other.__dict__["gain"] = gain
        if gain == settings.__dict__["gain"]:
            step(planned, (X,))
            continue
        with pytest.raises(StaleModelError, match="gain"):
            step(planned, (X,))


def test_texts_become_names() -> None:
    text = """
def f(self, table, name):
    a = globals()["A"].b, getattr(table, "c"), getattr(self, "d").e, vars(O)["f"].g, O.__dict__["h"]
    globals()["W"] = globals()[name]
    sys.modules[__name__].W = vars(O)["V"].U = 1
    return sys.modules["m.n"].k.l, sys.modules[__name__].P, getattr(O, name)
"""
    (tree,) = ast.parse(text).body
    before = ast.dump(tree)
    assert isinstance(tree, ast.FunctionDef)
    found = {(each.name, *each.attributes) for each in references(tree)}
    expected = {("A", "b"), ("self", "d", "e"), ("O", "f", "g"), ("O", "h"), ("module m.n", "k", "l"), ("P",), ("O",)}
    assert expected <= found
    assert not {("W",), ("O", "V")} & found
    assert Reference("module m.n", ("k", "l"), False, "m.n") in references(tree)
    assert ast.dump(tree) == before
