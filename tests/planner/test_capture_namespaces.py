"""Models with operators of a library, here the user's own: every command takes their files, `apply` asks for leave."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import remate
from remate_runtime import ScheduleError, apply
from remate_runtime.format.reader import load

BUILD = """
import torch
from torch import nn

@torch.library.custom_op("users::shrink", mutates_args=())
def shrink(x: torch.Tensor, by: float) -> torch.Tensor:
    return x * by

@shrink.register_fake
def _(x, by):
    return torch.empty_like(x)

shrink.register_autograd(lambda ctx, g: (torch.ops.users.shrink(g, ctx.by), None),
                         setup_context=lambda ctx, inputs, output: setattr(ctx, "by", inputs[1]))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.ops.users.shrink(torch.tanh(layer(x)), 0.5)
        return {"loss": x.square().mean()}

def build():
    torch.manual_seed(0)
    return Net(), (), {"x": torch.linspace(-1, 1, 2048).view(128, 16)}
"""
COMMANDS = [
    ["check", "S"], ["check", "S", "--model", "M"], ["show", "S"], ["fmt", "--check", "S"], ["lint", "S"], ["diff", "S", "S"],
    ["explain", "S"], ["report", "S", "-o", "r.html"], ["trace", "S", "-o", "t.json"], ["migrate", "--check", "S"],
    ["run", "S", "--model", "M", "--steps", "2", "--allow", "users"],
]  # fmt: skip


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("library")
    (folder / "build.py").write_text(BUILD)
    names: dict[str, Any] = {"__name__": "build"}
    exec((folder / "build.py").read_text(), names)
    model, args, kwargs = names["build"]()
    schedule = remate.plan(model, args, kwargs, budget="80%", cost="cpu")
    schedule.save(str(folder / "s.json"))
    return folder, model, kwargs, schedule


def test_planned_saved_permitted_and_as_eager(planned):
    folder, model, kwargs, schedule = planned
    assert load(folder / "s.json").namespaces == schedule.namespaces == ("users",)
    with pytest.raises(ScheduleError, match=r"R050 at line \d+.*\n.*apply\(model, schedule, namespaces=\('users',\)"):
        apply(model, folder / "s.json")
    with pytest.raises(ScheduleError, match="R050"):
        apply(model, schedule)
    ours = apply(model, folder / "s.json", namespaces=("users",))
    actual, wanted = (gradients(module, kwargs) for module in (ours, model))
    for name, gradient in wanted.items():
        assert torch.equal(actual[name], gradient), name


def gradients(model: Any, kwargs: Any) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(**kwargs)["loss"].backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_a_file_cannot_hide_what_it_needs(planned):
    folder, model, _, _ = planned
    text = json.loads((folder / "s.json").read_text())
    del text["namespaces"]
    (folder / "hidden.json").write_text(json.dumps(text))
    with pytest.raises(ScheduleError, match=r"R050.*'users' are not allowed"):
        apply(model, folder / "hidden.json", namespaces=("users",))


@pytest.mark.quick("show S")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_takes_the_file(planned, command: list[str]):
    folder, *_ = planned
    named: dict[str, str] = {"S": "s.json", "M": "build.py"}
    words = [named.get(word, word) for word in command]
    run = subprocess.run(
        [sys.executable, "-m", "remate", *words],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.slow
def test_running_without_permission_says_how(planned):
    folder: Path = planned[0]
    words = ["run", "s.json", "--model", "build.py", "--steps", "1"]
    run = subprocess.run(
        [sys.executable, "-m", "remate", *words], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 1
    assert "remate run --allow users" in run.stderr
