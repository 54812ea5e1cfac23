"""Budgets of a rank of FSDP2: measured peaks are those of plans, and other shardings say whether the budget holds."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn

import remate
from remate.step_measurement.allocator import peak_bytes
from remate_runtime import EngineError, apply
from remate_runtime.support.quantities import size
from tests.ranks import run_ranks

from .small import data, seeded
from .test_sharded import fully_sharded, needs_ranks

# The estimated costs count one-element tensors for each operation with a number among its arguments. The one at the peak
# of a split head, _log_softmax_backward_data, has a number (its axis), and makes none.
_SCALARS = 16


class Deep(nn.Module):
    """Blocks of 0.4 MiB, so that gradients are delivered, and reduced, during backward."""

    def __init__(self, words: int = 3) -> None:
        super().__init__()
        layers = [nn.Sequential(nn.Linear(128, 400), nn.GELU(), nn.Linear(400, 128)) for _ in range(4)]
        self.blocks, self.head = nn.Sequential(*layers), nn.Linear(128, words)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.head(self.blocks(x))
        return y.square().mean() if y.shape[1] == 3 else nn.functional.cross_entropy(y, y.new_zeros(len(y)).long())


def _planned(rank: int, world: int) -> None:
    """The peak of a rank is the one of the plan. gloo may free buffers late, on a thread of its own, so that the least
    of several measured peaks counts.
    """
    x = data(300, 128)
    for words, budget, split in ((3, "100%", None), (3, "88%", None), (4096, "50%", "head")):
        schedule = remate.plan(
            seeded(Deep(words)),
            (x,),
            budget=budget,
            cost="cpu",
            fsdp="blocks.*",
            shards=world,
            effort="quick",
            split=split,
            progress=None,
        )
        assert ("split" in schedule.requires) == bool(split)
        model, wanted = seeded(Deep(words)), fully_sharded(seeded(Deep(words)), True)
        with warnings.catch_warnings(action="error"):
            model = fully_sharded(apply(model, schedule), True)
            model(x).backward()
        wanted(x).backward()
        for planned, parameter in zip(model.parameters(), wanted.parameters(), strict=True):
            ours, own = planned.grad.to_local(), parameter.grad.to_local()
            assert torch.equal(ours, own) or (split and torch.allclose(ours, own, rtol=1e-4, atol=1e-6))
        peaks = []
        for _ in range(8):  # all ranks measure equally often
            model.zero_grad()
            peaks.append(peak_bytes(lambda model=model: model(x).backward()))
        assert min(peaks) - schedule.peak_bytes == (-_SCALARS if split else 0), (budget, peaks, schedule.peak_bytes)
        assert schedule.peak_bytes < schedule.baseline_peak_bytes or budget == "100%"


def _planned_otherwise(rank: int, world: int) -> None:
    """A model that is sharded otherwise than its file says, as after a restart with fewer ranks, is right, and says
    whether the budget holds."""
    x, options = data(300, 128), {"cost": "cpu", "fsdp": "blocks.*", "progress": None, "effort": "quick"}
    schedule = remate.plan(seeded(Deep()), (x,), budget="100%", shards=8, **options)
    here = schedule if world == 1 else remate.plan(seeded(Deep()), (x,), budget="100%", shards=world, **options)
    kept, peak = r"\(kept after forward: the model\)", f"the peak is {size(here.peak_bytes)}"
    for shard, said in (
        (lambda m: m, "fully_shard was not called on the parts of this model.*the budget may not hold; plan again"),
        (lambda m: fully_sharded(m, True), rf"over {world} ranks {kept}: .*{peak}, within the budget of [\d.]+ MiB$"),
        (
            lambda m: fully_sharded(m, True, reshard_after_forward=False),
            r"kept after forward: the model, blocks.\[0-3\]\): .*, over the budget of [\d.]+ MiB; plan again",
        ),
    ):
        model = shard(apply(seeded(Deep()), schedule))
        with pytest.warns(UserWarning, match=said):
            model(x).backward()
    with pytest.raises(EngineError, match="communicates with other ranks"):
        apply(seeded(Deep()), schedule, engine="compiled")


def _rank(rank: int, world: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    try:
        _planned_otherwise(rank, world)
        if world > 1:
            _planned(rank, world)
    finally:
        dist.destroy_process_group()


@needs_ranks
def test_one_rank(tmp_path):
    run_ranks(_rank, (1, str(tmp_path)), nprocs=1)


@needs_ranks
@pytest.mark.slow
def test_two_ranks(tmp_path):
    run_ranks(_rank, (2, str(tmp_path)), nprocs=2)
