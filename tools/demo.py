"""Plans a GPT-2 of 12 layers at half of its peak, writes the schedule, and trains with it and with eager PyTorch.

The same commands work on any file with a `build()`.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from remate.cli import main as remate

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = Path("demo-output")


def main() -> int:
    os.chdir(ROOT)
    OUTPUT.mkdir(exist_ok=True)
    target, schedule = "examples/gpt2.py:build", str(OUTPUT / "gpt2.json")
    commands = (
        ["plan", target, "--budget", "50%", "-o", schedule, "--profile", str(OUTPUT / "profile.json")],
        ["check", schedule],
        ["show", schedule, "--plot", str(OUTPUT / "gpt2.svg")],
        ["run", schedule, "--model", target, "--steps", "8"],
    )
    for command in commands:
        print(f"\n$ remate {shlex.join(command)}", flush=True)
        status = remate(command)
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
