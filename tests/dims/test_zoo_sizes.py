"""One file for each of the usual architectures: at many sizes gradients are eager's to the last bit; the peak is what is predicted
with workspaces measured at that size, and the file's, whose workspaces are estimated upwards, is no less."""

from __future__ import annotations

import copy
import importlib
import itertools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

import remate
import remate_runtime
from remate.measure.allocator import peak_bytes
from remate.profile.costing import MEASURED, costed
from remate_runtime.format import Dimension
from remate_runtime.link import fitted, link, simulate
from remate_runtime.live import clear_gradients, training_step
from remate_runtime.step import expand

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
_SIZES = 24  # of each file
Call = tuple[tuple[Any, ...], dict[str, Any]]


class Case(msgspec.Struct, frozen=True):
    """make: the model. call: of it at sizes. planned: sizes of the example. at: further sizes. dims: for `plan`."""

    make: Callable[[], nn.Module]
    call: Callable[..., Call]
    dims: dict[str, Any]
    planned: tuple[int, ...]
    at: tuple[tuple[int, ...], ...]
    names: tuple[str, ...] = ("b", "t")
    budget: str = "100%"


def tokens(*shape: int, most: int = 64) -> torch.Tensor:
    return torch.randint(most, shape, generator=torch.Generator().manual_seed(sum(shape)))


def gpt2() -> nn.Module:
    small = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 64, "n_positions": 64, "use_cache": False}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(bos_token_id=0, eos_token_id=0, **small))
    model.loss_type = "ForCausalLM"
    return model


_SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}


def bert() -> nn.Module:
    return transformers.BertForMaskedLM(transformers.BertConfig(max_position_embeddings=64, **_SMALL))


def llama() -> nn.Module:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(num_key_value_heads=2, max_position_embeddings=64, use_cache=False, **_SMALL)
    )


def t5() -> nn.Module:
    small = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4}
    config = transformers.T5Config(use_cache=False, decoder_start_token_id=0, **small)
    return transformers.T5ForConditionalGeneration(config)


def vit() -> nn.Module:
    small = {key: value for key, value in _SMALL.items() if key != "vocab_size"}
    return transformers.ViTForImageClassification(transformers.ViTConfig(image_size=16, patch_size=4, **small))


def example(name: str) -> nn.Module:
    module = importlib.import_module(f"examples.{name}")
    kinds = {"unet": lambda: module.UNet(widths=(8, 16, 24)), "resnet": lambda: module.ResNet(widths=(8, 16), depth=1)}
    return Scored(kinds[name]())


class Scored(nn.Module):
    """A network and its loss, so that nothing around the step takes memory."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.net(images).pow(2).mean()


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.across, self.within, self.drop = nn.Linear(16, 16), nn.Linear(12, 12), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.drop(self.across(x.transpose(1, 2)).tanh().transpose(1, 2))
        return (x + self.drop(self.within(x).relu())).pow(2).mean()


def masked(b: int, t: int) -> Call:
    mask = torch.ones(b, t, dtype=torch.int64)
    mask[:, -1] = 0
    return (), {"input_ids": tokens(b, t), "attention_mask": mask, "labels": tokens(b, t)}


TEXT: dict[str, Any] = {name: {0: "b", 1: "t"} for name in ("input_ids", "labels")}
MASKED = TEXT | {"attention_mask": {0: "b", 1: "t"}}
LENGTHS = ((2, 2), (2, 32), (4, 2), (4, 4), (3, 7), (2, 31), (3, 16), (4, 17), (3, 29))
CASES = {
    "gpt2": Case(
        gpt2,
        lambda b, t: ((), {"input_ids": tokens(b, t), "labels": tokens(b, t)}),
        TEXT,
        (4, 32),
        LENGTHS,
        budget="90%",
    ),
    "bert": Case(bert, masked, MASKED, (4, 32), LENGTHS),
    "llama": Case(llama, masked, MASKED, (4, 32), LENGTHS),
    "t5": Case(
        t5,
        lambda b, t, s: ((), {"input_ids": tokens(b, t), "labels": tokens(b, s)}),
        {"input_ids": {0: "b", 1: "t"}, "labels": {0: "b", 1: "s"}},
        (4, 24, 16),
        ((2, 2, 2), (4, 2, 16), (3, 24, 5), (2, 7, 16), (3, 11, 11)),
        ("b", "t", "s"),
    ),
    "vit": Case(
        vit,
        lambda b: ((), {"pixel_values": torch.randn(b, 3, 16, 16), "labels": tokens(b, most=2)}),
        {"pixel_values": {0: "b"}, "labels": {0: "b"}},
        (8,),
        ((2,), (3,), (4,), (7,)),
        ("b",),
    ),
    "mixer": Case(Mixer, lambda b: ((torch.randn(b, 16, 12),), {}), {"x": {0: "b"}}, (8,), ((2,), (3,), (7,)), ("b",)),
    "unet": Case(
        lambda: example("unet"),
        lambda b, h, w: ((torch.randn(b, 3, h, w),), {}),
        {"images": {0: "b", 2: "h=8..48/8", 3: "w=8..48/8"}},
        (4, 32, 24),
        ((2, 8, 8), (4, 48, 48), (3, 8, 40), (2, 24, 16)),
        ("b", "h", "w"),
    ),
    "resnet": Case(
        lambda: example("resnet"),
        lambda b, h, w: ((torch.randn(b, 3, h, w),), {}),
        {"images": {0: "b", 2: "h=8..40", 3: "w=8..40"}},
        (4, 32, 24),
        ((2, 8, 8), (4, 40, 40), (3, 9, 31), (2, 25, 16)),
        ("b", "h", "w"),
    ),
}


def tensors(node: Any) -> Iterator[torch.Tensor]:
    if isinstance(node, torch.Tensor):
        yield node
    elif isinstance(node, dict):
        for item in node.values():
            yield from tensors(item)
    elif isinstance(node, list | tuple):
        for item in node:
            yield from tensors(item)


def loss_of(outputs: Any) -> torch.Tensor:
    first = next(tensors(outputs))
    return first if first.dim() == 0 else first.pow(2).mean()


def step(model: nn.Module, call: Call) -> list[torch.Tensor | None]:
    for parameter in model.parameters():
        parameter.grad = None
    torch.manual_seed(0)
    outputs = model(*call[0], **call[1])
    loss = loss_of(outputs)
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in model.parameters()), *model.buffers()]


def every(case: Case, dims: dict[str, Dimension]) -> list[tuple[int, ...]]:
    """Those of the case, all corners of the range, and others by chance (the same each time), as far as there are any."""
    ranges = [range(dims[name].min, dims[name].max + 1, dims[name].multiple) for name in case.names]
    corners = itertools.product(*((each[0], each[-1]) for each in ranges))
    found = dict.fromkeys((case.planned, *case.at, *corners))
    chance = random.Random(0)
    while len(found) < min(_SIZES, math.prod(map(len, ranges))):
        found.setdefault(tuple(map(chance.choice, ranges)))
    return list(found)


@pytest.mark.parametrize("name", CASES)
def test_one_file_for_all_sizes(name: str) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    model = case.make().train()
    args, kwargs = case.call(*case.planned)
    schedule = remate.plan(model, args, kwargs, budget=case.budget, cost="cpu", dims=case.dims)
    ours = copy.deepcopy(model)
    applied = remate_runtime.apply(ours, schedule)
    for sizes in every(case, schedule.model.dims):
        theirs = copy.deepcopy(ours)
        call = case.call(*sizes)
        wanted, found = step(theirs, call), step(applied, call)
        for one, two in zip(wanted, found, strict=True):
            assert (one is None) == (two is None)
            if one is not None and two is not None:
                assert torch.equal(one, two), (name, sizes)
        written = expand(fitted(schedule, dict(zip(case.names, sizes, strict=True))).schedule)
        reruns = written.reruns
        clear_gradients(ours)
        measured = peak_bytes(lambda call=call: training_step(applied, *call))
        exact = simulate(link(costed(written.graph, MEASURED), reruns)).peak
        assert measured == exact <= simulate(link(written.graph, reruns)).peak, (name, sizes)
