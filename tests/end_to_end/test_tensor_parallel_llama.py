"""A Llama as torchtitan defines and parallelises it, small: tensor parallel on two ranks, and with FSDP2 on four."""

from __future__ import annotations

import datetime
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import remate
from remate.step_measurement.allocator import peak_bytes
from remate.training.state import state_of
from remate_runtime import Schedule, apply, load
from remate_runtime.operator_calls import overloads
from tests.ranks import run_ranks

WIDTH, HEADS, VOCABULARY, LENGTH = 32, 4, 64, 16
PERMITTED = ("_c10d_functional",)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not dist.is_available(), reason="torch without distributed"),
]


def rotary_table() -> torch.Tensor:
    half = WIDTH // HEADS // 2
    angles = torch.outer(torch.arange(LENGTH).float(), 1e4 ** (-torch.arange(half).float() / half))
    return torch.cat([angles.cos(), angles.sin()], -1)


def rotated(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    cos, sin = table[None, : x.shape[1], None, :].chunk(2, -1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (w(x).view(batch, length, -1, WIDTH // HEADS) for w in (self.wq, self.wk, self.wv))
        q, k = rotated(q, table), rotated(k, table)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(mixed.transpose(1, 2).contiguous().view(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(WIDTH, 4 * WIDTH, bias=False) for _ in range(2))
        self.w2 = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(), FeedForward()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        h = x + self.attention(self.attention_norm(x), table)
        return h + self.feed_forward(self.ffn_norm(h))


class Llama(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.register_buffer("table", rotary_table(), persistent=False)
        self.layers = nn.ModuleDict({str(at): Block() for at in range(layers)})
        self.norm, self.output = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            h = layer(h, self.table)
        return self.output(self.norm(h))


class WithLoss(nn.Module):
    """parallel: the classes are distributed, and whoever calls this is within loss_parallel()."""

    def __init__(self, model: nn.Module, parallel: bool) -> None:
        super().__init__()
        self.model, self.parallel = model, parallel

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss: Any = F.cross_entropy(self.model(tokens).flatten(0, 1), labels.flatten())
        return loss.to_local() if self.parallel else loss


def parallelised(mesh: Any, layers: int = 2, loss_parallel: bool = False) -> Any:
    """torchtitan's plan: sequences cut between the blocks, heads and features within."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    torch.manual_seed(0)
    model = Llama(layers)
    output = {"output_layouts": Shard(-1) if loss_parallel else Replicate(), "use_local_output": not loss_parallel}
    plan = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), **output),
    }
    parallelize_module(model, mesh, plan)
    inputs = {"input_layouts": (Shard(1), None), "desired_input_layouts": (Replicate(), None)}
    for layer in model.layers.values():
        of_block = {
            "attention_norm": SequenceParallel(),
            "attention": PrepareModuleInput(**inputs),
            **{f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")},
            "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
            "ffn_norm": SequenceParallel(),
            "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            **{f"feed_forward.{name}": ColwiseParallel() for name in ("w1", "w3")},
            "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
        }
        parallelize_module(layer, mesh, of_block)
    return model


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(0, VOCABULARY, (2, LENGTH + 1), generator=torch.Generator().manual_seed(seed))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def assert_equal_training(model: Any, planned: Any, step: Any) -> None:
    """Two steps of AdamW: losses, gradients and their placements."""
    optimizers = [torch.optim.AdamW(one.parameters(), 0.01) for one in (model, planned)]
    for _ in range(2):
        losses = [step(one) for one in (model, planned)]
        assert torch.equal(*losses)
        for (name, wanted), found in zip(model.named_parameters(), planned.parameters(), strict=True):
            assert wanted.grad.placements == found.grad.placements, name
            assert torch.equal(wanted.grad.to_local(), found.grad.to_local()), name
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def standing_in(function: Any) -> Any:
    """A collective that only makes its result. Gloo's threads let go of tensors at times of their own, and torch's
    profiler does not see what they free."""

    def run(*args: Any) -> torch.Tensor:
        made = function(*(arg.to("meta") if isinstance(arg, torch.Tensor) else arg for arg in args))
        return torch.zeros(made.shape, dtype=made.dtype)

    return run


def _tensor_parallel(rank: int, folder: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import loss_parallel

    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    args = batch(1)

    def step(model: Any) -> torch.Tensor:
        loss = model(*args)
        loss.backward()
        return loss.detach()

    planned = WithLoss(parallelised(mesh), False)
    schedule = remate.plan(planned, args, budget="75%", cache=False, effort="quick")
    assert schedule.model.coordinate == {"tp": rank}
    scheduled = apply(planned, schedule, namespaces=PERMITTED)
    assert_equal_training(WithLoss(parallelised(mesh), False), scheduled, step)
    with mock.patch.object(overloads, "_waited", standing_in):
        alone = apply(planned, schedule, namespaces=PERMITTED, verify="never")
    planned.zero_grad()
    step(alone)
    planned.zero_grad()
    measured = peak_bytes(lambda: step(alone))
    assert 0.9 * schedule.peak_bytes < measured <= schedule.peak_bytes, (measured, schedule.peak_bytes)
    outcomes: list[Any] = []
    for _ in range(2):  # one rank plans for both, and the second time the file of that rank serves both
        options: dict[str, Any] = {"cost": "cpu", "timeout": 100, "progress": None}
        automatic = remate.auto(WithLoss(parallelised(mesh, 1), False), "75%", file=f"{folder}/auto.json", **options)
        assert_equal_training(WithLoss(parallelised(mesh, 1), False), automatic, step)
        state = state_of(automatic)
        assert state is not None
        (own,) = state.outcome.schedules
        assert own.model.coordinate == {"tp": rank}
        assert own.solve.time > own.solve.baseline_time
        dist.all_gather_object(planners := [None, None], state.outcome.planned)
        outcomes.append(planners)
    assert [sum(planners) for planners in outcomes] == [1, 0]
    with loss_parallel():
        planned = WithLoss(parallelised(mesh, 1, True), True)
        schedule = remate.plan(planned, args, budget="90%", cost="cpu", effort="quick")
        scheduled = apply(planned, schedule, namespaces=PERMITTED)
        assert_equal_training(WithLoss(parallelised(mesh, 1, True), True), scheduled, step)


def _two_dimensions(rank: int, folder: str) -> None:
    """FSDP2 over one file for the blocks of all ranks, and over a file of the whole model for each rank of `tp`."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    tokens, labels = batch(1 + mesh["dp"].get_local_rank())
    file, whole = Path(folder) / "block.json", Path(folder) / f"{mesh['tp'].get_local_rank()}.json"

    def sharded(model: Any) -> Any:
        layers = model.layers if hasattr(model, "layers") else model.model.layers
        for name in layers:
            fully_shard(layers[name], mesh=mesh["dp"])
        return fully_shard(model, mesh=mesh["dp"])

    def step(model: Any) -> torch.Tensor:
        loss = F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
        loss.backward()
        return loss.detach()

    planned = parallelised(mesh["tp"])
    if rank == 0:
        hidden = torch.zeros(2, LENGTH // 2, WIDTH, requires_grad=True)
        schedule = remate.plan(planned.layers["0"], (hidden, planned.table), budget="85%", cost="cpu", effort="quick")
        assert schedule.model.coordinate == {}
        assert schedule.peak_bytes < schedule.baseline_peak_bytes
        schedule.save(str(file))
    dist.barrier()
    for name in planned.layers:
        planned.layers[name] = apply(planned.layers[name], file, namespaces=PERMITTED)
    assert_equal_training(sharded(parallelised(mesh["tp"])), sharded(planned), step)

    def step_of_all(model: Any) -> torch.Tensor:
        loss = model(tokens, labels)
        loss.backward()
        return loss.detach()

    models = [WithLoss(parallelised(mesh["tp"], 1), False) for _ in range(2)]
    if mesh["dp"].get_local_rank() == 0:
        options: dict[str, Any] = {"effort": "quick", "progress": None, "fsdp": "model.layers.*", "shards": 2}
        schedule = remate.plan(models[1], (tokens, labels), budget="80%", cost="cpu", **options)
        assert isinstance(schedule, Schedule)
        assert schedule.solve.time > schedule.solve.baseline_time
        schedule.save(str(whole))
    dist.barrier()
    scheduled = sharded(apply(models[1], whole, namespaces=PERMITTED))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "the file counts memory for")
        assert_equal_training(sharded(models[0]), scheduled, step_of_all)
    measured = min(peak_bytes(lambda: step_of_all(scheduled)) for _ in range(3))
    predicted = load(whole).solve.peak
    assert 0.9 * predicted < measured <= 1.1 * predicted, (measured, predicted)


def _rank(rank: int, world: int, folder: str) -> None:
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world, timeout=limit)
    try:
        (_tensor_parallel if world == 2 else _two_dimensions)(rank, folder)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("world", [2, 4])
def test_llama(world: int, tmp_path: Path) -> None:
    run_ranks(_rank, (world, str(tmp_path)), nprocs=world)
