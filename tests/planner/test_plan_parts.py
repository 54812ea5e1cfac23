"""`remate.plan(..., at=)`: parts of a model, with their inputs from the model's own call, and its memory for the
objective."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import remate
from remate.api.parts import PartSchedules
from remate.capture.parts import matched, part_calls
from remate.capture.recorded import called
from remate.errors import CaptureError, DimsError, InfeasibleError
from remate.step_measurement.allocator import peak_bytes
from remate.strategy import NORMAL, shared_effort, solve
from remate_runtime import BindError, Schedule, apply
from remate_runtime.flat_step import expand
from remate_runtime.link import link, peak_together, simulate

from ..runtime.small import data, seeded
from ..runtime.stepping import everything
from ..runtime.test_part_view import IDS, Block, Stack, gradients, stack

CPU = torch.device("cpu")


class Layer(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        inner = nn.functional.gelu(self.up(self.norm(x)))
        return x + self.down(inner if mask is None else inner * mask)


class Deep(nn.Module):
    """Blocks of two kinds, the first of which gets an input without a gradient; a mask that is expanded."""

    def __init__(self, depth: int = 6, kinds: int = 1) -> None:
        super().__init__()
        self.first = nn.ModuleList([Layer(32, 256) for _ in range(depth)])
        self.second = nn.ModuleList([Layer(32, 96) for _ in range(depth if kinds > 1 else 0)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(1, 1, 1).expand(*x.shape[:2], 1)
        for layer in (*self.first, *self.second):
            x = layer(x, mask=mask)
        return x.square().mean()


def deep(depth: int = 6, kinds: int = 1) -> tuple[Any, torch.Tensor]:
    return seeded(Deep(depth, kinds)).train(), data(8, 64, 32)


def measured(model: nn.Module, x: torch.Tensor) -> int:
    """Bytes of a step of the whole model, after a warm-up step."""

    def step() -> None:
        model(x).backward()

    peak = 0
    for _ in range(2):
        model.zero_grad(set_to_none=True)
        x.grad = None
        peak = peak_bytes(step, CPU)
    return peak


@pytest.mark.quick("60%")
@pytest.mark.parametrize("budget", ["100%", "60%", "35%"])
def test_the_peak_of_the_whole_is_what_was_planned_for_all_parts(budget: str) -> None:
    model, x = deep()
    x.requires_grad_()
    schedule = remate.plan(model, (x,), at="first.*", budget=budget, cost="cpu")
    assert isinstance(schedule, Schedule)
    assert schedule.model.at == ("first.[0-5]",)
    assert schedule.peak_bytes <= schedule.budget_bytes
    peak = measured(apply(model, schedule), x)
    loss = 8 * 64 * 32 * 4 * 2  # what the model computes behind its parts: a square, and its gradient
    assert peak <= schedule.peak_bytes + loss + 64
    assert peak >= 0.9 * schedule.peak_bytes


@pytest.mark.slow
def test_retaining_less_in_every_block_beats_the_block_with_the_smallest_peak() -> None:
    """A block on its own has its least peak where much is held between forward and backward, once for every block."""
    model, x = deep()
    x.requires_grad_()
    args = model.first[0], (data(8, 64, 32).requires_grad_(),)
    with pytest.raises(InfeasibleError) as least:
        remate.plan(*args, budget=1, cost="cpu")
    alone = remate.plan(*args, budget=least.value.smallest, cost="cpu")
    parts = remate.plan(model, (x,), at="first.*", budget="35%", cost="cpu")
    assert isinstance(parts, Schedule)
    expanded = expand(alone)
    many = simulate(link(replace_calls(expanded.graph, 6), expanded.recomputes)).peak
    assert parts.peak_bytes < 0.7 * many
    assert measured(apply(model, parts), x) < 0.7 * many


@pytest.mark.slow
def test_a_hand_that_recomputes_the_whole_block_is_beaten() -> None:
    """What `torch.utils.checkpoint` around every block does: the plan within the same peak is faster."""
    model, x = deep()
    x.requires_grad_()
    baseline = remate.plan(model, (x,), at="first.*", budget="100%", cost="cpu")
    assert isinstance(baseline, Schedule)
    graph = expand(baseline).graph
    by_hand = simulate(link(graph, everything(graph)))
    planned = remate.plan(model, (x,), at="first.*", budget=by_hand.peak, cost="cpu")
    assert isinstance(planned, Schedule)
    assert by_hand.peak < baseline.peak_bytes / 2
    assert planned.peak_bytes <= by_hand.peak
    assert planned.solve.time < by_hand.time


def replace_calls(graph: Any, calls: int) -> Any:
    from msgspec.structs import replace

    return replace(graph, calls=calls, modules=calls)


@pytest.mark.slow
def test_parts_that_do_other_steps_get_files_of_their_own_within_one_budget(tmp_path: Any) -> None:
    model, x = deep(3, kinds=2)
    schedule = remate.plan(model, (x,), at=["first.*", "second.*"], budget="60%", cost="cpu")
    assert isinstance(schedule, PartSchedules)
    assert [entry.model.at for entry in schedule] == [
        ("first.0",),
        ("first.[1-2]",),
        ("second.[0-2]",),
    ]  # by their inputs
    assert [entry.name for entry in schedule] == ["Layer", "Layer-2", "Layer-3"]
    baseline = [expand(entry).graph for entry in schedule]
    assert schedule.peak_bytes <= 0.6 * peak_together([link(graph) for graph in baseline])
    schedule.save(tmp_path / "parts")
    view = apply(model, tmp_path / "parts")
    eager = deep(3, kinds=2)[0]
    assert all(map(torch.equal, gradients(view, x), gradients(eager, x)))
    assert measured(view, x) <= schedule.peak_bytes + 8 * 64 * 32 * 4 * 2 + 64


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["80%", "45%"])
def test_several_kinds_are_each_searched_once_however_many_shares_are_tried(
    budget: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search under a budget that is too small takes as long as a plan: a fast strategy finds the shares."""
    searched: list[tuple[str, int]] = []

    def counting(instance: Any, request: Any, policy: Any, **options: Any) -> Any:
        searched.append((policy.name, request.effort.nodes))
        return solve(instance, request, policy, **options)

    monkeypatch.setattr("remate.api.frontier.solve", counting)
    model, x = deep(3, kinds=2)
    schedule = remate.plan(model, (x,), at=["first.*", "second.*"], budget=budget, cost="cpu")
    assert isinstance(schedule, PartSchedules)
    assert [item for item in searched if item[0] == "auto"] == [("auto", NORMAL.nodes // 3)] * 3
    assert len(searched) >= 6
    baseline = peak_together([link(expand(item).graph) for item in schedule])
    assert 0.9 * int(budget[:-1]) / 100 * baseline < schedule.peak_bytes <= int(budget[:-1]) / 100 * baseline


@pytest.mark.slow
def test_a_part_that_is_called_once_holds_little_beside_the_others() -> None:
    """Where the first of the blocks alone gets an input without a gradient, it is a kind of its own. Searched on its
    own, it would have its least peak where it holds much, and nothing would fit this budget."""
    model, x = deep()
    schedule = remate.plan(model, (x,), at="first.*", budget="30%", cost="cpu")
    assert isinstance(schedule, PartSchedules)
    assert [entry.model.at for entry in schedule] == [("first.0",), ("first.[1-5]",)]
    baseline = peak_together([link(expand(entry).graph) for entry in schedule])
    assert schedule.peak_bytes <= 0.3 * baseline
    for entry in schedule:
        written = expand(entry)
        assert simulate(link(written.graph, written.recomputes)).peak == entry.peak_bytes == entry.budget_bytes
    assert measured(apply(model, [*schedule]), x) <= schedule.peak_bytes + 8 * 64 * 32 * 4 * 2 + 64


@pytest.mark.slow
def test_a_budget_below_what_all_parts_need_tells_one_that_is_met() -> None:
    model, x = deep(3, kinds=2)
    at = ["first.*", "second.*"]
    with pytest.raises(InfeasibleError) as least:
        remate.plan(model, (x,), at=at, budget="2%", cost="cpu")
    schedule = remate.plan(model, (x,), at=at, budget=least.value.smallest, cost="cpu")
    assert isinstance(schedule, PartSchedules)
    assert schedule.peak_bytes <= least.value.smallest


def test_efforts_that_are_shared() -> None:
    half = shared_effort(NORMAL, 2)
    assert (half.name, half.nodes, half.states, half.work) == (
        "normal", NORMAL.nodes // 2, NORMAL.states // 2, NORMAL.work / 2
    )  # fmt: skip
    assert shared_effort(NORMAL, 1) == NORMAL
    assert shared_effort(NORMAL, 1000).rounds == 1


def test_forward_is_run_once_and_leaves_nothing_behind() -> None:
    class Counting(Stack):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            self.seen = getattr(self, "seen", 0) + 1
            self.get_buffer("total").add_(1)
            return super().forward(ids)

    model = seeded(Counting()).train()
    model.register_buffer("total", torch.zeros(()))
    state = torch.get_rng_state()
    result = part_calls(called(model, (IDS,)), "blocks.*")
    assert [entry.paths for entry in result] == [("blocks.0", "blocks.1", "blocks.2")]
    assert model.total == 0
    assert not hasattr(model, "seen")
    assert torch.equal(torch.get_rng_state(), state)
    assert type(model.blocks[0]) is Block
    call = result[0].call(model, "blocks.1")
    assert call.args[0].requires_grad
    assert call.kwargs == {"scale": 0.5}


def test_calls_keep_the_strides_of_what_was_expanded() -> None:
    model, x = deep(2)
    result = part_calls(called(model, (x,)), "first.*")
    assert [entry.example.kwargs["mask"].stride() for entry in result] == [(0, 0, 1)] * 2 or all(
        entry.example.kwargs["mask"].stride()[:2] == (0, 0) for entry in result
    )


def test_patterns_and_what_they_cannot_name() -> None:
    model = stack()
    assert list(matched(model, ["blocks.[0-1]", "blocks.2.u*"])) == ["blocks.0", "blocks.1", "blocks.2.up"]
    with pytest.raises(CaptureError, match=r"no module of the model is called 'block\.\*'"):
        matched(model, ["block.*"])
    with pytest.raises(CaptureError, match=r"list of modules.*\n.*at='blocks\.\*'"):
        matched(model, ["blocks"])
    with pytest.raises(CaptureError, match=r"it is inside 'blocks\.0'"):
        matched(model, ["blocks.*", "blocks.0.up"])


def test_what_cannot_be_planned_says_why() -> None:
    class Lazy(Stack):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.blocks[0](self.embed(ids))[0]).mean()

    with pytest.raises(CaptureError, match=r"forward calls 'blocks\.1', 'blocks\.2' not"):
        remate.plan(seeded(Lazy()).train(), (IDS,), at="blocks.*", cost="cpu")

    class Frozen(Stack):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                x = self.blocks[0](self.embed(ids))[0]
            return self.head(x).mean()

    with pytest.raises(CaptureError, match=r"forward calls 'blocks\.0' without gradients"):
        remate.plan(seeded(Frozen()).train(), (IDS,), at="blocks.0", cost="cpu")
    with pytest.raises(CaptureError, match="forward fails on the example inputs: IndexError"):
        remate.plan(stack(), (IDS + 99,), at="blocks.*", cost="cpu")
    with pytest.raises(DimsError, match="is for whole models"):
        remate.plan(stack(), (IDS,), at="blocks.*", cost="cpu", dims="auto")


@pytest.mark.slow
def test_what_a_model_collects_of_modules_within_its_parts_is_refused() -> None:
    """transformers gathers router logits by hooks of submodules, which a part would not call: the loss that is made of
    them would be another one without a word."""
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, num_local_experts=2, use_cache=False, output_router_logits=True,
    )  # fmt: skip
    torch.manual_seed(0)
    model: Any = transformers.MixtralForCausalLM(config).train()
    call = {"input_ids": torch.arange(8).reshape(2, 4), "labels": torch.arange(8).reshape(2, 4)}
    told = r"collects router_logits of modules within it.*\n.*config\.output_router_logits = False"
    with pytest.raises(CaptureError, match=told) as caught:
        remate.plan(model, (), call, at=["model.layers.1", "lm_head"], budget="100%", cost="cpu")
    assert caught.value.parts == (
        "model.layers.1.self_attn",
        "lm_head",
        "model.layers.1.mlp.experts",
    )  # the router in mlp
    config.output_router_logits = False
    schedule = remate.plan(model, (), call, at="model.layers.1", budget="100%", cost="cpu")
    view = apply(model, [schedule] if isinstance(schedule, Schedule) else [*schedule])
    view(**call).loss.backward()
    with pytest.raises(BindError, match=told):
        view(**call, output_router_logits=True)


@pytest.mark.slow
def test_a_part_that_keeps_nothing_of_its_forward() -> None:
    """Nothing could run again in it, so no bound has anything to ask there."""

    class Entered(Deep):
        def __init__(self) -> None:
            super().__init__(3)
            self.enter = nn.Linear(32, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(self.enter(x))

    model = seeded(Entered()).train()
    schedule = remate.plan(model, (data(8, 64, 32),), at=["enter", "first.*"], budget="60%", cost="cpu")
    assert isinstance(schedule, PartSchedules)
    assert sorted(entry.model.at for entry in schedule) == [("enter",), ("first.[0-2]",)]
    assert schedule.peak_bytes <= 0.6 * peak_together([link(expand(entry).graph) for entry in schedule])


class Momentum(nn.Module):
    """Averages weights, fills a queue and counts within forward."""

    def __init__(self) -> None:
        super().__init__()
        layers = [(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()) for _ in range(3)]
        self.query, self.key, self.in_place = (nn.Sequential(*layer) for layer in layers)
        self.queue, self.keys, self.counts = torch.zeros(4, 8), [torch.zeros(8)], {"calls": 0}
        for parameter in [*self.key.parameters(), *self.in_place.parameters()]:
            parameter.requires_grad = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for one, other, third in zip(
                self.query.parameters(), self.key.parameters(), self.in_place.parameters(), strict=True
            ):
                other.data = other.data * 0.9 + one.data * 0.1
                third.mul_(0.5)
            self.queue[int(self.counts["calls"]) % 4] = self.key(x)[0]
            self.keys[0].add_(self.in_place(x)[0])
        self.counts["calls"] += 1
        return (self.query(x) * self.queue.sum(0) * self.keys[0]).square().mean()


def test_what_the_forward_around_parts_changes_is_restored() -> None:
    model, x = seeded(Momentum()).train(), data(4, 8)
    held = [*model.parameters(), *model.buffers(), model.queue, *model.keys]
    before, addresses = [tensor.detach().clone() for tensor in held], [tensor.data_ptr() for tensor in held]
    part_calls(called(model, (x,), {}), "query")
    assert [tensor.data_ptr() for tensor in held] == addresses
    assert all(torch.equal(tensor, was) for tensor, was in zip(held, before, strict=True))
    assert model.counts == {"calls": 0}
    with pytest.raises(CaptureError, match=r"assigns `\.data`") as refused:
        remate.plan(model, (x,), cost="cpu")
    assert refused.value.parts == ("query",)
