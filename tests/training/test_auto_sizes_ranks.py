"""`remate.auto` where the lengths of batches differ from call to call, and from rank to rank."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import remate
from remate.training import state, state_of
from remate_runtime import load
from tests.ranks import run_ranks

from ..runtime.small import seeded
from .test_auto import QUICK
from .test_auto_sizes import Words

LENGTHS = ((16, 20, 21, 19, 30, 17, 18), (18, 18, 23, 22, 25, 31, 29))  # of ranks 0 and 1


def _trained(model: Any, lengths: Sequence[int], batch: int) -> list[torch.Tensor]:
    """Return the losses of a loop, and the parameters after it."""
    optimizer, results = torch.optim.SGD(model.parameters(), 0.1), []
    for step, length in enumerate(lengths):
        generator = torch.Generator().manual_seed(100 * length + step)
        loss = model(torch.randint(32, (batch, length), generator=generator))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        results.append(loss.detach())
    parameters: Any = list(model.parameters())
    return [*results, *(p.full_tensor() if isinstance(p, DTensor) else p.detach().clone() for p in parameters)]


def _begins(rank: int, meeting: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)


def _sharded(model: Any) -> Any:
    return fully_shard(model, mesh=init_device_mesh("cpu", (2,)))


def _differ(rank: int, meeting: str, folder: str, batch: int, wrap: Any) -> None:
    _begins(rank, meeting)
    wanted = _trained(wrap(seeded(Words()).train()), LENGTHS[rank], batch)
    said: list[str] = []
    model = remate.auto(seeded(Words()).train(), **{**QUICK, "progress": said.append}, file=f"{folder}/plan.json")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        wrapped = wrap(model)
        results = _trained(wrapped, LENGTHS[rank], batch)
    assert not [warning for warning in warned if "has waited" in str(warning.message)]  # for the other's self-check
    assert all(map(torch.equal, results, wanted))
    auto = state_of(model)
    assert auto is not None
    (schedule,) = auto.outcome.schedules
    assert schedule.model.dims["t"].max >= 36
    aside = auto.calls_aside  # since the last plan
    _trained(wrapped, [17 + rank, 36 - 3 * rank, 9], batch)
    assert auto.calls_aside == aside
    planned: list[Any] = [None, None]
    dist.all_gather_object(planned, (auto._plans, [text for text in said if text.startswith("calls differ")]))
    assert sum(plans for plans, _ in planned) == 2
    assert len(planned[0][1]) == 1  # rank 0 reports, whichever rank has planned
    assert "t" in load(f"{folder}/plan.json").model.dims


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch", "wrap"),
    [(4, DistributedDataParallel), (1, DistributedDataParallel), (4, _sharded)],
    ids=["ddp", "ddp, one sample", "fsdp2"],
)
def test_lengths_that_differ_between_ranks(batch: int, wrap: Any, tmp_path: Path) -> None:
    run_ranks(_differ, (f"file://{tmp_path}/store", str(tmp_path), batch, wrap), nprocs=2)


def _stops_early(rank: int, meeting: str) -> None:
    """Rank 1 runs out of batches after two calls, and rank 0 plans alone."""
    _begins(rank, meeting)
    lengths = LENGTHS[0] if rank == 0 else LENGTHS[1][:2]
    results = []
    for make in (seeded, lambda model: remate.auto(seeded(model), **QUICK)):
        wrapped = DistributedDataParallel(make(Words()).train())
        with wrapped.join():
            results.append(_trained(wrapped, lengths, 4))
    assert all(map(torch.equal, *results))
    if rank == 0:
        auto = state_of(wrapped.module)
        assert auto is not None
        assert "t" in auto.outcome.schedules[0].model.dims
    dist.barrier()


@pytest.mark.slow
def test_a_rank_that_stops_early_keeps_nobody(tmp_path: Path) -> None:
    run_ranks(_stops_early, (f"file://{tmp_path}/store",), nprocs=2)


def _ahead(rank: int, meeting: str) -> None:
    """Rank 0 cannot finish its plan before rank 1, which asks for it meanwhile, has made more calls."""
    _begins(rank, meeting)
    store = dist.distributed_c10d._get_default_store()  # type: ignore[attr-defined]
    model = remate.auto(seeded(Words()).train(), **QUICK)
    _trained(model, [16], 4)
    auto = state_of(model)
    assert auto is not None
    if rank == 0:
        plan = state.planned_for_sizes

        def late(*given: Any) -> Any:
            store.set("plans", "")
            store.wait(["ahead"])
            return plan(*given)

        with mock.patch.object(state, "planned_for_sizes", late):
            _trained(model, [20, 21, 22], 4)
        store.set("planned", "")
    else:
        store.wait(["plans"])
        _trained(model, [20, 21, 22], 4)
        assert "t" not in auto.outcome.schedules[0].model.dims
        store.set("ahead", "")
        store.wait(["planned"])
        _trained(model, [23], 4)
        assert not auto.outcome.planned
    assert "t" in auto.outcome.schedules[0].model.dims
    dist.barrier()


@pytest.mark.slow
def test_nobody_waits_for_a_plan_of_other_sizes(tmp_path: Path) -> None:
    run_ranks(_ahead, (f"file://{tmp_path}/store",), nprocs=2)
