"""Parts of a model, and the largest batch, for a GPU that the machine does not have."""

from pathlib import Path

import pytest
import torch
from torch import nn

import remate
from remate.api.parts import PartSchedules
from remate.cli import main
from remate.errors import CaptureError
from remate.schedule_tools.rule_versions import without_rules

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="steps of named GPUs are captured where there is none"
)


class Branching(nn.Module):
    """Parts, beside a recurrent layer and, optionally, a branch on a value."""

    def __init__(self, branches=False):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(3))
        self.norm, self.last, self.branches = nn.LayerNorm(64), nn.LSTM(64, 8), branches

    def forward(self, x):
        x = self.norm(x + torch.arange(64, device=x.device))
        if self.branches and x.sum() > 0:
            x = -x
        for block in self.blocks:
            x = block(x)
        return self.last(x)[0].sum()


@pytest.mark.quick("meta")
@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_parts_are_planned_as_cuda_calls_them(where):
    with torch.device(where):
        model, x = Branching(), torch.randn(4, 16, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        schedules = remate.plan(model, (x,), budget="100%", at="blocks.*", device="cuda:h100", progress=None)
    assert isinstance(schedules, PartSchedules)
    models = {schedule.model.at: schedule.model for schedule in schedules}
    assert {(m.device, m.architecture, m.autocast) for m in models.values()} == {("cuda", "sm_90", "bf16")}
    inputs = {at: model.inputs["args"][0]["tensor"] for at, model in models.items()}
    assert inputs == {("blocks.0",): "f32[4,16,64]", ("blocks.[1-2]",): "bf16[4,16,64]"}
    assert {p.device.type for p in model.parameters()} == {where}


def test_a_torch_without_rules_of_its_own_is_reported(tmp_path: Path, capsys, monkeypatch):
    (tmp_path / "train.py").write_text(PARTS)
    target, file = str(tmp_path / "train.py:build"), tmp_path / "s.json"
    asked = ["plan", target, "--budget", "100%", "--device", "cuda:t4", "--force", "--quiet", "-o", str(file)]
    said = "rules for CUDA are those of torch 2.11 to 2.14, and this is the step of torch 2.15.0"
    assert main(asked) == 0
    for command in ("show", "check"):
        assert main([command, str(file)]) == 0
    assert said not in "".join(capsys.readouterr())
    monkeypatch.setattr(torch, "__version__", "2.15.0+cpu")
    assert main(asked) == 0
    assert said in capsys.readouterr().err
    for command in ("show", "check"):
        assert main([command, str(file)]) == 0
        assert said in capsys.readouterr().out
    with pytest.warns(UserWarning, match=said):
        remate.plan(nn.Linear(4, 4), (torch.randn(2, 4),), budget="100%", device="cuda:t4", progress=None)
    assert not any(map(without_rules, ("2.11.0+cu130", "2.12.1", "2.13.0+cpu", "2.14.1")))
    assert "the step of torch 2.10.0" in without_rules("2.10.0")
    assert "other kernels" in without_rules("a version")


def test_values_around_parts_are_not_known_elsewhere():
    with pytest.raises(CaptureError, match="reads values of tensors around its parts"):
        remate.plan(Branching(True), (torch.randn(4, 16, 64),), at="blocks.*", device="cuda:h100", progress=None)


@pytest.mark.slow
def test_the_largest_batch_for_a_gpu_that_is_not_here():
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    limits = {"device_memory": "4MiB", "optimizer": "sgd", "cuda_context": 0}
    fitted = remate.fit(model, (torch.randn(64, 64),), **limits, device="cuda:a100", progress=None)
    planned = fitted.schedule.model
    assert (planned.device, planned.architecture, fitted.schedule.solve.cost) == ("cuda", "sm_80", "a100")
    assert fitted.largest.peak is not None
    assert fitted.largest.peak <= fitted.largest.left


PARTS = """
import torch
def build():
    torch.manual_seed(0)
    blocks = (torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.SiLU()) for _ in range(2))
    return torch.nn.Sequential(torch.nn.Linear(64, 64), *blocks), (torch.randn(256, 64),)
"""


@pytest.mark.slow
def test_the_commands_plan_parts_and_batches(tmp_path: Path, capsys):
    (tmp_path / "train.py").write_text(PARTS)
    target, file, again = (str(tmp_path / name) for name in ("train.py:build", "s.json", "again.json"))
    assert (
        main(["plan", target, "--at", "1", "2", "--budget", "100%", "--device", "cuda:t4", "-o", file, "--quiet"]) == 0
    )
    assert main(["check", file, "--model", target]) == 0
    assert main(["replan", file, "--model", target, "-o", again, "--quiet"]) == 0
    assert Path(file).read_bytes() == Path(again).read_bytes()
    capsys.readouterr()
    asked = ["--device-memory", "4MiB", "--cuda-context", "1B", "--optimizer", "sgd", "--device", "cuda:t4"]
    assert main(["fit", target, *asked, "-o", file, "--force", "--quiet"]) == 0
    assert main(["show", file]) == 0
    assert "cuda (sm_75, captured by rules)" in capsys.readouterr().out
