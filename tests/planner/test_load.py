"""The load of the machine has no influence: a file planned beside busy processes equals that of an idle machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLAN = """
import sys
import remate
from tests.models import ZOO
model, args, kwargs = ZOO["unet"].build()
remate.plan(model, args, kwargs, budget="70%", cost="h200", effort="quick").save(sys.argv[1])
"""


def plan(path: Path, *before: str) -> bytes:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*before, sys.executable, "-c", PLAN, str(path)], check=True, cwd=ROOT, env=env)
    return path.read_bytes()


@pytest.mark.slow
def test_a_busy_machine_plans_the_same_file(tmp_path: Path) -> None:
    idle = plan(tmp_path / "idle.json")
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        loaded = plan(tmp_path / "loaded.json", "nice", "-n", "3")
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert idle == loaded
    assert b'"stopped_by": "time"' not in idle
