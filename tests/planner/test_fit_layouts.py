"""Layouts of ranks: figures are those of the plans of their ranks, and what is not possible has its reason."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import remate
from remate.api.fit_layouts import LayoutFits
from remate.api.layouts import RankLayout, layout_named, layouts_of
from remate.budget import BudgetError
from remate.cli.fit_layouts import summary
from remate.errors import CaptureError
from remate.profile.communication import between, gathering_ns
from remate.profile.devices import DEVICES
from remate_runtime import Schedule
from remate_runtime.torch_private.distributed import pretended_ranks

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
OPTIONS: dict[str, Any] = {"effort": "quick", "progress": None}


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (-1, 16)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def build(layout: RankLayout, dtype: torch.dtype = torch.float32) -> Any:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    if layout.pp > 2:
        raise ValueError("there are two layers")
    with torch.device("meta"):
        parts = [nn.Sequential(*(Layer() for _ in range(2 // layout.pp))).to(dtype) for _ in range(layout.pp)]
        x = torch.zeros(layout.microbatch, 64, 64, dtype=dtype)
    for layer in (layer for part in parts for layer in part if layout.tp > 1):
        parallelize_module(layer, layout.mesh["tp"], {"qkv": ColwiseParallel(), "out": RowwiseParallel()})
    return (parts[0], (x,)) if layout.pp == 1 else ([(part, (x,)) for part in parts], F.mse_loss, x)


def fitted(*layouts: str, memory: str = "1GiB", batch: int = 8, **options: Any) -> LayoutFits:
    given = {"optimizer": "adamw", "microbatch": 2, "cost": "cpu", **OPTIONS, **options}
    result = remate.fit_layouts(build, layouts, batch, device_memory=memory, **given)
    assert not dist.is_initialized()
    return result


@pytest.mark.slow
def test_one_rank_is_a_plan_calls_are_added_up_and_memory_leads_to_recomputation() -> None:
    model, args = build(RankLayout(microbatch=2))
    schedule = remate.plan(model, args, None, "100%", "cpu", gradients="accumulated", **OPTIONS)
    assert isinstance(schedule, Schedule)
    (kept,) = fitted("dp=1").layouts
    parameters = sum(parameter.numel() * 4 for parameter in model.parameters())
    assert kept.step is not None
    assert kept.layout.microbatches == 4
    assert kept.step.time == 4 * schedule.solve.baseline_time
    assert kept.step.memory == (schedule.solve.baseline_peak + 4 * parameters + args[0].nbytes,)
    (less,) = fitted("dp=1", memory=str(kept.step.memory[0] - 50_000)).layouts
    assert less.step is not None
    assert less.step.memory[0] <= kept.step.memory[0] - 50_000
    assert less.step.time == kept.step.time + less.step.recomputation > kept.step.time


def test_a_pipeline_is_its_plan() -> None:
    stages, loss, target = build(RankLayout(pp=2, microbatch=2))
    plan = remate.plan_pipeline(stages, "1F1B", 4, "100%", "cpu", loss=(loss, target), **OPTIONS)
    (one,) = fitted("pp=2").layouts
    assert one.step is not None
    assert one.step.time - one.step.communication == plan.time
    parameters = sum(parameter.numel() * 4 for parameter in stages[1][0].parameters())
    assert one.step.memory[1] == plan.ranks[1].peak + 3 * parameters


def test_layouts_for_a_gpu_that_is_absent() -> None:
    """Tensor parallelism with fused attention, FSDP2 over it, and what is not possible."""
    given: dict[str, Any] = {"cost": None, "device": "cuda:h100", "cuda_context": 0}
    result = fitted("dp=2,tp=2", "dp=64", "pp=4", "tp=16", "dp=3", fsdp="*", batch=16, **given)
    by_name = {str(one.layout): one for one in result.layouts}
    both = by_name["dp=2,tp=2,pp=1"]
    assert result.fastest == both
    assert both.step is not None
    whole = sum(parameter.numel() * 4 for parameter in build(RankLayout())[0].parameters())
    assert 3 * whole / 4 < both.step.memory[0] < 1 << 30
    assert by_name["dp=1,tp=1,pp=4"].refused == "there are two layers"
    assert "more than the 8 GPUs" in by_name["dp=1,tp=16,pp=1"].refused
    assert "16 samples are no multiple of 3 ranks" in by_name["dp=3,tp=1,pp=1"].refused
    assert "16 samples are no multiple of 64 ranks" in by_name["dp=64,tp=1,pp=1"].refused
    text = summary(result)
    assert "dp=2,tp=2,pp=1 is the fastest layout that fits 1.00 GiB" in text
    assert "there are two layers" in text


def test_a_mesh_of_another_device_and_a_real_process_group_are_refused() -> None:
    from torch.distributed.device_mesh import init_device_mesh

    hook = sys.excepthook
    with pretended_ranks(2):
        model, args = build(RankLayout(tp=2, mesh=init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))))
        with pytest.raises(CaptureError, match=r"a mesh of cpu, and planned for cuda"):
            remate.plan(model, args, None, "90%", device="cuda:h100", **OPTIONS)
        with pytest.raises(CaptureError, match="this process has a process group"):
            fitted("dp=1")
        assert sys.excepthook is hook  # torch's would write the rank into tracebacks, also after the group has ended


def test_layouts_and_links() -> None:
    assert layout_named("dp=4, pp=2") == RankLayout(4, 1, 2)
    for text in ("dp=0", "dp", "xp=2", "dp=2,dp=2"):
        with pytest.raises(BudgetError, match="is not a layout of ranks"):
            layout_named(text)
    assert all(layout.ranks == 16 and layout.tp <= 4 for layout in layouts_of(16, 4))
    assert len(layouts_of(16, 4)) == 5 + 4 + 3
    h100 = DEVICES["h100"]
    assert between(h100, 8, 1, 8, 50e9) == h100.link
    assert between(h100, 16, 8, 8, 50e9).bandwidth == 50e9
    assert between(h100, 16, 2, 8, 50e9).bandwidth == 200e9
    assert gathering_ns(8, 1, h100.link) == 0
    assert gathering_ns(360_000, 2, h100.link) == h100.link.latency_ns + 500
