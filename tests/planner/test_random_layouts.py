"""Random operators on tensors of all layouts draw eager's numbers, and leave the generator where eager does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from remate.capture.capture_step import CaptureError, capture
from remate_runtime import apply

from ..runtime.small import seeded
from ..runtime.stepping import everything, schedule_of

LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda h: h.transpose(0, 1),
    "a slice of a transposed one": lambda h: h.transpose(1, 2)[:, 3:],
    "channels last": lambda h: h.view(2, 3, 4, 8).to(memory_format=torch.channels_last),
    "expanded": lambda h: h[:, :1].expand(-1, 5, -1),
    "contiguous": lambda h: h,
    "every other": lambda h: h[:, ::2],
    "reversed axes": lambda h: h.permute(2, 1, 0),
    "every other of a transposed one": lambda h: h.transpose(0, 1)[::2],
    "some channels": lambda h: h.view(2, 3, 4, 8).to(memory_format=torch.channels_last)[:, :2],
    "expanded before": lambda h: h[0].expand(4, -1, -1),
    "an axis of one": lambda h: h[:, :1].transpose(0, 2),
}
TORCH: Any = torch


def fresh(draw: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Draw into a new tensor with the argument's memory layout."""

    def operator(h: torch.Tensor) -> torch.Tensor:
        noise = torch.empty_like(h)
        draw(noise)
        return h * noise

    return operator


def part(draw: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Draws into every other element of a tensor."""

    def operator(h: torch.Tensor) -> torch.Tensor:
        whole = torch.zeros([2 * size for size in h.shape], dtype=h.dtype)
        chosen = whole[tuple(slice(None, None, 2) for _ in h.shape)]
        draw(chosen)
        return h * chosen

    return operator


def probabilities(h: torch.Tensor) -> torch.Tensor:
    return h.detach().float().sigmoid()


OPERATORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout .2": lambda h: F.dropout(h, 0.2),
    "dropout .3": lambda h: F.dropout(h, 0.3),
    "dropout 1": lambda h: F.dropout(h, 1.0),
    "dropout_": lambda h: F.dropout(h * 1.0, 0.2, True, True),
    "alpha_dropout": lambda h: F.alpha_dropout(h, 0.1, True),
    "alpha_dropout_": lambda h: F.alpha_dropout(h * 1.0, 0.1, True, True),
    "feature_dropout": lambda h: torch.feature_dropout(h, 0.3, True),
    "feature_dropout_": lambda h: torch.feature_dropout_(h * 1.0, 0.3, True),
    "feature_alpha_dropout": lambda h: F.feature_alpha_dropout(h, 0.1, True),
    "feature_alpha_dropout_": lambda h: F.feature_alpha_dropout(h * 1.0, 0.1, True, True),
    "native_dropout": lambda h: torch.native_dropout(h, 0.3, True)[0],
    "bernoulli": lambda h: h * torch.bernoulli(probabilities(h)),
    "bernoulli.p": lambda h: h * torch.bernoulli(h.detach(), 0.3),
    "bernoulli_": fresh(lambda v: v.bernoulli_(0.7)),
    "bernoulli_ a part": part(lambda v: v.bernoulli_(0.7)),
    "bernoulli_.Tensor": fresh(lambda v: v.bernoulli_(torch.full_like(v, 0.3))),
    "bernoulli_.Tensor a part": part(lambda v: v.bernoulli_(torch.full_like(v, 0.3))),
    "normal_": fresh(lambda v: v.normal_(0, 0.1)),
    "uniform_": fresh(lambda v: v.uniform_(0, 2)),
    "uniform_ a part": part(lambda v: v.uniform_(0, 2)),
    "exponential_": fresh(lambda v: v.exponential_(2.0)),
    "exponential_ a part": part(lambda v: v.exponential_(2.0)),
    "geometric_": fresh(lambda v: v.geometric_(0.3)),
    "geometric_ a part": part(lambda v: v.geometric_(0.3)),
    "cauchy_": fresh(lambda v: v.cauchy_()),
    "log_normal_": fresh(lambda v: v.log_normal_()),
    "log_normal_ a part": part(lambda v: v.log_normal_()),
    "random_": fresh(lambda v: v.random_(7)),
    "random_ a part": part(lambda v: v.random_(2, 9)),
    "rand_like": lambda h: h * torch.rand_like(h),
    "randn_like": lambda h: h * torch.randn_like(h),
    "randint_like": lambda h: h * torch.randint_like(h, 1, 5),
    "rand": lambda h: h * torch.rand(h.shape, dtype=h.dtype),
    "randperm": lambda h: h * torch.randperm(h.shape[-1]),
    "normal.Tensor_Tensor": lambda h: h * torch.normal(h.detach(), h.detach().abs()),
    "normal.Tensor_float": lambda h: h * torch.normal(h.detach(), 1.0),
    "normal.float_Tensor": lambda h: h * torch.normal(0.0, h.detach().abs()),
    "rrelu": lambda h: F.rrelu(h, training=True),
    "rrelu_": lambda h: F.rrelu(h * 1.0, training=True, inplace=True),
    "gumbel_softmax": lambda h: F.gumbel_softmax(h, dim=-1),
    "multinomial": lambda h: (
        h * torch.multinomial(probabilities(h).flatten(0, -2), h.shape[-1]).view(h.shape).to(h.dtype)
    ),
    "poisson": lambda h: h * torch.poisson(h.detach().abs()),
    "binomial": lambda h: h * torch.binomial(torch.full_like(h, 5.0).detach(), h.detach().sigmoid()),
    "_standard_gamma": lambda h: h * TORCH._standard_gamma(h.detach().abs() + 0.5),
    "attention": lambda h: F.scaled_dot_product_attention(h, h, h, dropout_p=0.3),
}
NO_HALF = {"binomial", "_standard_gamma", "poisson", "attention"}  # eager has no such kernel, or another path


class Drawing(nn.Module):
    """Each operator on a layout of an activation, one after the other."""

    def __init__(self, layout: str, names: list[str]) -> None:
        super().__init__()
        self.linear, self.layout, self.names = nn.Linear(8, 8), layout, names

    def forward(self, x):
        h = LAYOUTS[self.layout](self.linear(x))
        results = {name: OPERATORS[name](h) for name in self.names}
        return {"loss": torch.stack([y.float().square().mean() for y in results.values()]).sum(), **results}


def step(module: nn.Module, x: torch.Tensor, autocast: bool) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    module.zero_grad()
    with torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext():
        out = module(x)
    out["loss"].backward()
    parameters: dict[str, Any] = dict(module.named_parameters())
    gradients = {name: p.grad.clone() for name, p in parameters.items()}
    return {**{k: v.detach() for k, v in out.items()}, **gradients, "state": torch.get_rng_state()}


def different(layout: str, dtype: torch.dtype, autocast: bool = False) -> list[str]:
    half = dtype in (torch.bfloat16, torch.float16) or autocast
    names = [name for name in OPERATORS if not (half and name in NO_HALF)]
    model = seeded(Drawing(layout, names)).to(dtype)
    x = torch.randn(6, 4, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    with torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext():
        schedule = schedule_of(model, (x,), recomputes=everything)
    theirs, ours = step(model, x, autocast), step(apply(model, schedule), x, autocast)
    return [name for name in theirs if not torch.equal(theirs[name].nan_to_num(), ours[name].nan_to_num())]


@pytest.mark.slow
@pytest.mark.parametrize("layout", list(LAYOUTS)[::2])
def test_numbers_are_those_of_eager(layout):
    assert different(layout, torch.float32) == []


KINDS = {"autocast": (torch.float32, True), "bf16": (torch.bfloat16, False)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_other_types_are_those_of_eager(kind):
    dtype, autocast = KINDS[kind]
    assert different("a slice of a transposed one", dtype, autocast) == []


class Empty(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        h = self.linear(x)
        empty = h[:, :0].transpose(0, 1)
        return h.square().mean() + F.dropout(empty, 0.2).sum() + F.alpha_dropout(empty, 0.2, True).sum()


def test_tensors_without_elements_draw_nothing():
    model, x = seeded(Empty()), torch.randn(6, 4, 8)
    planned = apply(model, schedule_of(model, (x,)))
    for module in (model, planned):
        torch.manual_seed(1)
        module(x).backward()
        assert torch.equal(torch.get_rng_state(), torch.manual_seed(1).get_state())


class Refused(nn.Module):
    def __init__(self, draw: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.draw = nn.Linear(8, 8), draw

    def forward(self, x):
        noise = torch.zeros(6, 4, 16)
        self.draw(noise[..., ::2])
        return (self.linear(x) * noise[..., ::2]).sum()


def test_what_cannot_be_drawn_alike_is_refused():
    x = torch.randn(6, 4, 8)
    with pytest.raises(CaptureError, match="normal_ on a slice whose elements do not lie side by side"):
        capture(Refused(lambda v: v.normal_()), (x,))
    capture(Refused(lambda v: v.uniform_()), (x,))
    capture(Refused(lambda v: v.copy_(torch.randn_like(v))), (x,))
