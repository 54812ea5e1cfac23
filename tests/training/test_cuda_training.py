"""Training scripts on a CUDA device: `remate.auto` and `remate train` compute eager's numbers to the bit."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import remate
from remate_runtime import apply
from tests.models import ZOO

from ..runtime.small import data, seeded

pytestmark = pytest.mark.cuda
VOCABULARY, LENGTH = 256, 64


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1)
        x = x + F.dropout(self.out(mixed.transpose(1, 2).flatten(2)), 0.1)
        return x + self.mlp(x)


class Gpt(nn.Module):
    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, width), nn.Linear(width, VOCABULARY)
        self.blocks = nn.ModuleList(Block(width) for _ in range(4))

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return logits, F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def gpt() -> Any:
    return seeded(Gpt()).cuda().train()


def tokens(seed: int) -> torch.Tensor:
    return torch.randint(VOCABULARY, (8, LENGTH), generator=torch.Generator().manual_seed(seed)).cuda()


def trained(model: Any, dtype: torch.dtype | None = None, scaled: bool = False) -> list[Any]:
    """Losses, weights and the state of the generator after four steps."""
    torch.manual_seed(3)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    scaler, losses = torch.amp.GradScaler("cuda", enabled=scaled), []
    for step in range(4):
        with torch.autocast("cuda", dtype or torch.bfloat16, enabled=dtype is not None):
            _, loss = model(tokens(step))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    return [*losses, *(p.detach() for p in model.parameters()), torch.cuda.get_rng_state()]


def assert_equal(actual: list[Any], wanted: list[Any]) -> None:
    assert len(actual) == len(wanted)
    assert all(torch.equal(*pair) for pair in zip(actual, wanted, strict=True))


def automatic(model: Any, **options: Any) -> Any:
    return remate.auto(model, budget="70%", progress=None, effort="quick", **options)


def scheduled_calls(model: Any) -> int:
    from remate.training import state_of

    state = state_of(model)
    assert state is not None
    assert state._scheduled is not None
    return state._scheduled._remate_step.calls


@pytest.mark.parametrize(
    ("dtype", "scaled"),
    [(None, False), (torch.bfloat16, False), (torch.float16, True)],
    ids=["f32", "bf16 autocast", "f16 autocast and a scaler"],
)
def test_auto_trains_as_eager(dtype: torch.dtype | None, scaled: bool) -> None:
    model = automatic(gpt())
    assert_equal(trained(model, dtype, scaled), trained(gpt(), dtype, scaled))
    assert scheduled_calls(model) == 4


def test_auto_under_ddp(tmp_path: Path) -> None:
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrapped: Callable[[Any], Any] = nn.parallel.DistributedDataParallel
        assert_equal(trained(automatic(wrapped(gpt()))), trained(wrapped(gpt())))
    finally:
        dist.destroy_process_group()


def test_auto_in_channels_last() -> None:
    built: Any = ZOO["resnet"].build("cuda")
    model, args, kwargs = built
    model = model.to(memory_format=torch.channels_last)
    x = args[0].to(memory_format=torch.channels_last)

    def losses(module: Any) -> list[Any]:
        result = []
        for _ in range(3):
            with torch.autocast("cuda", torch.bfloat16):
                loss = module(x, *args[1:], **kwargs)
            loss = loss if loss.ndim == 0 else loss.float().square().mean()
            module.zero_grad()
            loss.backward()
            result += [loss.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)]
        return result

    wanted = losses(copy.deepcopy(model))
    again = losses(copy.deepcopy(model))
    actual = losses(remate.auto(copy.deepcopy(model), budget="min", progress=None, effort="quick"))
    noise = [float((a - b).abs().max()) for a, b in zip(again, wanted, strict=True)]  # of cuDNN, from run to run
    for left, right, allowed in zip(actual, wanted, noise, strict=True):
        assert float((left - right).abs().max()) <= max(4 * allowed, 1e-2 * float(right.abs().max()))


def test_a_step_that_the_user_records_in_a_cuda_graph() -> None:
    model, x = (
        seeded(nn.Sequential(*[p for _ in range(4) for p in (nn.Linear(64, 64), nn.GELU())])).cuda(),
        data(512, 64).cuda(),
    )
    eager = copy.deepcopy(model)
    planned = apply(model, remate.plan(model, (x,), budget="80%", progress=None))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            planned.zero_grad(set_to_none=True)
            planned(x).square().mean().backward()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    planned.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        planned(x).square().mean().backward()
    x.copy_(data(512, 64, seed=9))
    graph.replay()
    eager(x).square().mean().backward()
    for ours, theirs in zip(planned.parameters(), eager.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


SCRIPT = """
import sys, torch
sys.path.insert(0, ROOT)
from tests.training.test_cuda_training import gpt, trained
print([float(value) for value in trained(gpt(), torch.bfloat16)[:4]])
"""


def test_remate_train_runs_a_script(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    (tmp_path / "script.py").write_text(SCRIPT.replace("ROOT", repr(str(root))), encoding="utf-8")
    plain = [sys.executable, "script.py"]
    command = [sys.executable, "-m", "remate", "train", "--budget", "70%", "--effort", "quick", "script.py"]
    wanted, actual = (
        subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False) for line in (plain, command)
    )
    assert actual.returncode == wanted.returncode == 0, actual.stderr + wanted.stderr
    assert actual.stdout == wanted.stdout
    assert "2 steps with a schedule" in actual.stderr
