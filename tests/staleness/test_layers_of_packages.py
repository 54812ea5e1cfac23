"""Functions of packages that are wrapped."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from remate_runtime import StaleModelError, apply
from remate_runtime.staleness.library import _is_where_it_belongs
from tests.runtime.stepping import schedule_of


def test_a_package_may_wrap_its_own_layers() -> None:
    """transformers wraps `forward` of its layers when it defines their class, without a decorator in the source."""
    gpt2 = pytest.importorskip("transformers.models.gpt2.modeling_gpt2")
    forward = gpt2.GPT2Block.forward
    assert hasattr(forward, "__wrapped__")
    assert _is_where_it_belongs(forward, gpt2.__name__, "forward")
    assert not _is_where_it_belongs(torch.no_grad()(forward), gpt2.__name__, "forward")


def test_decorators_in_the_source_excuse_no_later_wrapper() -> None:
    gpt2 = pytest.importorskip("transformers.models.gpt2.modeling_gpt2")
    forward = gpt2.GPT2Model.forward
    assert _is_where_it_belongs(forward, gpt2.__name__, "forward")
    assert not _is_where_it_belongs(torch.no_grad()(forward), gpt2.__name__, "forward")


PACKAGE = """
import functools
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x).tanh()


def doubling(forward):
    @functools.wraps(forward)
    def doubled(*args):
        return forward(*args) * 2

    return doubled


def double(model):
    Layer.forward = doubling(Layer.forward)


def double_unnamed(model):
    plain = Layer.forward

    def forward(self, x):
        return plain(self, x) * 2

    Layer.forward = forward


def double_one(model):
    model[0].forward = doubling(model[0].forward)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "layers_of_a_package.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    yield importlib.import_module("layers_of_a_package")
    del sys.modules["layers_of_a_package"]


@pytest.mark.parametrize("change", ["double", "double_unnamed", "double_one"])
def test_a_package_that_wraps_its_layers_later_is_noticed(package: Any, change: str) -> None:
    model, x = nn.Sequential(package.Layer(), package.Layer()), torch.randn(8, 4)
    schedule, forward = schedule_of(model, (x,)), package.Layer.forward
    planned = apply(model, schedule, verify="never")
    getattr(package, change)(model)
    with pytest.raises(StaleModelError, match="forward"):
        planned(x)
    with pytest.raises(StaleModelError, match="forward"):
        apply(model, schedule)
    wrapped = schedule_of(model, (x,))
    apply(model, wrapped)(x).sum().backward()
    package.Layer.forward = forward
    vars(model[0]).pop("forward", None)
    with pytest.raises(StaleModelError, match="forward"):
        apply(model, wrapped)
    apply(model, schedule)(x).sum().backward()
