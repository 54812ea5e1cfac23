"""The small Llama in stages of a pipeline, each sharded by FSDP2, on four ranks: losses and gradients are those of the
same pipeline without schedules, and all ranks run the same collectives in the same order."""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import remate
from remate.pipelines.order import pipeline_order
from remate.step_measurement.allocator import peak_bytes
from remate_runtime import apply
from tests.ranks import run_ranks

from .test_tensor_parallel_llama import LENGTH, VOCABULARY, WIDTH, Block, batch, rotary_table

MICROBATCHES = 4
STAGES = {"1F1B": 2, "ZBVZeroBubble": 4}
# What FSDP2 calls, under the names of all versions of torch.
COLLECTIVES = ("all_gather_into_tensor", "all_gather_single", "reduce_scatter_tensor", "reduce_scatter_single")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not dist.is_available(), reason="torch without distributed"),
]


class Stage(nn.Module):
    """As torchtitan divides a model: what a stage does not have is None."""

    def __init__(self, at: int, count: int) -> None:
        super().__init__()
        torch.manual_seed(at)
        self.register_buffer("table", rotary_table(), persistent=False)
        self.tok_embeddings = None if at else nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleDict({str(at): Block()})
        self.norm = nn.RMSNorm(WIDTH) if at == count - 1 else None
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False) if at == count - 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if self.tok_embeddings is None else self.tok_embeddings(x)
        for layer in self.layers.values():
            x = layer(x, self.table)
        x = x if self.norm is None else self.norm(x)
        return x if self.output is None else self.output(x)


def loss_fn(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def sharded(stage: Any, mesh: Any) -> Any:
    """As torchtitan does in pipelines: parameters stay gathered from microbatch to microbatch."""
    from torch.distributed.fsdp import fully_shard

    for layer in stage.layers.values():
        fully_shard(layer, mesh=mesh, reshard_after_forward=False)
    return fully_shard(stage, mesh=mesh, reshard_after_forward=False)


class Run:
    """A pipeline of sharded stages on this rank. Records the sizes of FSDP2's collectives."""

    def __init__(self, name: str, stages: dict[int, Any], mesh: Any) -> None:
        from torch.distributed.pipelining import PipelineStage
        from torch.distributed.pipelining.schedules import get_schedule_class

        count, self.group = STAGES[name], mesh["dp"].get_group()
        self.stages, self.is_last = stages, count - 1 in stages
        parts = [
            PipelineStage(stage, at, count, torch.device("cpu"), group=mesh["pp"].get_group())
            for at, stage in stages.items()
        ]
        make: Any = get_schedule_class(name)
        self.schedule = make(parts[0] if name == "1F1B" else parts, MICROBATCHES, loss_fn=loss_fn)
        data = [batch(10 * mesh["dp"].get_local_rank() + at) for at in range(MICROBATCHES)]
        self.tokens, self.labels = (torch.cat(parts) for parts in zip(*data, strict=True))

    def step(self, losses: list[torch.Tensor] | None = None) -> None:
        for stage in self.stages.values():
            stage.zero_grad()
        last = {"target": self.labels, "losses": [] if losses is None else losses} if self.is_last else {}
        self.schedule.step(*([self.tokens] if 0 in self.stages else []), **last)

    def results(self) -> list[torch.Tensor]:
        """Losses and gradients of two steps."""
        found: list[torch.Tensor] = []
        for _ in range(2):
            losses: list[torch.Tensor] = []
            self.step(losses)
            found += [loss.detach().clone() for loss in losses]
            named: list[Any] = [p for stage in self.stages.values() for p in stage.parameters()]
            found += [parameter.grad.to_local().clone() for parameter in named]
        return found

    def collectives(self) -> list[tuple[str, int]]:
        """FSDP2's collectives of a step, in order."""
        seen: list[tuple[str, int]] = []

        def noting(name: str) -> Any:
            original: Callable[..., Any] = getattr(dist, name)

            def run(*args: Any, **kwargs: Any) -> Any:
                sizes = [tensor.numel() for tensor in (*args, *kwargs.values()) if isinstance(tensor, torch.Tensor)]
                seen.append((name, max(sizes)))
                return original(*args, **kwargs)

            return mock.patch.object(dist, name, run)

        with contextlib.ExitStack() as patches:
            for name in COLLECTIVES:
                if hasattr(dist, name):
                    patches.enter_context(noting(name))
            self.step()
        return seen


def _trained(name: str, mesh: Any, folder: Path) -> None:
    count, rank = STAGES[name], dist.get_rank()
    if rank == 0:
        tokens, labels = batch(0)
        args = [tokens if at == 0 else torch.zeros(2, LENGTH, WIDTH) for at in range(count)]
        built = [(Stage(at, count), (args[at],)) for at in range(count)]
        options: dict[str, Any] = {"effort": "quick", "fsdp": "layers.*", "shards": 2, "progress": None}
        plan = remate.plan_pipeline(built, name, MICROBATCHES, "85%", "cpu", ranks=2, loss=(loss_fn, labels), **options)
        assert any(schedule.solve.time > schedule.solve.baseline_time for schedule in plan)
        plan.save(folder / name)
        peaks = [[rank.peak, rank.buffers] for rank in plan.ranks]
        Path(folder, f"{name}.json").write_text(json.dumps(peaks))
    dist.barrier()
    mine = pipeline_order(name, count, MICROBATCHES, 2).stages_of(mesh["pp"].get_local_rank())
    eager = Run(name, {at: sharded(Stage(at, count), mesh["dp"]) for at in mine}, mesh)
    files = {at: folder / name / f"stage{at}.json" for at in mine}
    ours = Run(name, {at: sharded(apply(Stage(at, count), files[at]), mesh["dp"]) for at in mine}, mesh)
    for wanted, found in zip(eager.results(), ours.results(), strict=True):
        assert torch.equal(wanted, found)
    collectives = ours.collectives()
    assert len({name for name, _ in collectives}) == 2
    dist.all_gather_object(everyone := [None, None], collectives, group=ours.group)
    assert everyone == [collectives, collectives]
    measured = min(peak_bytes(ours.step) for _ in range(3))  # gloo's threads may keep tensors for a while
    Path(folder, f"{name}-{rank}.json").write_text(json.dumps(measured))


def _rank(rank: int, folder: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=4, timeout=limit)
    try:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
        for name in STAGES:
            _trained(name, mesh, Path(folder))
    finally:
        dist.destroy_process_group()


def test_stages_that_fsdp2_shards(tmp_path: Path) -> None:
    run_ranks(_rank, (str(tmp_path),), nprocs=4)
    for name in STAGES:
        planned = json.loads((tmp_path / f"{name}.json").read_text())
        for rank in range(4):
            peak, buffers = planned[rank // 2]
            measured = buffers + json.loads((tmp_path / f"{name}-{rank}.json").read_text())
            assert 0.98 * peak <= measured <= 1.02 * peak
