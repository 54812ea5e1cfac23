"""Files of shards (FSDP2, tensor parallelism) that `remate edit` changed train like the model without a schedule."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import remate
from remate.cli import main
from remate.schedule_tools.analysis import open_schedule
from remate_runtime import apply, load
from tests.ranks import run_ranks

from ..runtime.small import data, seeded
from ..runtime.test_sharded import fully_sharded
from ..runtime.test_sharded_peaks import Deep
from ..runtime.test_tensor_parallel import applied, assert_equal_steps, hidden, sequences

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
OPTIONS: dict[str, Any] = {"budget": "100%", "cost": "cpu", "effort": "quick", "progress": None}
# Ends of operations' names, which begin with the instances of their blocks.
FSDP2 = (
    *[("--recompute", f"blocks.{at}.1.gelu", "--before", f"blocks.{at}.2.grad.mm_2") for at in range(2)],
    ("--keep", "blocks.1.1.gelu"),
)
TENSOR_PARALLEL = (("--recompute", "all_gather_into_tensor", "--before", "down.grad.mm"), ("--page", "up.addmm"))


def edited(path: Path, edits: tuple[tuple[str, ...], ...]) -> None:
    for edit in edits:
        names = [op.id for op in open_schedule(str(path)).graph.operations]
        words = [word if word[0] == "-" else next(name for name in names if name.endswith(word)) for word in edit]
        assert main(["edit", str(path), *words, "-o", str(path), "--force"]) == 0, edit
        assert all(word.removeprefix("--") in path.read_text() for word in edit if word in ("--recompute", "--page"))


def _fsdp2(rank: int, path: Path) -> None:
    x = data(300, 128)
    if rank == 0:
        remate.plan(seeded(Deep()), (x,), fsdp="blocks.*", shards=2, **OPTIONS).save(str(path))
        edited(path, FSDP2)
    dist.barrier()
    model, wanted = fully_sharded(apply(seeded(Deep()), load(path)), True), fully_sharded(seeded(Deep()), True)
    for _ in range(2):
        losses = [one(x) for one in (model, wanted)]
        assert torch.equal(*losses)
        for loss in losses:
            loss.backward()
        for ours, own in zip(model.parameters(), wanted.parameters(), strict=True):
            assert torch.equal(ours.grad.to_local(), own.grad.to_local())


def _tensor_parallel(rank: int, path: Path) -> None:
    if rank == 0:
        remate.plan(sequences(), (hidden(),), **OPTIONS).save(str(path))
        edited(path, TENSOR_PARALLEL)
    else:
        sequences()  # its parameters are distributed with rank 0
    dist.barrier()
    assert_equal_steps(sequences(), applied(sequences(), load(path)), hidden())


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=limit)
    _fsdp2(rank, Path(folder, "fsdp2.json"))
    _tensor_parallel(rank, Path(folder, "tensor_parallel.json"))


def test_nothing_is_paged_beside_sharded_parameters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.json"
    remate.plan(seeded(Deep()), (data(30, 128),), fsdp="blocks.*", shards=2, **OPTIONS).save(str(path))
    name = next(op.id for op in open_schedule(str(path)).graph.operations if op.id.endswith("blocks.0.1.gelu"))
    assert main(["edit", str(path), "--page", name]) == 1
    assert "no values are paged\nhint: recompute them instead" in capsys.readouterr().err


@pytest.mark.slow
def test_edited_files(tmp_path: Path) -> None:
    run_ranks(_rank, (str(tmp_path),), nprocs=2)
