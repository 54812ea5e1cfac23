"""Small tensors that forward creates on a GPU that this machine lacks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import remate
from remate_runtime.flat_step import expand


class Constants(nn.Module):
    def __init__(self, make: Any) -> None:
        super().__init__()
        self.layer, self.make = nn.Linear(8, 8), make

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        constant = self.make(y)
        return torch.cat([constant, y.flatten()]).sum() * (2.0 if constant.numel() and constant.item() > 1 else 1.0)


@pytest.mark.quick("one element")
@pytest.mark.parametrize(
    "make",
    [
        lambda y: torch.tensor([], dtype=y.dtype, device=y.device),
        lambda y: torch.tensor([3.0], dtype=y.dtype, device=y.device),
        lambda y: torch.tensor([3], device=y.device).to(y.dtype),
        lambda y: y.new_tensor([3.0]),
    ],
    ids=["no elements", "one element", "converted", "new_tensor"],
)
def test_constants_on_a_gpu_that_is_not_here(make: Any) -> None:
    """As caches of transformers create them. Forward may read their values."""
    x = torch.randn(4, 8)
    there = remate.plan(Constants(make), (x,), budget="100%", device="cuda:h100", progress=None)
    here = remate.plan(Constants(make), (x,), budget="100%", cost="cpu", progress=None)
    assert there.model.device == "cuda"

    def factors(schedule: Any) -> list[Any]:
        return [op.args[1] for op in expand(schedule).graph.operations if op.op == "aten.mul.Tensor"]

    assert factors(there) == factors(here)


@pytest.mark.slow
def test_a_decoder_with_its_cache_is_planned_for_a_gpu() -> None:
    """transformers' default, `use_cache=True`, makes empty tensors on the device."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=32)
    model, tokens = transformers.GPT2LMHeadModel(config).train(), torch.randint(64, (2, 16))
    with pytest.warns(UserWarning, match="past_key_values"):
        schedule = remate.plan(
            model,
            (),
            {"input_ids": tokens, "labels": tokens},
            budget="95%",
            device="cuda:h100",
            effort="quick",
            progress=None,
        )
    assert schedule.peak_bytes <= 0.95 * schedule.baseline_peak_bytes


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(32, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.projection(x).chunk(3, -1))
        return nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.1).square().mean()


@pytest.mark.slow
def test_fit_ends_where_torch_chooses_other_kernels() -> None:
    """The end of the range is none of the caller's: fused attention in float32 does not take any number of heads."""
    found = remate.fit(
        Attention(), (torch.randn(4, 8, 32),), device_memory="80GiB", optimizer="sgd", device="cuda:h100", progress=None
    )
    assert 8_000 <= found.largest.size < 1 << 20
    assert found.schedule.model.dims["b"].max == found.largest.size
