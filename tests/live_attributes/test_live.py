"""`remate.plan(live=...)`: attributes that change while training are read at every call, and gradients are eager's."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import nn

import remate
from remate_runtime import BindError, EngineError, Schedule, SteppedAsideWarning, apply
from remate_runtime.format import Live, decode, encode

from .models import LIVE, TARGET, Annealed, X, set_all

# Shares at which torch's own two kernels of dropout on the CPU agree to the bit, one of which eager runs.
_P = st.sampled_from([0.1, 0.2, 0.25, 0.3, 0.37, 0.4, 0.5])
_ALPHA, _SHARE = st.floats(-2, 2), st.floats(0.01, 0.99)
VALUES = st.fixed_dictionaries(
    {"p0": _P, "p1": _P, "p2": _P, "alpha": _ALPHA, "noise": st.floats(0.01, 9), "tau": st.floats(0.3, 4)}
    | {"gamma": st.one_of(st.floats(1, 5), st.integers(1, 4)), "smoothing": _SHARE}
)
SOME = [
    {"p0": 0.1, "p1": 0.3, "p2": 0.37, "alpha": 0.0, "noise": 0.5, "tau": 2.0, "gamma": 1, "smoothing": 0.3},
    {"p0": 0.4, "p1": 0.2, "p2": 0.25, "alpha": 0.35, "noise": 3.7, "tau": 0.9, "gamma": 1.5, "smoothing": 0.01},
    {"p0": 0.5, "p1": 0.5, "p2": 0.3, "alpha": 1.0, "noise": 1e-3, "tau": 0.3, "gamma": 3.3, "smoothing": 1.0},
]


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    planned_schedule = remate.plan(Annealed(), (X, TARGET), budget="90%", cost="cpu", effort="quick", live=LIVE)
    return decode(encode(planned_schedule))


def pair(schedule: Schedule, **options: Any) -> tuple[Any, Any]:
    """A model with the schedule, and its copy without."""
    torch.manual_seed(0)
    model = Annealed()
    return apply(model, schedule, **options), copy.deepcopy(model)


def gradients(model: nn.Module, loss: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return len(left) == len(right) > 0 and all(map(torch.equal, left, right))


def forward(model: nn.Module, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return model(X, TARGET)


@pytest.mark.slow
@settings(max_examples=15, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(VALUES, min_size=1, max_size=3))
def test_gradients_are_eagers_to_the_bit_whatever_the_attributes_are(schedule: Schedule, steps: list[Any]) -> None:
    planned, eager = pair(schedule)
    for seed, values in enumerate([*SOME[:1], *steps]):
        losses = []
        for model in (planned, eager):
            set_all(model, values)
            losses.append(forward(model, seed))
        assert torch.equal(*losses)
        assert equal(gradients(planned, losses[0]), gradients(eager, losses[1]))


@pytest.mark.slow
def test_training_while_they_change_ends_with_eagers_parameters(schedule: Schedule) -> None:
    planned, eager = pair(schedule)
    for model in (planned, eager):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for seed, values in enumerate(SOME * 2):
            set_all(model, values)
            gradients(model, forward(model, seed))
            optimizer.step()
    assert equal([*planned.parameters()], [*eager.parameters()])


@pytest.mark.slow
def test_a_step_keeps_what_it_began_with(schedule: Schedule) -> None:
    """Also two forwards that wait for their backward, each with its own."""
    planned, eager = pair(schedule)
    results: list[list[list[torch.Tensor]]] = []
    for model in (planned, eager):
        waiting = []
        for seed, values in enumerate(SOME[:2]):
            set_all(model, values)
            waiting.append(forward(model, seed))
        set_all(model, SOME[2])
        results.append([gradients(model, loss) for loss in reversed(waiting)])
    assert all(map(equal, *results))


@pytest.mark.slow
def test_without_gradients_they_are_read_too(schedule: Schedule) -> None:
    planned, eager = pair(schedule)
    with torch.no_grad():
        for values in SOME:
            set_all(planned, values)
            set_all(eager, values)
            assert torch.equal(forward(planned), forward(eager))


@pytest.mark.slow
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_read_their_own(schedule: Schedule, copied: Any) -> None:
    planned, eager = pair(schedule)
    twin = copied(planned)
    set_all(planned, SOME[0])
    for model in (twin, eager):
        set_all(model, SOME[1])
    assert equal(gradients(twin, forward(twin)), gradients(eager, forward(eager)))


@pytest.mark.slow
def test_verify_runs_with_what_they_are_now(schedule: Schedule) -> None:
    model = Annealed()
    set_all(model, SOME[1])
    apply(model, schedule, verify=((X, TARGET), {}))


@pytest.mark.slow
def test_blocks_that_read_their_own_are_one_template(schedule: Schedule) -> None:
    inner = [
        instance.block for instance in schedule.program if schedule.blocks[instance.block].live == ("drop.p", "alpha")
    ]
    assert len(inner) == 3
    assert len(set(inner)) == 2  # the first one has no gradient to hand on
    block = schedule.blocks[inner[-1]]
    written = [arg["number"] for op in block.forward for arg in op.args if isinstance(arg, dict) and "number" in arg]
    assert "1 - %drop.p" in written


@pytest.mark.slow
def test_ranges_are_what_forward_takes_as_the_same_step(schedule: Schedule) -> None:
    live = schedule.model.live
    assert live["blocks.2.drop.p"] == Live(planned=0.1, above=0, below=1)  # operators of their own at both ends
    assert live["config.smoothing"] == Live(planned=0.1, above=0, max=1)
    assert live["blocks.0.alpha"] == live["blocks.2.alpha"] == Live(planned=0.5)
    assert live["gamma"] == Live(planned=2, above=0)  # an integer: calls may have integers
    assert schedule.solve.settings is not None
    assert list(schedule.solve.settings.live) == LIVE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda m: setattr(m.blocks[1].drop, "p", 0.0),
            "'blocks.1.drop.p' is 0.0, and the schedule is for above 0 and below 1",
        ),
        (lambda m: setattr(m.blocks[1].drop, "p", 1.0), "'blocks.1.drop.p' is 1.0"),
        (lambda m: setattr(m, "gamma", 0), "'gamma' is 0, and the schedule is for above 0"),
        (lambda m: setattr(m, "tau", float("nan")), "'tau' is nan"),
        (lambda m: setattr(m, "tau", float("inf")), "'tau' is inf"),
        (lambda m: setattr(m, "tau", 1), "'tau' is the integer 1, planned was a float"),
        (lambda m: setattr(m, "tau", True), "'tau' is of type bool"),
        (lambda m: setattr(m, "tau", torch.tensor(0.5)), "'tau' is of type Tensor"),
        (lambda m: delattr(m, "tau"), "'tau' is missing"),
    ],
)
def test_what_the_step_is_not_for_is_refused(schedule: Schedule, change: Any, told: str) -> None:
    planned, _ = pair(schedule)
    change(planned)
    with pytest.raises(BindError, match=re.escape(told)):
        forward(planned)


@pytest.mark.slow
def test_the_models_own_forward_may_run_there(schedule: Schedule) -> None:
    planned, eager = pair(schedule, otherwise="original")
    for model in (planned, eager):
        model.blocks[0].drop.p = 0.0
    with pytest.warns(SteppedAsideWarning, match="is 0.0, and the schedule is for above 0 and below 1"):
        loss = forward(planned)
    assert equal(gradients(planned, loss), gradients(eager, forward(eager)))


@pytest.mark.slow
def test_a_config_that_is_replaced_is_read(schedule: Schedule) -> None:
    planned, eager = pair(schedule)
    for model in (planned, eager):
        model.config = copy.copy(model.config)
        model.config.smoothing = 0.4
    assert equal(gradients(planned, forward(planned)), gradients(eager, forward(eager)))


@pytest.mark.slow
def test_compiled_code_holds_none_of_them(schedule: Schedule) -> None:
    try:
        planned, eager = pair(schedule, engine="compiled")
    except EngineError as error:
        pytest.skip(str(error))
    for values in SOME[:2]:
        results = []
        for model in (planned, eager):
            set_all(model, values)
            results.append(gradients(model, forward(model)))
        for left, right in zip(*results, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-6)
