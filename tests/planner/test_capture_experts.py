"""Mixtures of experts of Hugging Face: their operators are a library's, and every command takes their files."""

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

transformers: Any = pytest.importorskip("transformers")

SIZES = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "use_cache": False}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 4, "num_experts_per_tok": 2}
BUILD = """
import torch, transformers
def build():
    torch.manual_seed(0)
    sizes = {sizes}
    model = transformers.{name}ForCausalLM(transformers.{name}Config(**sizes)).train()
    ids = torch.arange(16).view(2, 8)
    return model, (), {{"input_ids": ids, "labels": ids}}
"""
COMMANDS = [
    ["check", "S"], ["check", "S", "--model", "M"], ["show", "S"], ["fmt", "--check", "S"], ["lint", "S"], ["diff", "S", "S"],
    ["explain", "S"], ["report", "S", "-o", "r.html"], ["trace", "S", "-o", "t.json"], ["migrate", "--check", "S"],
    ["run", "S", "--model", "M", "--steps", "2", "--allow", "transformers"],
]  # fmt: skip


@pytest.fixture(scope="module", params=["Mixtral", "GptOss"])
def planned(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "build.py").write_text(BUILD.format(name=request.param, sizes={**SIZES, **HEADS, "head_dim": 8}))
    names: dict[str, Any] = {}
    exec((folder / "build.py").read_text(), names)
    model, args, kwargs = names["build"]()
    schedule = remate.plan(model, args, kwargs, budget="80%", cost="cpu")
    schedule.save(str(folder / "s.json"))
    return folder, model, kwargs, schedule


def test_planned_saved_permitted_and_as_eager(planned):
    folder, model, kwargs, schedule = planned
    assert load(folder / "s.json").namespaces == schedule.namespaces == ("transformers",)
    with pytest.raises(
        ScheduleError, match=r"R050 at line \d+.*\n.*apply\(model, schedule, namespaces=\('transformers',\)"
    ):
        apply(model, folder / "s.json")
    with pytest.raises(ScheduleError, match="R050"):
        apply(model, schedule)
    ours = apply(model, folder / "s.json", namespaces=("transformers",))
    found, wanted = (gradients(one, kwargs) for one in (ours, model))
    for name, gradient in wanted.items():
        assert torch.equal(found[name], gradient), name


def gradients(model: Any, kwargs: Any) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(**kwargs).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_a_file_cannot_hide_what_it_needs(planned):
    folder, model, _, _ = planned
    text = json.loads((folder / "s.json").read_text())
    del text["namespaces"]
    (folder / "hidden.json").write_text(json.dumps(text))
    with pytest.raises(ScheduleError, match=r"R050.*'transformers' are not allowed"):
        apply(model, folder / "hidden.json", namespaces=("transformers",))


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


def test_running_without_permission_says_how(planned):
    folder: Path = planned[0]
    words = ["run", "s.json", "--model", "build.py", "--steps", "1"]
    run = subprocess.run(
        [sys.executable, "-m", "remate", *words], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 1
    assert "remate run --allow transformers" in run.stderr
