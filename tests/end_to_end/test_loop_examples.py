"""The recipes for loops: each plans when there is no file, and trains by the file when there is one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import runpy
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import remate_runtime
from tests.ranks import run_ranks

LOOPS = Path(__file__).parents[2] / "examples" / "loops"
NEEDS = {
    "trainer": ("transformers.trainer", "accelerate"),
    "trainer_callback": ("transformers.trainer", "accelerate"),
    "accelerate_loop": ("accelerate",),
    "lightning_loop": ("lightning",),
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


RANKS = {"ddp": 2, "fsdp2": 2, "pipeline": 2, "pipeline_fsdp2": 4, "tensor_parallel": 2}


def _rank(rank: int, ranks: int, port: int, path: Path, file: Path, told: Path, plain: bool = False) -> None:
    """Run a script as torchrun does. What it prints is in a file. plain: without applying schedules."""
    if plain:
        remate_runtime.apply = lambda model, *_, **__: model
    sys.argv = [str(path), str(file)]
    if ranks > 1:
        about = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        os.environ.update({name: str(value) for name, value in about.items()})
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    numbers: list[float] = []
    item: Any = torch.Tensor.item

    def exact(self: torch.Tensor) -> float:
        """Keep what the script prints with few digits."""
        if sys._getframe(1).f_code.co_filename == str(path):
            numbers.append(item(self))
        return item(self)

    torch.Tensor.item = exact
    try:
        with (told / str(rank)).open("w") as out, contextlib.redirect_stdout(out):
            runpy.run_path(str(path), run_name="__main__")
    finally:
        torch.Tensor.item = item
    (told / f"{rank}.json").write_text(json.dumps(numbers))


def figures(path: Path, ranks: int, folder: Path, plain: bool = False) -> tuple[list[str], list[list[float]]]:
    """The losses, or the output, that the ranks print in a run, and all digits of those that the script reads."""
    run_ranks(_rank, (ranks, free_port(), path, folder / "s.json", folder, plain), ranks)
    texts = [(folder / str(rank)).read_text() for rank in range(ranks)]
    printed = [figure for text in texts for figure in re.findall(r"\b(?:loss|output) (-?\d+\.\d{3})", text)]
    return printed, [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.usefixtures("quick_searches")
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in LOOPS.glob("*.py")))
def test_recipe(name: str, tmp_path: Path) -> None:
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)  # here, so that it is imported once
    ranks = RANKS.get(name, 1)
    if ranks > 1 and not dist.is_available():
        pytest.skip("torch without distributed")
    file, path = tmp_path / "s.json", LOOPS / f"{name}.py"
    first = figures(path, ranks, tmp_path)
    written = {item: item.read_bytes() for item in ([file] if file.is_file() else file.iterdir())}
    assert figures(path, ranks, tmp_path) == first
    assert {item: item.read_bytes() for item in written} == written
    assert len(first[0]) == (ranks // 2 if name.startswith("pipeline") else ranks)  # the last stage alone has the loss
    if name.startswith("pipeline"):
        assert any(first[1])
        assert figures(path, ranks, tmp_path, plain=True) == first
