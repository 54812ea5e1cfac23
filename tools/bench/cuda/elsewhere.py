"""Plans a subject in a process that sees no GPU: `python -m tools.bench.cuda.elsewhere MODEL BUDGET FILE [--gpu NAME]`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import remate
from remate.profile.devices import DEVICES
from remate_runtime.format import Schedule, load

from .subjects import FULL, QUICK


def name_of_this_gpu() -> str:
    """The name to plan for the CUDA device of this machine, `cuda:h100`; "" if none has its capability."""
    here, name = torch.cuda.get_device_capability(), torch.cuda.get_device_name()
    alike = {key: device.gpu for key, device in DEVICES.items() if device.gpu and device.gpu.capability == here}
    key = next((key for key, gpu in alike.items() if gpu.name == name), next(iter(alike), ""))
    return f"cuda:{key}" if key else ""


def planned_elsewhere(model: str, budget: str, file: Path, gpu: str, quick: bool) -> Schedule:
    """Plan in a process of its own. gpu: as `name_of_this_gpu` returns it; "" plans the step of the CPU."""
    command = [sys.executable, "-m", "tools.bench.cuda.elsewhere", model, budget, str(file)]
    command += [*(["--gpu", gpu] if gpu else []), *(["--quick"] if quick else [])]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=hidden, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"planning without the GPU failed\n{done.stderr[-2000:]}")
    return load(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("budget")
    parser.add_argument("file")
    parser.add_argument("--gpu")
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    model, args, kwargs = (QUICK if chosen.quick else FULL)[chosen.model].build("cpu")
    options: Any = {"cost": None if chosen.gpu else "cpu", "device": chosen.gpu, "progress": None}
    options["effort"] = "quick" if chosen.quick else "normal"
    remate.plan(model, args, kwargs, budget=chosen.budget, **options).save(chosen.file)


if __name__ == "__main__":
    main()
