"""What requires grad changes after planning: gradients are eager's, or the call is refused; none is wrong or
missing."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, vmap

from remate.capture.capture_step import capture
from remate.step_measurement.allocator import peak_bytes
from remate_runtime import BindError, ExecutionError, apply
from remate_runtime.link import Run, link, simulate, without_gradients
from remate_runtime.link.frozen import MASKS
from tests.planner.folding import random_recomputes

from .small import data, seeded
from .stepping import just_in_time, schedule_of


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))
        self.shift = torch.zeros(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.b(torch.tanh(self.norm(self.a(x)))) * self.scale + self.shift).sum()


def gradients(model: Any, x: torch.Tensor) -> list[Any]:
    model.zero_grad()
    x = x.detach().clone().requires_grad_(x.requires_grad)
    loss = model(x)
    if loss.requires_grad:
        loss.backward()
    return [x.grad, *(p.grad for p in model.parameters())]


def assert_equal(results: list[Any], wanted: list[Any]) -> None:
    for left, right in zip(results, wanted, strict=True):
        assert (left is None) == (right is None)
        assert left is None or torch.equal(left, right)


@pytest.mark.quick("False-just_in_time")
@pytest.mark.parametrize("recomputes", [lambda graph: [], just_in_time])
@pytest.mark.parametrize("planned_with_grad", [False, True])
def test_any_set_of_frozen_parameters_has_eagers_gradients(planned_with_grad, recomputes):
    model = seeded(Deep())
    planned = apply(model, schedule_of(model, (data(4, 4).requires_grad_(planned_with_grad),), recomputes=recomputes))
    parameters = list(model.parameters())
    for trained in itertools.product([False, True], repeat=len(parameters)):
        for parameter, flag in zip(parameters, trained, strict=True):
            parameter.requires_grad_(flag)
        for with_grad in {False, planned_with_grad}:
            x = data(4, 4, seed=5).requires_grad_(with_grad)
            assert_equal(gradients(planned, x), gradients(model, x))


def test_gradients_that_were_not_planned_are_refused():
    model = seeded(Deep())
    planned = apply(model, schedule_of(model, (data(4, 4),)))
    with pytest.raises(BindError, match="'x' requires grad, and the schedule has no gradient for it"):
        planned(data(4, 4).requires_grad_())
    model.get_buffer("scale").requires_grad_()
    with pytest.raises(BindError, match="buffer 'scale': frozen when planned, now it requires grad"):
        planned(data(4, 4))
    model.get_buffer("scale").requires_grad_(False)
    model.shift = torch.zeros(4, requires_grad=True)
    with pytest.raises(BindError, match="buffer 'shift': frozen when planned, now it requires grad"):
        planned(data(4, 4))


@pytest.mark.quick("False-<lambda>1")
@pytest.mark.parametrize(
    "call",
    [
        lambda m, x: vmap(m)(x[None]),
        lambda m, x: jvp(m, (x,), (x,)),
        lambda m, x: grad(lambda given: m(given))(x),
        lambda m, x: grad(lambda named: functional_call(m, named, (x,)))(dict(m.named_parameters())),
    ],
)
@pytest.mark.parametrize("frozen", [False, True])
def test_transforms_of_functions_are_refused(call, frozen):
    model = seeded(Deep())
    planned = apply(model, schedule_of(model, (data(4, 4),)))
    model.requires_grad_(not frozen)
    with pytest.raises(ExecutionError, match=r"not those of torch\.func or forward-mode.*\n.*original model"):
        call(planned, data(4, 4))
    with forward_ad.dual_level(), pytest.raises(ExecutionError, match="forward-mode"):
        planned(forward_ad.make_dual(data(4, 4), data(4, 4)))


@pytest.mark.compiled
def test_tensors_swapped_in_for_one_call():
    model = seeded(Deep())
    planned = apply(model, schedule_of(model, (data(4, 4),)))
    swapped = {name: (p.detach() * 2).requires_grad_() for name, p in model.named_parameters()}
    actual, wanted = [], []
    for module, kept in ((planned, actual), (model, wanted)):
        loss = functional_call(module, swapped, (data(4, 4),))
        kept += torch.autograd.grad(loss, list(swapped.values()))
    assert_equal(actual, wanted)


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(32, 32) for _ in range(8)])
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.drop(torch.tanh(layer(x)))
        return self.head(x).sum()


@pytest.mark.quick("1-just_in_time")
@pytest.mark.parametrize("recomputes", [lambda graph: [], just_in_time])
@pytest.mark.parametrize("trained", [1, 4])
def test_what_only_frozen_parameters_need_neither_runs_nor_is_kept(recomputes, trained):
    """Of the allocator: as the top alone is trained, the activations below it are not held, as in eager."""
    model = seeded(Tower())
    planned = apply(model, schedule_of(model, (data(512, 32),), recomputes=recomputes))
    x = data(512, 32, seed=3)

    def step(left: Any) -> list[Any]:
        torch.manual_seed(1)
        return gradients(left, x)

    whole = peak_bytes(lambda: step(planned), torch.device("cpu"))
    for layer in model.layers[: 9 - trained]:
        layer.requires_grad_(False)
    assert_equal(step(planned), step(model))
    reduced = peak_bytes(lambda: step(planned), torch.device("cpu"))
    eager = peak_bytes(lambda: step(model), torch.device("cpu"))
    assert reduced <= max(eager, whole // 2 if recomputes is not just_in_time else whole)
    model.requires_grad_(True)
    assert_equal(step(planned), step(model))


@pytest.mark.quick("1")
@pytest.mark.parametrize("seed", range(12))
def test_any_recomputes_with_any_frozen_parameters_are_the_step_without_them(seed):
    """What is left computes the same values: forward's operations all run, each recomputation that is left is read."""
    dice = random.Random(seed)
    model = seeded(Tower())
    graph = capture(model, (data(8, 32),)).graph
    linked = link(graph, random_recomputes(graph, seed, 20))
    frozen = {source for source, _ in graph.gradients if dice.random() < 0.6}
    reduced = without_gradients(linked, frozen)
    assert {reduced.graph.values[s].name for s, _ in reduced.graph.gradients} == {
        graph.values[s].name for s, _ in graph.gradients if s not in frozen
    }
    runs = [event.op for event in reduced.events if isinstance(event, Run)]
    assert [reduced.graph.operations[op].id for op in runs if op < graph.backward_start] == [
        op.id for op in graph.operations[: graph.backward_start] if not op.view
    ]
    assert simulate(reduced).peak <= simulate(linked).peak
    assert simulate(reduced).time <= simulate(linked).time
    again = without_gradients(reduced, ())
    assert again.events == reduced.events


class Sampled(nn.Module):
    """Samples its input at places that are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.zeros(2, 6, 6, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(x, torch.tanh(self.places), align_corners=False)


FIRST = {
    "convolution_backward": lambda: nn.Conv2d(4, 4, 3),
    "native_batch_norm_backward": lambda: nn.BatchNorm2d(4),
    "native_group_norm_backward": lambda: nn.GroupNorm(2, 4),
    "native_layer_norm_backward": lambda: nn.LayerNorm(64),
    "grid_sampler_2d_backward": Sampled,
}


@pytest.mark.quick("grid_sampler_2d_backward-just_in_time")
@pytest.mark.parametrize("recomputes", [lambda graph: [], just_in_time])
@pytest.mark.parametrize("name", FIRST)
def test_an_operator_leaves_out_the_gradient_of_an_input_that_needs_none(name, recomputes):
    """Of a step that was planned with it: eager leaves it out, too, and holds as little."""
    model = nn.Sequential(seeded(FIRST[name]()), nn.Tanh())
    x = data(2, 4, 64, 64)

    def step(left: Any, given: torch.Tensor) -> list[Any]:
        model.zero_grad()
        given = given.detach().requires_grad_(given.requires_grad)
        left(given).square().sum().backward()
        return [given.grad, *(p.grad for p in model.parameters())]

    schedule = schedule_of(model, (x.clone().requires_grad_(),), recomputes=recomputes)
    planned = apply(model, schedule)
    for with_grad in (True, False, True):
        given = x.clone().requires_grad_(with_grad)
        assert_equal(step(planned, given), step(model, given))
    graph = capture(model, (x.clone().requires_grad_(),)).graph
    inputs = {source for source, _ in graph.gradients if graph.values[source].kind == "input"}
    reduced = without_gradients(link(graph), inputs)
    masks = [op.args[MASKS[op.op]] for op in reduced.graph.operations if op.op.startswith(f"aten.{name}")]
    assert [any(mask) and not all(mask) for mask in masks] == [True]
    if recomputes is not just_in_time:
        eager, peak = (peak_bytes(lambda m=m: step(m, x), torch.device("cpu")) for m in (model, planned))
        assert peak <= eager


def test_masks_stand_where_torch_has_them():
    for name, at in MASKS.items():
        packet = getattr(torch.ops.aten, name.removeprefix("aten."))
        assert packet.default._schema.arguments[at].name == "output_mask"
