"""Commands on files for parts of a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from remate.cli import main
from remate_runtime import load

BUILD = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, inner), nn.Linear(inner, 16)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, *inner):
        super().__init__()
        self.embed, self.blocks = nn.Linear(16, 16), nn.Sequential(*[Block(n) for n in inner])

    def forward(self, x):
        x = self.blocks(self.embed(x))
        return x[x.detach() > 0].square().mean()


def build(inner=(64, 64, 64)):
    torch.manual_seed(0)
    return Net(*inner).train(), (torch.randn(32, 16),)


def two():
    return build((64, 32))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parts")
    (path / "net.py").write_text(BUILD)
    build = f"{path / 'net.py'}:build"
    args = ["plan", build, "--at", "blocks.*", "--budget", "70%", "--cost", "cpu", "-o", str(path / "block.json")]
    assert main([*args, "--quiet"]) == 0
    return path


@pytest.mark.slow
def test_the_commands_know_a_file_for_parts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, build = str(folder / "block.json"), f"{folder / 'net.py'}:build"
    assert load(path).model.at == ("blocks.[0-2]",)
    assert main(["check", path, "--model", build, "--step"]) == 0
    assert "for parts of a model: blocks.[0-2]" in capsys.readouterr().out
    assert main(["show", path]) == 0
    assert "of the others, beside it" in capsys.readouterr().out
    assert main(["explain", path]) == 0
    assert main(["lint", path]) == 0
    assert main(["diff", path, path]) == 0
    capsys.readouterr()
    assert main(["run", path, "--model", build, "--steps", "1", "--quiet"]) == 0
    told = capsys.readouterr().out
    assert "predicted peak of its parts" in told
    assert "0 (bitwise equal)" in told


@pytest.mark.parametrize("command", ["replan", "rebind"])
def test_parts_are_planned_again_as_parts(folder: Path, tmp_path: Path, command: str) -> None:
    path, again = str(folder / "block.json"), str(tmp_path / "again.json")
    assert main([command, path, "--model", f"{folder / 'net.py'}:build", "-o", again, "--quiet"]) == 0
    before, after = load(path), load(again)
    assert (after.model, after.program, after.blocks) == (before.model, before.program, before.blocks)
    assert (after.peak_bytes, after.digest) == (before.peak_bytes, before.digest)


def test_check_tells_what_of_the_parts_changed(folder: Path, tmp_path: Path, capsys: Any) -> None:
    file = json.loads((folder / "block.json").read_text())
    file["model"]["calls"] = 2
    path = tmp_path / "twice.json"
    path.write_text(json.dumps(file))
    assert main(["fmt", "--figures", str(path)]) == 0
    capsys.readouterr()
    assert main(["check", str(path), "--model", f"{folder / 'net.py'}:build"]) == 3
    assert "calls of each part in a step" in capsys.readouterr().err
    assert main(["check", str(folder / "block.json"), "--model", f"{folder / 'net.py'}:two"]) == 3
    assert "parts of the model" in capsys.readouterr().err
    assert main(["replan", str(folder / "block.json"), "--model", f"{folder / 'net.py'}:two", "-o", str(path)]) != 0


@pytest.mark.slow
def test_several_kinds_go_into_a_folder(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["plan", f"{folder / 'net.py'}:two", "--at", "blocks.*", "--budget", "100%", "--cost", "cpu", "-o"]
    assert main([*ask, str(tmp_path / "one.json")]) == 2
    assert "2 different steps" in capsys.readouterr().err
    assert main([*ask, f"{tmp_path}/parts/"]) == 0
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == ["Block-2.json", "Block.json"]
    assert "peak of all parts together" in capsys.readouterr().out
    assert main([*ask, f"{tmp_path}/parts/", "--device-memory", "1GiB"]) == 2
