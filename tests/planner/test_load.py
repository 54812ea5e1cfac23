"""The load of the machine has no influence: a file planned beside busy processes equals that of an idle machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import remate
from tests.models import ZOO

ROOT = Path(__file__).parents[2]
PLAN = """
import pathlib, sys
from tests.planner.test_load import plan
print("ready", flush=True)
sys.stdin.readline()
plan(pathlib.Path(sys.argv[1]))
"""


def plan(path: Path) -> None:
    model, args, kwargs = ZOO["unet"].build(depth=1)
    remate.plan(model, args, kwargs, budget="70%", cost="h200", effort="quick", progress=None).save(str(path))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="processes cannot be stopped")
def test_a_busy_machine_plans_the_same_file(tmp_path: Path) -> None:
    plan(tmp_path / "idle.json")
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PLAN, str(tmp_path / "loaded.json")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT, env=env) as planner:
        assert planner.stdout is not None
        assert planner.stdout.readline() == "ready\n"  # imports need no company
        assert planner.stdin is not None
        planner.stdin.write("go\n")
        planner.stdin.flush()
        while planner.poll() is None:  # it runs for a fourth of the time, as beside three others on one core
            for signum, seconds in ((signal.SIGSTOP, 0.3), (signal.SIGCONT, 0.1)):
                planner.send_signal(signum)
                time.sleep(seconds)
    assert planner.returncode == 0
    idle = (tmp_path / "idle.json").read_bytes()
    assert idle == (tmp_path / "loaded.json").read_bytes()
    assert b'"stopped_by": "time"' not in idle
