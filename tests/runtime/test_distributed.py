"""DistributedDataParallel around a planned module: gradients reach it through ordinary autograd."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from remate_runtime import apply
from tests.ranks import run_ranks

from .compiled.subjects import assert_close
from .small import Normed, data, seeded
from .stepping import schedule_of


def _rank(rank: int, world: int, folder: str, engine: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    try:
        x = data(4, 3, 6, 6, seed=rank + 1)
        model = seeded(Normed())
        planned = apply(copy.deepcopy(model), schedule_of(model, (x,)), engine=engine)
        actual, wanted = DistributedDataParallel(planned), DistributedDataParallel(model)
        for _ in range(2):
            for module in (actual, wanted):
                module(x).pow(2).mean().backward()
        with actual.no_sync():
            actual(x).pow(2).mean().backward()
        with wanted.no_sync():
            wanted(x).pow(2).mean().backward()
        gradients = [{f"gradient {n}": p.grad for n, p in m.named_parameters()} for m in (actual, wanted)]
        assert_close(gradients[0], gradients[1], tolerance=0.0 if engine == "eager" else 1e-5)
        assert actual.state_dict().keys() == wanted.state_dict().keys()
    finally:
        dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
def test_gradients_are_those_of_the_model_under_ddp(tmp_path):
    run_ranks(_rank, (1, str(tmp_path), "eager"), nprocs=1)


@pytest.mark.slow
@pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_two_ranks(tmp_path, engine):
    torch.manual_seed(0)
    run_ranks(_rank, (2, str(tmp_path), engine), nprocs=2)
