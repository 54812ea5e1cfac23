"""On a CUDA device: a schedule that was planned for this GPU by a process that sees none, and its dry run, beside what
the GPU does."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import remate
from remate.api.dry_run import dry_run
from remate.api.elsewhere import on_device_of
from remate.capture.recorded import RecordedCall
from remate.schedule_tools.rule_versions import without_rules
from remate.step_measurement.allocator import peak_bytes
from remate_runtime import StaleModelError, StaleModelWarning, apply, predicted_peak
from remate_runtime.format import Schedule, load
from remate_runtime.staleness import clear_gradients, compare_models, training_step
from remate_runtime.staleness.eager_operators import BEYOND_EAGER
from tests.models import ZOO
from tools.bench.cuda.elsewhere import name_of_this_gpu

pytestmark = pytest.mark.cuda
BUILD = """
import torch
from tests.planner.test_cuda_elsewhere import built

def build():
    return built({name!r}, 'cpu')

def build_for_others():  # as of a PyTorch that chooses another kernel of attention
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    return build()
"""
HALF = "-bf16"
NAMES = ("gpt2", "gpt2-bf16", "llama-bf16", "moe", "t5", "vit-bf16", "resnet", "unet")


def built(name: str, device: str) -> Any:
    model, args, kwargs = ZOO[name.removesuffix(HALF)].build(device)
    if not name.endswith(HALF):
        return model, args, kwargs
    cast = [x.bfloat16() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in args]
    return model.bfloat16(), tuple(cast), kwargs


def planned_without_the_gpu(name: str, folder: Path, build: str = "build") -> Schedule:
    """By the command, in a process that sees no device."""
    gpu = name_of_this_gpu()
    if not gpu:
        pytest.skip(f"no GPU with a name has the capability of {torch.cuda.get_device_name()}")
    (folder / "there.py").write_text(BUILD.format(name=name), encoding="utf-8")
    command = [sys.executable, "-m", "remate", "plan", str(folder / f"there.py:{build}"), "--budget", "70%"]
    command += ["--device", gpu, "-o", str(folder / "s.json"), "--quiet"]
    done = subprocess.run(
        command, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return load(folder / "s.json")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_gpu_runs_the_step_that_was_planned_without_it(name: str, tmp_path: Path) -> None:
    schedule = planned_without_the_gpu(name, tmp_path)
    model, args, kwargs = built(name, "cuda")
    planned = apply(copy.deepcopy(model), schedule)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        difference = compare_models(model, planned, args, kwargs, steps=2)
    assert difference.relative <= (2e-2 if name.endswith(HALF) else 1e-3), difference
    assert difference.generator_equal
    others = [str(warning.message) for warning in said if BEYOND_EAGER in str(warning.message)]
    if others and without_rules(torch.__version__):
        warnings.warn(others[0], stacklevel=1)  # the rules are of other versions: for the summary
    else:
        assert not others, others
    for _ in range(2):
        peak = peak_bytes(lambda: training_step(planned, args, kwargs), "cuda")
    assert peak <= 1.02 * predicted_peak(planned) + (1 << 20)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["replan", "rebind"])
def test_the_advice_about_other_kernels_works_when_followed(command: str, tmp_path: Path) -> None:
    name = "gpt2-bf16"
    schedule = planned_without_the_gpu(name, tmp_path, "build_for_others")
    model, args, kwargs = built(name, "cuda")
    with (
        pytest.warns(StaleModelWarning, match=f"other random numbers are drawn.*remate {command}"),
        pytest.raises(StaleModelError, match=f"{BEYOND_EAGER} aten._scaled_dot_product_efficient_attention"),
    ):
        apply(copy.deepcopy(model), schedule)(*args, **kwargs)
    again = [sys.executable, "-m", "remate", command, str(tmp_path / "s.json"), "--model"]
    done = subprocess.run([*again, str(tmp_path / "there.py:build")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    schedule = load(tmp_path / "s.json")
    assert schedule.model.captured == "on the device"
    with warnings.catch_warnings():
        warnings.simplefilter("error", StaleModelWarning)
        difference = compare_models(model, apply(copy.deepcopy(model), schedule), args, kwargs)
    assert difference.relative <= 2e-2, difference


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2-bf16", "resnet"])
def test_a_dry_run_holds_what_the_step_holds(name: str) -> None:
    model, args, kwargs = built(name, "cuda")
    schedule = remate.plan(model, args, kwargs, budget="75%", progress=None)
    with on_device_of(schedule, RecordedCall.of(model, args, kwargs)) as call:
        runs = {engine: dry_run(call, schedule, engine=engine) for engine in ("eager", "arena", "compiled")}
    assert runs["eager"].peak == runs["eager"].predicted
    for engine, ran in runs.items():
        planned = apply(copy.deepcopy(model), schedule, engine=engine)
        before = torch.cuda.memory_allocated()
        for _ in range(3):
            clear_gradients(planned, args, kwargs)
            held = torch.cuda.memory_allocated() - before  # the arena stays between steps
            peak = held + peak_bytes(lambda planned=planned: training_step(planned, args, kwargs), "cuda")
        assert 0.95 * ran.peak - (1 << 20) <= peak <= 1.02 * (ran.peak + ran.workspaces) + (1 << 20), (
            engine,
            peak,
            ran,
        )
