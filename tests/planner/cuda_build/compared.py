"""What rules and dispatch choose, each observed in a process of its own, and how they differ."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDER = Path(os.environ.get("REMATE_CUDA_BUILD") or ROOT / "build" / "cuda-build")
PYTHON = FOLDER / "bin" / "python"
ARCHITECTURES = ("75", "80", "86", "89", "90", "100")
Chosen = dict[str, dict[str, str]]


def observed(python: str, architecture: str, source: str) -> Chosen:
    """Return what is chosen for a GPU. source: as in `observe`."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "runtime")])}
    command = [python, "-m", "tests.planner.cuda_build.observe", architecture, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def differences(rules: Chosen, dispatch: Chosen) -> list[str]:
    """Return what differs, one text per case."""
    return [
        f"{name}\n  by rules {rules[kind].get(name)}\n  by dispatch {dispatch[kind].get(name)}"
        for kind in dispatch
        for name in dispatch[kind].keys() | rules[kind].keys()
        if rules[kind].get(name) != dispatch[kind].get(name)
    ]
