"""Dropout in tiles on the CPU: the mask is drawn whole, as eager draws it, and everything that follows is eager's."""

from __future__ import annotations

import copy
import json
import random
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from torch import nn

import remate
from remate_runtime import apply
from remate_runtime.errors import ScheduleError
from remate_runtime.flat_step import FlatSplit, Graph, Op, Ref, Value, expand, split_step
from remate_runtime.format import Recompute, Schedule, Split, decode, encode
from remate_runtime.format.tensor_type import TensorType
from tests.format.independent_simulator import simulate as independently
from tools.expected import expected_of

from .test_row_rules import run

pytestmark = pytest.mark.eager
KINDS = {torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16", torch.float16: "f16"}
LAYOUTS = {
    "of two axes": lambda dtype: torch.randn(13, 7, dtype=dtype),
    "of many elements": lambda dtype: torch.randn(71, 130, dtype=dtype),
    "transposed": lambda dtype: torch.randn(9, 14, dtype=dtype).t(),
    "with another first axis": lambda dtype: torch.randn(6, 5, 16, dtype=dtype).transpose(0, 1),
    "with axes of one element": lambda dtype: torch.randn(5, 1, 8, 1, dtype=dtype).permute(2, 1, 0, 3),
    "of images": lambda dtype: torch.randn(5, 3, 4, 6, dtype=dtype).to(memory_format=torch.channels_last),
    "with gaps": lambda dtype: torch.randn(8, 11, dtype=dtype)[:, 2:9],
}


def of_one(operator: str, source: torch.Tensor, *args: Any) -> tuple[Graph, list[torch.Tensor]]:
    """A step of one random operation, and its results in eager mode."""
    made = getattr(torch, operator.split(".")[1])(source, *args)
    results = list(made) if isinstance(made, tuple) else [made]

    def kind(tensor: torch.Tensor) -> TensorType:
        plain = tensor.is_contiguous()
        name = KINDS.get(tensor.dtype, "bool")
        return TensorType(name, tuple(tensor.shape), None if plain else tuple(tensor.stride()))

    values = Value("x", kind(source), "input"), *(Value(f"o:{k}", kind(r), "op", 0) for k, r in enumerate(results))
    writes = tuple(range(1, len(values)))
    op = Op("o", operator, (Ref(0), *args), {}, (0,), writes, isinstance(made, tuple), False, True)
    return Graph(values, (op,), 1, writes, (), (), tuple(range(len(values)))), results


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tiles_of_dropout_are_dropout(dtype: torch.dtype, layout: str, rate: float) -> None:
    """Values, mask, strides, and the state of the generator afterwards."""
    source = LAYOUTS[layout](dtype)
    torch.manual_seed(1)
    graph, results = of_one("aten.native_dropout", source, rate, True)
    state = torch.get_rng_state()
    for into in range(2, 6):
        masked = replace(graph, outputs=(2,)) if not results[0].is_contiguous() else graph  # no whole of other orders
        made = split_step(masked, FlatSplit((0,), into)).graph
        slots = run(made, {0: source})
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(slots[2], results[1])
        strides = zip(source.shape, slots[2].stride(), results[1].stride(), strict=True)
        assert all(size == 1 or one == other for size, one, other in strides)
        (axis,) = {at for op in made.operations if op.op == "aten.slice.Tensor" for at in (op.args[1],)}
        tiles = [slots[v] for op in made.operations if op.op == "aten.native_dropout_backward" for v in op.writes if v]
        joined = torch.cat(tiles, axis)
        assert torch.equal(joined, results[0])


@pytest.mark.parametrize("dtype", list(KINDS))
def test_tiles_of_a_mask_of_numbers_are_the_mask(dtype: torch.dtype) -> None:
    source = torch.randn(9, 31, dtype=dtype)
    for kept in (0.0, 0.3, 1.0):
        torch.manual_seed(1)
        graph, (expected,) = of_one("aten.bernoulli", source, kept)
        graph = replace(graph, operations=(replace(graph.operations[0], op="aten.bernoulli.p"),))
        for into in (2, 5):
            assert torch.equal(run(split_step(graph, FlatSplit((0,), into)).graph, {0: source})[1], expected)


@pytest.mark.parametrize(
    ("dtype", "device", "args", "why"),
    [
        (torch.float32, "cuda", (0.1, True), "on cuda, the random numbers of a tile depend on the kernel"),
        (torch.bfloat16, "cpu", (0.1, True), "in bf16, it rounds its factor before it multiplies"),
        (torch.float32, "cpu", (0.1, False), "it draws no random numbers"),
    ],
)
def test_what_is_refused_says_why(dtype: torch.dtype, device: str, args: tuple[Any, ...], why: str) -> None:
    graph, _ = of_one("aten.native_dropout", torch.randn(8, 4, dtype=dtype), *args)
    with pytest.raises(ScheduleError, match=f"'o' .aten.native_dropout. cannot be split along rows: {why}") as caught:
        split_step(replace(graph, device=device), FlatSplit((0,), 2))
    assert caught.value.code == "R091"


class Layers(nn.Module):
    """Products with dropout between and around them, and other random numbers."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        dice = random.Random(seed)
        self.rates = [dice.choice([0.0, 0.1, 0.25, 0.5, 0.7, 1.0]) for _ in range(3)]
        self.noise, self.transposed, self.gated = (dice.random() < 0.4 for _ in range(3))
        self.act = dice.choice([torch.relu, F.gelu, torch.tanh])
        self.up, self.down, self.gate = nn.Linear(8, 24), nn.Linear(24, 8), nn.Linear(8, 24)
        self.last = nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third = self.rates
        y = F.dropout(self.act(self.up(F.dropout(x, third))), first)
        if self.noise:
            x = x + torch.rand_like(x)
        if self.gated:
            y = y * F.dropout(torch.sigmoid(self.gate(x)), second)
        y = x + F.dropout(self.down(y), second)
        if self.transposed:
            y = F.dropout(y.transpose(0, 1), first).transpose(0, 1)
        return self.last(F.dropout(y, first)).square().mean()


@cache
def planned(seed: int) -> tuple[nn.Module, Schedule, torch.Tensor]:
    torch.manual_seed(seed)
    dtype = (torch.float32, torch.bfloat16, torch.float64)[seed % 3]
    model, x = Layers(seed).to(dtype), sample(dtype)
    return model, remate.plan(model, (x,), budget="100%", cost="cpu", progress=None), x


def sample(dtype: torch.dtype) -> torch.Tensor:
    return torch.linspace(-2, 2, 6 * 5 * 8).sin().view(6, 5, 8).to(dtype)


def results(model: nn.Module, run: nn.Module, x: torch.Tensor) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """The loss and the next random numbers, and the gradients."""
    torch.manual_seed(4)
    loss = run(x)
    loss.backward()
    return [loss.detach(), torch.rand(5)], {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def compared(schedule: Schedule, model: nn.Module, x: torch.Tensor) -> None:
    """Beside eager: bitwise, but for what the schedule lists."""
    eager, ours = copy.deepcopy(model), copy.deepcopy(model)
    one, two = results(eager, eager, x), results(ours, apply(ours, schedule, verify="never"), x)
    expanded = expand(schedule)
    names = [value.name for value in expanded.graph.values]
    listed = {names[v] for v in (*expanded.reordered, *expanded.rounded)}
    outputs_change = any(v in expanded.graph.outputs for v in expanded.rounded)
    near: dict[str, Any] = {"rtol": 5e-2, "atol": 1e-3} if x.dtype == torch.bfloat16 else {}
    torch.testing.assert_close(two[0], one[0], **near)
    assert outputs_change or torch.equal(two[0][0], one[0][0])
    assert torch.equal(two[0][1], one[0][1])
    assert one[1].keys() == two[1].keys()
    for name, expected in one[1].items():
        torch.testing.assert_close(two[1][name], expected, **near)
        assert name in listed or torch.equal(two[1][name], expected), name


def with_split(schedule: Schedule, statements: list[Any]) -> Schedule:
    return decode(encode(replace(schedule, statements=tuple(statements), requires=("split",))))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_windows_with_dropout_are_refused_or_compute_what_eager_computes(data: st.DataObject) -> None:
    model, plain, x = planned(data.draw(st.integers(0, 8)))
    graph = expand(plain).graph
    able = [op for op in graph.operations if not op.view]
    names = list[str]()
    for kind in ("forward", "backward"):
        centres = [at for at, op in enumerate(able) if (op.random if kind == "forward" else "backward" in op.op)]
        if centres and (kind == "forward" or data.draw(st.booleans())):
            at = data.draw(st.sampled_from(centres))
            start = max(0, at - data.draw(st.integers(0, 3)))
            names += [op.id for op in able[start : at + 1 + data.draw(st.integers(0, 3))]]
    split = Split(tuple(dict.fromkeys(names)), data.draw(st.integers(2, 5)))
    try:
        tiled = expand(with_split(plain, [split])).graph
    except ScheduleError as fault:
        if fault.code not in ("R090", "R091", "R092"):
            raise
        return
    again = [op.id for op in tiled.operations[: tiled.backward_start] if "@" in op.id and not op.view]
    again = data.draw(st.sampled_from([again, [name for name in again if "@all.mask" in name], again[::2]]))
    later = [op.id for op in tiled.operations[tiled.backward_start :] if not op.view]
    recomputes = [Recompute(tuple(again), data.draw(st.sampled_from(later)))] if again and later else []
    schedule = with_split(plain, [split, *recomputes])
    assert independently(json.loads(encode(schedule))) == expected_of(schedule, floor=False)
    compared(schedule, model, x)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 24), nn.Linear(24, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(torch.relu(self.up(x)), 0.5)
        noise = torch.rand_like(y[:, :, :4]) * y.amax((0, 1))[:4]
        return F.dropout(self.down(y), 0.5).square().mean() + noise.mean()


def test_masks_are_drawn_in_the_order_of_the_step_or_the_split_is_refused() -> None:
    """Something random between two of them that needs the tiles cannot draw between the masks."""
    model, x = Pair(), sample(torch.float32)
    plain = remate.plan(model, (x,), budget="100%", cost="cpu", progress=None)
    graph = expand(plain).graph
    drawn = [op.id for op in graph.operations if op.random]
    assert len(drawn) == 3
    ids = [op.id for op in graph.operations if not op.view]
    others = [name for name in ids[: ids.index(drawn[2]) + 1] if "addmm" in name or "relu" in name]
    names = (*others, drawn[0], drawn[2])
    with pytest.raises(ScheduleError, match="would draw random numbers before operations that precede it") as caught:
        expand(with_split(plain, [Split(names, 2)]))
    assert drawn[2] in caught.value.message
    compared(with_split(plain, [Split(names[:-1], 2)]), model, x)


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.drop, self.down = nn.Linear(8, 24), nn.Dropout(0.5), nn.Linear(24, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.drop(torch.relu(self.up(x)))).square().mean()


@pytest.mark.slow
def test_a_rate_that_changes_between_steps() -> None:
    model, x = Dropped(), sample(torch.float32)
    plain = remate.plan(model, (x,), budget="100%", cost="cpu", progress=None, live=["drop.p"])
    ids = [op.id for op in expand(plain).graph.operations if not op.view]
    first = next(at for at, name in enumerate(ids) if "addmm" in name)
    last = next(at for at, name in enumerate(ids) if at > first and "addmm" in name)
    schedule = with_split(plain, [Split(tuple(ids[first : last + 1]), 3)])
    eager, ours = copy.deepcopy(model), copy.deepcopy(model)
    applied = apply(ours, schedule, verify="never")
    for rate in (0.5, 0.2, 0.9):
        eager.drop.p = ours.drop.p = rate
        torch.manual_seed(4)
        expected = eager(x)
        torch.manual_seed(4)
        torch.testing.assert_close(applied(x), expected, rtol=1e-6, atol=0)
