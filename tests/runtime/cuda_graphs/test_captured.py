"""Steps that are recorded and replayed are eager's to the bit, whatever happens around them; what cannot be replayed
says why."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from remate_runtime import EngineError, ExecutionError, apply
from remate_runtime.applied import planned_model
from remate_runtime.engine import in_cuda_graphs

from ..small import Layers, Mlp, Normed, Tied, data, seeded
from ..stepping import everything, in_blocks, just_in_time, no_recomputes, schedule_of
from .recorder import OnCpu

pytestmark = pytest.mark.eager


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> list[OnCpu]:
    """Those that models ask for, which record on the CPU."""
    collected: list[OnCpu] = []

    def recorder(device: torch.device) -> OnCpu:
        collected.append(OnCpu(device))
        return collected[-1]

    monkeypatch.setattr(planned_model, "in_cuda_graphs", partial(in_cuda_graphs, recorder=recorder, device_type="cpu"))
    return collected


def both(model: Any, args: tuple[Any, ...], recomputes: Callable[..., Any] = just_in_time) -> tuple[Any, Any]:
    """The model, and a copy of it with graphs."""
    return model, apply(copy.deepcopy(model), in_blocks(model, args, recomputes), cuda_graphs=True)


def loss_of(output: Any) -> torch.Tensor:
    return output if output.ndim == 0 else output.square().mean()


def assert_same_state(model: Any, planned: Any) -> None:
    for (name, left), (_, other) in zip(model.named_parameters(), planned.named_parameters(), strict=True):
        assert torch.equal(left, other), name
        assert (left.grad is None) == (other.grad is None), name
        if left.grad is not None:
            assert torch.equal(left.grad, other.grad), name
            assert left.grad.stride() == other.grad.stride(), name
    for (name, left), (_, other) in zip(model.named_buffers(), planned.named_buffers(), strict=True):
        assert torch.equal(left, other), name


def train(model: Any, batches: list[Any], lr: float = 0.1) -> list[torch.Tensor]:
    losses = []
    for x in batches:
        losses.append(loss_of(model(x)))
        losses[-1].backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=lr)
        model.zero_grad()
    return [loss.detach() for loss in losses]


@pytest.mark.quick("Mlp-just_in_time")
@pytest.mark.parametrize("recomputes", [no_recomputes, everything, just_in_time])
@pytest.mark.parametrize("make", [Layers, Normed, Mlp])
def test_a_loop_is_recorded_once_and_replayed(make: Any, recomputes: Any, recorders: list[OnCpu]) -> None:
    shape = {Layers: (16, 64), Normed: (4, 3, 6, 6), Mlp: (4, 8)}[make]
    model, planned = both(seeded(make()), (data(*shape),), recomputes)
    batches = [data(*shape, seed=seed) for seed in range(5)]
    assert all(map(torch.equal, train(planned, batches), train(model, batches)))
    assert_same_state(model, planned)
    (recorder,) = recorders
    assert (recorder.recordings, recorder.replays) == (1, 5 * 2)


def test_gradients_and_outputs_outlive_the_next_replay(recorders: list[OnCpu]) -> None:
    model, planned = both(seeded(Mlp()), (data(4, 8),))
    by_name: dict[str, list[Any]] = {}
    for name, item in (("eager", model), ("planned", planned)):
        by_name[name] = []
        for seed in range(3):  # gradients are accumulated
            y = item(data(4, 8, seed=seed))
            loss_of(y).backward()
            by_name[name] += [y.detach(), item.a.weight.grad.clone()]
    assert all(map(torch.equal, by_name["eager"], by_name["planned"]))
    assert_same_state(model, planned)


def test_calls_that_overlap_run_without_graphs(recorders: list[OnCpu]) -> None:
    model, planned = both(seeded(Mlp()), (data(4, 8),))
    for module in (model, planned):
        first, second = loss_of(module(data(4, 8))), loss_of(module(data(4, 8, seed=2)))
        (first + 2 * second).backward()
    assert_same_state(model, planned)
    assert recorders[0].replays == 2
    train(planned, [data(4, 8)])
    assert recorders[0].replays == 4


def test_a_forward_without_backward_gives_the_pool_back(recorders: list[OnCpu]) -> None:
    model, planned = both(seeded(Mlp()), (data(4, 8),))
    for module in (model, planned):
        module(data(4, 8, seed=3))
        train(module, [data(4, 8)])
    assert_same_state(model, planned)
    assert recorders[0].replays == 1 + 2


def test_parameters_that_were_moved_are_read_where_they_are(recorders: list[OnCpu]) -> None:
    model, planned = both(seeded(Mlp()), (data(4, 8),))
    kept: list[torch.Tensor] = []
    for at in range(6):
        told = pytest.warns(UserWarning, match="without CUDA graphs from now on: parameters or buffers were moved")
        with told if at == 4 else nullcontext():
            train(planned, [data(4, 8)])
        train(model, [data(4, 8)])
        assert_same_state(model, planned)
        kept.append(planned.a.weight.data)  # or its memory would come back
        planned.a.weight.data = planned.a.weight.data.clone()
    assert recorders[0].recordings == 4


def test_a_parameter_moved_before_backward_is_refused(recorders: list[OnCpu]) -> None:
    _, planned = both(seeded(Mlp()), (data(4, 8),))
    loss = loss_of(planned(data(4, 8)))
    planned.b.weight.data = planned.b.weight.data.clone()
    with pytest.raises(ExecutionError, match="got other data between forward and backward"):
        loss.backward()


def test_frozen_parameters_and_inputs_with_gradients(recorders: list[OnCpu]) -> None:
    x = data(4, 8).requires_grad_()
    model = seeded(Mlp())
    planned = apply(copy.deepcopy(model), schedule_of(model, (x,)), cuda_graphs=True)
    for module in (model, planned):
        module.a.weight.requires_grad_(False)
        for seed in range(3):
            given = data(4, 8, seed=seed).requires_grad_()
            loss_of(module(given)).backward()
            module.seen = given.grad
    assert torch.equal(model.seen, planned.seen)
    assert_same_state(model, planned)
    assert recorders[0].replays == 6


def test_an_optimizer_in_backward(recorders: list[OnCpu]) -> None:
    model, planned = both(seeded(Layers()), (data(16, 64),))

    def step(parameter: torch.Tensor) -> None:
        with torch.no_grad():
            assert parameter.grad is not None
            parameter.sub_(parameter.grad, alpha=0.1)
        parameter.grad = None

    for module in (model, planned):
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        for seed in range(4):
            module(data(16, 64, seed=seed)).backward()
    assert_same_state(model, planned)


class Twice(nn.Module):
    """Outputs that share memory, of an input that repeats itself."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = torch.tanh(self.lin(x))
        return y, y.view(-1, 2), y.t()


def test_outputs_keep_their_layout_and_share_memory(recorders: list[OnCpu]) -> None:
    model = seeded(Twice())
    x = data(1, 8).expand(4, 8)
    planned = apply(copy.deepcopy(model), schedule_of(model, (x,)), cuda_graphs=True)
    for module in (model, planned):
        for seed in range(3):
            y, flat, turned = module(data(1, 8, seed=seed).expand(4, 8))
            assert y.data_ptr() == flat.data_ptr() == turned.data_ptr()
            assert turned.stride() == (1, 6)
            (y.sum() + flat.square().sum() + turned[0].sum()).backward()
    assert_same_state(model, planned)


def test_copies_and_pickles_are_replayed_too(recorders: list[OnCpu]) -> None:
    model, planned = both(seeded(Tied()), (torch.arange(5),))
    for other in (copy.deepcopy(planned), pickle.loads(pickle.dumps(planned))):
        batches = [torch.arange(5), torch.arange(5).flip(0)]
        eager = copy.deepcopy(model)
        assert all(map(torch.equal, train(other, batches), train(eager, batches)))
        assert_same_state(eager, other)
        assert recorders[-1].replays == 4
    assert len(recorders) == 2


def test_without_gradients_nothing_is_recorded(recorders: list[OnCpu]) -> None:
    model, planned = both(seeded(Mlp()), (data(4, 8),))
    with torch.no_grad():
        assert torch.equal(planned(data(4, 8)), model(data(4, 8)))
    assert not recorders


def test_what_cannot_be_recorded_runs_without(recorders: list[OnCpu], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: OnCpu) -> Any:
        self.abandon()
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr(OnCpu, "end", refuse)
    model, planned = both(seeded(Mlp()), (data(4, 8),))
    with pytest.warns(UserWarning, match="could not be recorded: CUDA error: operation not permitted"):
        train(planned, [data(4, 8)])
    with warnings.catch_warnings(action="error"):
        train(planned, [data(4, 8)])
    train(model, [data(4, 8)] * 2)
    assert_same_state(model, planned)


class Returning(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.lin(x), x


@pytest.mark.parametrize(
    ("make", "recomputes", "options", "reason"),
    [
        (Returning, no_recomputes, {}, "is '[a-z.]*x' itself"),
        (Mlp, no_recomputes, {"record_functions": True}, "record_functions names operations while they are called"),
    ],
)
def test_steps_that_cannot_be_replayed_say_why(
    make: Any, recomputes: Any, options: dict[str, Any], reason: str, recorders: list[OnCpu]
) -> None:
    model, x = seeded(make()), data(4, 8)
    schedule = schedule_of(model, (x,), recomputes=recomputes)
    with pytest.warns(UserWarning, match=f"without CUDA graphs: .*{reason}"):
        planned = apply(copy.deepcopy(model), schedule, cuda_graphs=True, **options)
    for module in (planned, model):
        torch.manual_seed(5)
        y = module(x)
        loss_of(y[0] if isinstance(y, tuple) else y).backward()
    assert_same_state(model, planned)
    assert not recorders


@pytest.mark.parametrize(("recomputes", "graphs"), [(no_recomputes, 2), (everything, 6)])
def test_random_operators_draw_eagers_numbers(recomputes: Any, graphs: int, recorders: list[OnCpu]) -> None:
    model, planned = both(seeded(Mlp(0.5)), (data(4, 8),), recomputes)
    results = []
    for module in (model, planned):
        torch.manual_seed(3)
        losses = []
        for seed in range(4):
            losses.append(loss_of(module(data(4, 8, seed=seed))))
            torch.rand(seed)  # between forward and backward
            losses[-1].backward()
        results.append([*losses, torch.get_rng_state()])
    assert all(map(torch.equal, *results))
    assert_same_state(model, planned)
    assert recorders[0].replays == 4 * graphs


def test_other_devices_and_the_arena_are_refused() -> None:
    model, x = seeded(Mlp()), data(4, 8)
    schedule = schedule_of(model, (x,))
    with pytest.raises(EngineError, match="for models on CUDA, and this one is on cpu"):
        apply(model, schedule, cuda_graphs=True)(x)
    with pytest.raises(EngineError, match="'arena' keeps its results"):
        apply(model, schedule, engine="arena", cuda_graphs=True)
