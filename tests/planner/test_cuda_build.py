"""The rules for CUDA compared with the dispatch of a CUDA build of torch, in front of a stub of the CUDA runtime.

`tools/cuda-build` sets up such an environment (5 GB), and `REMATE_CUDA_BUILD` names its folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("REMATE_CUDA_BUILD") or ROOT / "build" / "cuda-build")
PYTHON = FOLDER / "bin" / "python"
Chosen = dict[str, dict[str, str]]


def observed(python: str, *arguments: str) -> Chosen:
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "runtime")])}
    command = [python, "-m", "tests.planner.cuda_build.observe", *arguments]
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


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="rules are for machines without a GPU")
@pytest.mark.skipif(not PYTHON.exists(), reason="no CUDA build of torch here: tools/cuda-build sets one up (5 GB)")
@pytest.mark.parametrize("architecture", ["75", "80", "86", "89", "90", "100"])
def test_rules_choose_what_torch_dispatches(architecture: str) -> None:
    rules, dispatch = observed(sys.executable, architecture, "rules"), observed(str(PYTHON), architecture, "stub")
    assert len(dispatch["attention"]) > 2000
    assert len(dispatch["models"]) >= 30
    differing = differences(rules, dispatch)
    assert not differing, "\n".join(differing[:5])


def test_a_difference_is_noticed() -> None:
    rules = {"attention": {"a": "flash"}, "models": {"m": "native_batch_norm"}}
    assert not differences(rules, {kind: dict(cases) for kind, cases in rules.items()})
    (text,) = differences(rules, {"attention": {"a": "cudnn"}, "models": {"m": "native_batch_norm"}})
    assert "by rules flash" in text
    assert "by dispatch cudnn" in text
    assert len(differences(rules, {"attention": {"a": "flash"}, "models": {}})) == 1
