"""Gradients are delivered as they complete: added up in place, seen by hooks and used up by optimizers during
backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from remate.step_measurement.allocator import peak_bytes
from remate_runtime import ExecutionError, Schedule, apply
from remate_runtime.flat_step import expand
from remate_runtime.link import Deliver, Execution, link, simulate

from .small import data, seeded
from .stepping import just_in_time, no_recomputes, schedule_of

WIDTH = 512  # a weight of 1 MiB


class Wide(nn.Module):
    """Parameters outweigh activations; `tied` is used by two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(5))
        self.tied = nn.Linear(WIDTH, WIDTH, bias=False)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.tied(x)
        for layer in self.layers:
            x = self.drop(torch.tanh(layer(x)))
        return self.tied(x).square().mean()


def planned(model: nn.Module, recomputes: Any = no_recomputes) -> tuple[nn.Module, Schedule]:
    schedule = schedule_of(model, (data(16, WIDTH),), recomputes=recomputes)
    return apply(model, schedule), schedule


def timeline(schedule: Schedule, gradients: Any) -> Any:
    expanded = expand(schedule)
    return simulate(link(expanded.graph, expanded.recomputes), gradients)


BATCHES = [data(16, WIDTH, seed=seed) for seed in range(3)]


def step(model: nn.Module, seed: int = 0) -> None:
    torch.manual_seed(seed)
    model(BATCHES[seed]).backward()


@pytest.mark.quick("just_in_time")
@pytest.mark.allocating
@pytest.mark.parametrize("recomputes", [no_recomputes, just_in_time])
def test_accumulation_holds_one_set_of_gradients(recomputes: Any) -> None:
    """To the byte: what the simulator says of either case is what the allocator counts."""
    model = seeded(Wide())
    scheduled, schedule = planned(model, recomputes)
    held, freed = (timeline(schedule, kind).peak for kind in ("retained", "accumulated"))
    assert freed < held / 2

    def first() -> None:
        model.zero_grad()
        step(scheduled)

    first()
    model.zero_grad()
    assert peak_bytes(lambda: step(scheduled)) == held
    assert peak_bytes(lambda: step(scheduled)) == freed
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    step(model)
    step(model)
    for parameter, actual in zip(model.parameters(), gradients, strict=True):
        assert torch.equal(actual, parameter.grad)


def in_backward(model: nn.Module, seen: list[str]) -> None:
    """An optimizer in backward: every parameter is updated, and its gradient freed, when it has come."""

    def hook(name: str) -> Callable[[torch.Tensor], None]:
        def update(parameter: torch.Tensor) -> None:
            seen.append(name)
            with torch.no_grad():
                parameter.sub_(parameter.grad, alpha=1e-4)  # type: ignore[arg-type]
            parameter.grad = None

        return update

    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(hook(name))


@pytest.mark.quick("just_in_time")
@pytest.mark.compiled
@pytest.mark.parametrize("recomputes", [no_recomputes, just_in_time])
def test_an_optimizer_in_backward_is_eagers_and_frees_gradients(recomputes: Any) -> None:
    eager, model = seeded(Wide()), seeded(Wide())
    seen: list[str] = []
    in_backward(eager, [])
    in_backward(model, seen)
    scheduled, schedule = planned(model, recomputes)
    for seed in range(3):
        step(eager, seed)
        step(scheduled, seed)
        for left, right in zip(model.parameters(), eager.parameters(), strict=True):
            assert torch.equal(left, right)
    order = seen[: len(seen) // 3]
    assert order.index("layers.4.weight") < order.index("layers.2.weight") < order.index("layers.0.weight")
    assert order.index("tied.weight") > order.index("layers.0.weight")  # its second use comes last
    assert peak_bytes(lambda: step(scheduled)) <= timeline(schedule, "consumed").peak


@pytest.mark.compiled
def test_a_parameter_that_is_still_read_must_not_be_written_to() -> None:
    model = seeded(Wide())
    scheduled, _ = planned(model)

    def hook(_: torch.Tensor) -> None:
        with torch.no_grad():
            model.layers[0].weight.mul_(0.5)

    model.layers[4].weight.register_post_accumulate_grad_hook(hook)
    with pytest.raises(ExecutionError, match=r"parameter 'layers.0.weight' was modified in place"):
        step(scheduled)


@pytest.mark.slow
@pytest.mark.compiled
def test_part_of_the_gradients() -> None:
    """`torch.autograd.grad` for some parameters runs backward as far as it must."""
    model = seeded(Wide())
    scheduled, _ = planned(model)
    for wanted in (["layers.4.weight"], ["layers.0.weight"], ["layers.3.bias", "tied.weight"]):
        parameters = [model.get_parameter(name) for name in wanted]
        results = []
        for module in (model, scheduled):
            torch.manual_seed(0)
            results.append(torch.autograd.grad(module(data(16, WIDTH)), parameters))
        for ours, eagers in zip(*results, strict=True):
            assert torch.equal(ours, eagers)


@pytest.mark.compiled
def test_backward_runs_once_whether_it_ended_or_not() -> None:
    model = seeded(Wide())
    scheduled, _ = planned(model)
    loss = scheduled(data(16, WIDTH))
    torch.autograd.grad(loss, [model.layers[4].weight], retain_graph=True)
    with pytest.raises(ExecutionError, match="a second time"):
        loss.backward()


def test_deliveries_of_a_step() -> None:
    """Each as soon as there is 1 MiB; nothing later touches the gradients or reads the parameters."""
    graph = expand(planned(seeded(Wide()))[1]).graph
    linked = link(graph)
    delivered = [event.gradients for event in linked.events if isinstance(event, Deliver)]
    assert sorted(number for numbers in delivered for number in numbers) == list(range(len(graph.gradients)))
    assert len(delivered) == 6
    late = set()
    for event in linked.events[linked.backward_start + 1 :]:
        if isinstance(event, Deliver):
            late |= {graph.root[v] for number in event.gradients for v in graph.gradients[number]}
        elif isinstance(event, Execution):
            op = graph.operations[event.op]
            assert late.isdisjoint(graph.root[v] for v in (*op.reads, *op.writes) if v is not None)
