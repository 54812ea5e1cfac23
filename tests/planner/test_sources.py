"""Where operations say that they come from: lines counted from their function, so that edits elsewhere change
nothing."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import remate
from remate.capture.capture_step import capture
from remate.errors import CaptureError
from remate_runtime.format import encode

MODEL = """
import functools
import torch
# top
def doubled(x):
    return x.mul(2.0)
# between
def wrapped(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args).neg()
    return inner
# between
class Block(torch.nn.Module):
    # between
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.act = lambda x: x.tanh()
    # between
    @wrapped
    def forward(self, x):
        def own(y):
            return y.exp()

        x = self.act(self.linear(x))
        x = own(x) + doubled(x)
        parts = [p.sigmoid() for p in x.split(2)]
        return torch.cat(list(p.cos() for p in parts))
# end
def build():
    torch.manual_seed(0)
    return Block(), (torch.rand(4, 4),)
"""


def build(text: str, folder: Path) -> tuple[torch.nn.Module, tuple[Any, ...]]:
    path = folder / "train.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("train_of_test_sources", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.build()


def test_comments_elsewhere_change_no_line_of_the_schedule(tmp_path: Path) -> None:
    costs = tmp_path / "profile.json"
    before = encode(remate.plan(*build(MODEL, tmp_path), budget="90%", profile=costs))
    commented = MODEL
    for place in ("top", "between", "end"):
        commented = commented.replace(f"# {place}\n", f"# {place}\n    # a remark\n\n# that is long\n")
    assert len(commented.splitlines()) > len(MODEL.splitlines()) + 10
    assert encode(remate.plan(*build(commented, tmp_path), budget="90%", profile=costs)) == before


def test_functions_of_every_kind_are_named(tmp_path: Path) -> None:
    graph = capture(*build(MODEL, tmp_path)).graph
    source = {op.op: op.source for op in graph.operations[: graph.backward_start]}
    assert source["aten.addmm"] == "train.py:Block.forward+5"  # the decorator is the first line
    assert source["aten.tanh"] == "train.py:Block.__init__.<lambda>+0"
    assert source["aten.exp"] == "train.py:Block.forward.own+1"
    assert source["aten.mul.Tensor"] == "train.py:doubled+1"
    assert source["aten.add.Tensor"] == "train.py:Block.forward+6"
    assert source["aten.sigmoid"] == "train.py:Block.forward+7"  # a list comprehension
    assert source["aten.cos"] == "train.py:Block.forward.<genexpr>+0"
    assert source["aten.neg"] == "train.py:wrapped.inner+2"
    backward = {op.op: op.source for op in graph.operations[graph.backward_start :]}
    assert backward["aten.tanh_backward"] == source["aten.tanh"]


def test_errors_name_the_line_of_the_file(tmp_path: Path) -> None:
    text = MODEL.replace("x.tanh()", "x * x.max().item()")
    line = 1 + next(at for at, result in enumerate(text.splitlines()) if ".item()" in result)
    with pytest.raises(CaptureError) as raised:
        capture(*build(text, tmp_path))
    assert raised.value.source == f"train.py:{line}"
