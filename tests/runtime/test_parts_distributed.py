"""Models in which parts have schedules, under torch's engines for several ranks: gradients are eager's to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import remate
from remate_runtime import BindError, Schedule, apply
from remate_runtime.applied import original_of
from remate_runtime.flat_step import expand
from tests.ranks import run_ranks

from .small import data, seeded
from .test_sharded import Block, flat, fully_sharded, needs_ranks

Loop = Callable[[Any, int], Any]


class Chosen(nn.Module):
    """The code around the blocks depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.head = nn.Linear(8, 8), nn.Linear(8, 2)
        self.blocks = nn.ModuleList([Block() for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x[x.detach().sum(-1) > -1e9])


def made() -> Any:
    return seeded(Chosen()).train()


def steps(wrapped: Any, rank: int, accumulate: Any = None) -> None:
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
    for at in range(3):
        if accumulate is not None:
            accumulate(wrapped, at == 1)
        wrapped(data(64, 8, seed=rank + at)).square().mean().backward()
        if at != 1:
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            wrapped(data(64, 8))
    wrapped(data(64, 8, seed=rank)).square().mean().backward()


def ddp(model: Any, rank: int) -> Any:
    steps(
        DistributedDataParallel(model),
        rank,
        lambda wrapped, off: setattr(wrapped, "require_backward_grad_sync", not off),
    )
    return model


def unused(model: Any, rank: int) -> Any:
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    (wrapped(data(64, 8, seed=rank)).sum() + wrapped(data(64, 8, seed=9)).square().sum()).backward()
    return model


def static(model: Any, rank: int) -> Any:
    steps(DistributedDataParallel(model, static_graph=True), rank)
    return model


def blocks_of_the_view(model: Any, rank: int) -> Any:
    """What a loop over `model.blocks` meets: the blocks with schedules."""
    steps(fully_sharded(model, True), rank, lambda left, off: left.set_requires_gradient_sync(not off))
    return model


def the_whole(model: Any, rank: int) -> Any:
    steps(fully_sharded(model, False), rank)
    return model


def kept(model: Any, rank: int) -> Any:
    steps(fully_sharded(model, True, reshard_after_forward=False), rank)
    return model


def the_model_itself(model: Any, rank: int) -> Any:
    """Sharded is the model that the schedules were applied to; the view trains."""
    fully_sharded(original_of(model), True)
    steps(model, rank)
    return model


LOOPS: tuple[Loop, ...] = (ddp, unused, static, blocks_of_the_view, the_whole, kept, the_model_itself)


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _equal(loop: Loop, schedule: Schedule, rank: int) -> None:
    eager = loop(made(), rank)
    view = apply(made(), schedule)
    steps_of = view._remate_parts.steps.values()
    planned = loop(view, rank)
    assert all(step.calls >= 2 for step in steps_of), loop.__name__
    for (name, wanted), actual in zip(eager.named_parameters(), planned.parameters(), strict=True):
        assert torch.equal(_local(actual), _local(wanted)), (loop.__name__, name)
        assert (actual.grad is None) == (wanted.grad is None), (loop.__name__, name)
        assert actual.grad is None or torch.equal(_local(actual.grad), _local(wanted.grad)), (loop.__name__, name)


def _refused(schedule: Schedule) -> None:
    with pytest.raises(BindError, match="apply the schedule first"):
        apply(fully_sharded(made(), True), schedule)
    with pytest.raises(BindError, match=r"plan one block, and wrap the result of apply for each"):
        apply(flat(made()), schedule)


def _rank(rank: int, world: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    try:
        schedule = remate.plan(made(), (data(64, 8),), at="blocks.*", budget="80%", cost="cpu", effort="quick")
        assert isinstance(schedule, Schedule)
        assert expand(schedule).recomputes
        for loop in LOOPS:
            _equal(loop, schedule, rank)
        _refused(schedule)
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
@needs_ranks
def test_one_rank(tmp_path: Any) -> None:
    run_ranks(_rank, (1, str(tmp_path)), nprocs=1)


@needs_ranks
@pytest.mark.slow
def test_two_ranks(tmp_path: Any) -> None:
    run_ranks(_rank, (2, str(tmp_path)), nprocs=2)
