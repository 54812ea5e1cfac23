"""Ranks that call together raise together, wherever the difference is."""

from __future__ import annotations

import contextlib
import copy
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from remate_runtime import StaleModelError, StaleModelWarning, SteppedAsideWarning, apply
from remate_runtime.self_check import ranks
from tests.ranks import run_ranks
from tests.runtime.small import data, seeded
from tests.runtime.stepping import schedule_of

GAIN = [1.0]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(x) * gain()


def gain() -> float:
    return float.__add__(*GAIN, 0.0)  # pyright: ignore[reportCallIssue]


def _rank(rank: int, world: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    try:
        x = data(4, 8, seed=rank)
        planned = apply(seeded(Net()), schedule_of(seeded(Net()), (x,)))
        if rank == 0:
            with torch.no_grad():
                planned(x)  # alone: no collective may wait for the others
        model = DistributedDataParallel(planned)
        planned._remate_step.steps[0]._guard.check = lambda: None
        GAIN[0] = 1.0 if rank == 0 else 2.0
        told = "differs in" if rank == 1 else "on another rank"
        with pytest.raises(StaleModelError, match=told):
            model(x)
        GAIN[0] = 1.0
        model(x).sum().backward()
        _one_in_evaluation(rank, x)
    finally:
        dist.destroy_process_group()


def _one_in_evaluation(rank: int, x: torch.Tensor) -> None:
    """The rank that checks its call waits for the other one only once, and gradients are those without schedules."""
    live = seeded(Net())
    with mock.patch.object(ranks, "TIMEOUT", 0.2):
        scheduled = apply(copy.deepcopy(live), schedule_of(live, (x,)), verify=1)
    gradients = []
    for module, warned in ((live, None), (scheduled, SteppedAsideWarning if rank else StaleModelWarning)):
        wrapper = DistributedDataParallel(module)
        wrapper.train(rank == 0)
        with pytest.warns(warned) if warned else contextlib.nullcontext() as seen:
            for _ in range(3):
                wrapper(x).square().sum().backward()
        assert seen is None or rank or ["rank 0 has waited 0.2 s" in str(one.message) for one in seen] == [True]
        gradients.append([parameter.grad for parameter in module.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


@pytest.mark.slow
@pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
def test_all_ranks_raise_where_one_differs(tmp_path) -> None:
    run_ranks(_rank, (2, str(tmp_path)), nprocs=2)
