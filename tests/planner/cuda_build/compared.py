"""What rules and dispatch choose, each observed in a process of its own, and how they differ."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDER = Path(os.environ.get("REMATE_CUDA_BUILD") or ROOT / "build" / "cuda-build")
PYTHON = FOLDER / "bin" / "python"
ARCHITECTURES = ("75", "80", "86", "89", "90", "100")
Chosen = dict[str, dict[str, str]]
_ABOUT = "import torch; print(torch.__version__, torch.version.cuda, torch.backends.cudnn.version())"


def versions(python: str) -> list[str]:
    """Return the versions of torch, CUDA and cuDNN in an environment; "None" for what is missing."""
    return subprocess.run([python, "-c", _ABOUT], capture_output=True, text=True, check=True).stdout.split()


def python_for(source: str) -> str:
    """Return the Python that observes a source.

    Rules follow the version of torch that plans. So this Python observes them if its version is that of the CUDA build,
    and else the CUDA build, which sees no GPU without the stub.
    """
    here, build = (versions(python)[0].split("+")[0] for python in (sys.executable, str(PYTHON)))
    return sys.executable if source == "rules" and here == build else str(PYTHON)


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
