"""The recipes for loops: each plans when there is no file, and trains by the file when there is one."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

LOOPS = Path(__file__).parents[2] / "examples" / "loops"
NEEDS = {
    "trainer": ("transformers", "accelerate"),
    "trainer_callback": ("transformers", "accelerate"),
    "accelerate_loop": ("accelerate",),
    "lightning_loop": ("lightning",),
}


# A thread of gloo that frees a tensor while Python ends aborts the process, when all work is done and printed: torch
# keeps these threads beyond destroy_process_group (pytorch/pytorch pull request 179291 describes it). Rare, and no
# fault of a recipe.
GLOO_ENDS = "terminate called without an active exception"


def run(path: Path, file: Path, ranks: int = 1, again: int = 3) -> str:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *torchrun, str(path), str(file)], capture_output=True, text=True, env=environment, timeout=300
    )
    before, aborted, _ = done.stderr.partition(GLOO_ENDS)
    if done.returncode and aborted and "Traceback" not in before and ranks > 1 and again:
        return run(path, file, ranks, again - 1)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def figures(printed: str) -> list[str]:
    """The losses, or the output, of all ranks; lines of several ranks may run into each other."""
    return sorted(re.findall(r"\b(?:loss|output) (-?\d+\.\d{3})", printed))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in LOOPS.glob("*.py")))
def test_recipe(name: str, tmp_path: Path) -> None:
    for package in NEEDS.get(name, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    ranks = 2 if name in ("ddp", "fsdp2", "pipeline", "tensor_parallel") else 1
    if ranks > 1 and not dist.is_available():
        pytest.skip("torch without distributed")
    file = tmp_path / "s.json"
    first = figures(run(LOOPS / f"{name}.py", file, ranks))
    written = {path: path.read_bytes() for path in ([file] if file.is_file() else file.iterdir())}
    assert figures(run(LOOPS / f"{name}.py", file, ranks)) == first
    assert {path: path.read_bytes() for path in written} == written
    assert len(first) == (1 if name == "pipeline" else ranks)  # the last stage alone has the loss
