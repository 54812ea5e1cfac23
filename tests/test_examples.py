"""Every example: its checked-in schedule is valid, fits its model, and gives eager's gradients; its script runs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import remate_runtime
from remate.capture.capture_step import capture
from remate.schedule_tools.analysis import open_text
from remate.schedule_tools.check import findings
from remate.schedule_tools.staleness import differences
from remate_runtime.staleness import compare_models

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
NAMES = ("gpt2", "resnet", "unet", "encoder_decoder")


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def built(module: ModuleType) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    result = module.build()
    return result[0], result[1], result[2] if len(result) > 2 else {}


def test_all_examples_are_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_schedule_is_valid_and_keeps_its_promises(name: str) -> None:
    data = (EXAMPLES / f"{name}.json").read_bytes()
    opened = open_text(data)
    assert findings(opened, data.decode()) == []
    assert opened.timeline.peak < 0.62 * opened.baseline.peak
    assert opened.schedule.name == name


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_schedule_fits_its_model(name: str) -> None:
    model, args, kwargs = built(example(name))
    live = capture(model, args, kwargs)
    opened = open_text((EXAMPLES / f"{name}.json").read_bytes())
    assert differences(opened.schedule.model, live.model, opened.graph, live.graph) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_same_step_as_eager(name: str) -> None:
    """Outputs, gradients, buffers and generator, bit by bit: every operation of the examples is deterministic."""
    model, args, kwargs = built(example(name))
    planned = remate_runtime.apply(model, str(EXAMPLES / f"{name}.json"))
    assert compare_models(model, planned, args, kwargs, steps=2).bitwise


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_script(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    example(name).main(steps=2)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["step 0", "step 1"]
