"""Ranks that end while one rank plans: the others name the rank that is missing, and none waits forever."""

from __future__ import annotations

import datetime
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import remate
from remate.training import ranks, state_of
from remate_runtime.applied import planned_model
from remate_runtime.bind.agreement import agree
from tests.ranks import run_ranks

from ..end_to_end.test_loop_examples import free_port
from ..runtime.small import data, seeded
from ..runtime.test_tensor_parallel import columns_and_rows, hidden
from .test_auto_distributed import OPTIONS, Net

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")


def test_signs_of_life() -> None:
    stores: Any = dist
    store = stores.HashStore()
    with mock.patch.object(ranks, "COUNTS_EVERY", 0.01), ranks._counting(store, "counted"):
        store.wait(["counted/3"], datetime.timedelta(seconds=60))
    now = 0.0
    with mock.patch.object(ranks, "time", SimpleNamespace(monotonic=lambda: now)):
        silence = ranks._Silence(store, "key")
        now = 59.0
        assert silence.report() == ""
        store.set("key/count/1", "")
        store.set("key/rank", "0")  # a moment later than others ask
        now = 65.0
        assert silence.report() == ""
        now = 130.0
        assert silence.report() == "rank 0 has ended or is stopped: no sign of life for 65 s"


def _while_it_plans(model: Any, act: Any) -> None:
    """Call `act` when this rank is about to plan the model."""
    state = state_of(model)
    assert state is not None
    own = state._own
    state._own = lambda call: act() or own(call)  # type: ignore[method-assign]


def _killed(*given: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _planner_ends(rank: int, meeting: str, folder: str) -> None:
    """Rank 0 is killed while it plans. Where it also holds the store, rank 1 notices that at once."""
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    model = remate.auto(seeded(Net()).train(), **OPTIONS)
    with mock.patch.multiple(ranks, COUNTS_EVERY=0.2, SILENT=2.0):
        if rank == 0:
            _while_it_plans(model, lambda: time.sleep(4) or _killed())
            model(data(64, 16))
        time.sleep(0.5)
        with pytest.raises(remate.RemateError, match=r"rank 1 has waited .* s for rank 0 to plan the Net; ") as told:
            model(data(64, 16))
    Path(folder, "told").write_text(str(told.value))
    os._exit(0)


def _waiting_rank_ends(rank: int, meeting: str, folder: str) -> None:
    """Rank 1 is killed while it waits for the plan of a model that communicates. Rank 0 names it."""
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    model = remate.auto(columns_and_rows().train(), **OPTIONS)
    dist.barrier()
    if rank == 1:
        time.sleep(0.5)
        with mock.patch.object(ranks, "wait_for", _killed):
            model(hidden())
    with (
        mock.patch.object(planned_model, "agree", lambda *given: agree(*given, timeout=2)),
        pytest.raises(remate.RemateError, match="rank 0 has waited 2 s for rank 1 to apply a schedule") as told,
    ):
        model(hidden())
    Path(folder, "told").write_text(str(told.value))
    os._exit(0)


def ended(run: Any, meeting: str, folder: Path) -> tuple[list[int | None], str]:
    """Run two ranks, of which one is killed. Return how they ended, and what the other one was told."""
    context: Any = run_ranks(run, (meeting, str(folder)), nprocs=2, join=False)
    for process in context.processes:
        process.join(120)
    return [process.exitcode for process in context.processes], (folder / "told").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("store", ["file", "tcp"])
def test_the_rank_that_plans_is_killed(store: str, tmp_path: Path) -> None:
    meeting = f"file://{tmp_path}/store" if store == "file" else f"tcp://127.0.0.1:{free_port()}"
    codes, told = ended(_planner_ends, meeting, tmp_path)
    assert codes == [-signal.SIGKILL, 0]
    wanted = "rank 0 has ended or is stopped: no sign of life for 2 s" if store == "file" else "does not answer"
    assert wanted in told
    assert "hint: check the output of rank 0; plan beforehand" in told


@pytest.mark.slow
def test_a_rank_that_waits_is_killed(tmp_path: Path) -> None:
    codes, told = ended(_waiting_rank_ends, f"file://{tmp_path}/store", tmp_path)
    assert codes == [0, -signal.SIGKILL]
    assert "check the output of rank 1" in told


@pytest.mark.slow
def test_a_plan_that_fails_names_its_rank(tmp_path: Path) -> None:
    run_ranks(_fails, (f"file://{tmp_path}/store",), nprocs=2)


def _fails(rank: int, meeting: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    model = remate.auto(seeded(Net()).train(), **OPTIONS)
    if rank == 0:
        _while_it_plans(model, lambda: (_ for _ in ()).throw(remate.BudgetError("no such budget")))
        with pytest.raises(remate.BudgetError):
            model(data(64, 16))
    else:
        time.sleep(1)
        with pytest.raises(remate.RemateError, match="rank 0 could not plan the Net: no such budget"):
            model(data(64, 16))
    dist.barrier()
