"""Trains the examples with their checked-in schedules beside eager PyTorch, and collects the output of `remate run`.

python -m tools.bench.examples          # about two minutes; writes results/examples.txt
"""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

import torch

from remate.cli import main as remate

from .text import environment

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("results")
NAMES = ("gpt2", "resnet", "unet", "encoder_decoder")


def main() -> int:
    torch.set_num_threads(1)
    parts = [environment()]
    for name in NAMES:
        command = [
            "run",
            f"{ROOT}/examples/{name}.json",
            "--model",
            f"{ROOT}/examples/{name}.py:build",
            "--steps",
            "15",
        ]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            status = remate(command)
        if status:
            return status
        parts.append(f"{name}\n{printed.getvalue()}".rstrip())
        print(parts[-1], end="\n\n", flush=True)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "examples.txt").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
