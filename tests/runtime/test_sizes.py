"""One schedule at many sizes: what it is there, what it computes, what it takes, and which calls it refuses."""

from __future__ import annotations

import copy
import logging
import pickle
import random
import warnings
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import remate
import remate_runtime
from remate.step_measurement.allocator import peak_bytes
from remate_runtime import BindError, Schedule, SteppedAsideWarning, apply
from remate_runtime.applied import step_at_size
from remate_runtime.flat_step import Expanded, expand
from remate_runtime.format import Dimension, at_size, decode, encode
from remate_runtime.link import RecomputeRun, Run, fitting, link, simulate
from remate_runtime.link.fitting import fitted, fitted_and_linked
from remate_runtime.link.levels import MemoryLevels
from remate_runtime.link.sizes import SizedLinks
from remate_runtime.link.verifier import verify

from .sized import Attention, B, T, ranged, sized
from .small import data, seeded
from .stepping import assert_same, just_in_time, schedule_of, step

SIZES = [(11, 13), (2, 2), (24, 40), (2, 40), (24, 2), (3, 7), (5, 16), (7, 13), (16, 31), (23, 39), (9, 24), (11, 3)]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(8, 16), nn.Linear(16, 4), nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.drop(torch.tanh(self.a(x)))).square().mean()


def labels(b: int, t: int) -> torch.Tensor:
    return torch.randint(6, (b, t), generator=torch.Generator().manual_seed(b * t))


def call(b: int, t: int) -> tuple[torch.Tensor, torch.Tensor]:
    return data(b, t, 6), labels(b, t)


@pytest.fixture(scope="module")
def attention() -> Schedule:
    """Planned at 70% of the peak at the planned size, with the costs of the roofline."""
    return ranged(remate.plan(seeded(Attention()), call(B, T), budget="70%", cost="cpu", effort="quick"))


@pytest.fixture(scope="module")
def mlp() -> Schedule:
    schedule = schedule_of(seeded(Mlp()), (data(B, 8),), recomputes=just_in_time)
    return sized(schedule, b=Dimension(min=2, max=40, planned=B))


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_at_a_size_it_is_the_schedule_of_a_capture_there(size: tuple[int, int]) -> None:
    """Operation by operation, types, strides and arguments included."""
    model = seeded(Attention())
    general = ranged(schedule_of(model, call(B, T), recomputes=just_in_time))
    own = schedule_of(model, call(*size), recomputes=just_in_time)
    here = at_size(general, {"b": size[0], "t": size[1]})
    assert expand(here) == expand(own)
    assert here.model.fingerprint == own.model.fingerprint
    assert decode(encode(general)) == decode(encode(decode(encode(general))))


@pytest.mark.quick("(2, 2)")
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.eager
def test_gradients_are_eagers_and_the_peak_is_the_predicted_one(attention: Schedule, size: tuple[int, int]) -> None:
    model, given = seeded(Attention()), call(*size)
    planned = apply(copy.deepcopy(model), attention)
    assert_same(step(planned, given), step(model, given))
    plan = fitted(attention, {"b": size[0], "t": size[1]}).schedule
    expanded = expand(plan)
    predicted = simulate(link(expanded.graph, expanded.recomputes)).peak

    def run() -> None:
        planned(*given)["loss"].backward()

    for _ in range(2):
        planned.zero_grad()
        peak = peak_bytes(run)
    assert peak == predicted - (4 if "drop.grad" in _at_peak(expanded) else 0)  # 12 bytes, where the roofline says 16


def _at_peak(expanded: Expanded) -> str:
    linked = link(expanded.graph, expanded.recomputes)
    event = linked.events[simulate(linked).peak_at]
    return expanded.graph.operations[event.op].id if isinstance(event, Run | RecomputeRun) else ""


@pytest.mark.slow
def test_the_mlp_at_every_size(mlp: Schedule) -> None:
    model = seeded(Mlp())
    planned = apply(copy.deepcopy(model), mlp)
    for batch in range(2, 41):
        assert_same(step(planned, (data(batch, 8),)), step(model, (data(batch, 8),)))


def test_recomputes_that_no_budget_calls_for_are_left_out(
    attention: Schedule, mlp: Schedule, caplog: pytest.LogCaptureFixture
) -> None:
    assert fitted(mlp).dropped == fitted(mlp, {"b": B}).dropped == 0  # what is planned there is what the file says
    assert fitted(mlp, {"b": B + 1}).dropped > 0
    assert fitted(attention).dropped == 0
    assert fitted(attention, {"b": B}).dropped == 0
    assert len(expand(fitted(attention).schedule).recomputes) > 0
    small = fitted(attention, {"b": 3})
    assert small.dropped == len(expand(attention).recomputes)
    assert expand(small.schedule).recomputes == ()
    large = fitted(attention, {"b": 24})
    assert large.dropped == 0
    assert len(expand(large.schedule).recomputes) == small.dropped
    planned = apply(seeded(Attention()), attention)
    with caplog.at_level(logging.INFO, "remate_runtime"):
        planned(*call(3, T))
        planned(*call(3, T))
        planned(*call(B, T))
    ours = [
        record for record in caplog.records if record.name.startswith("remate_runtime")
    ]  # torch's compiler logs, too
    told = [record.getMessage() for record in ours if "engine" not in record.name]  # engines tell more
    assert told == [
        f"schedule {attention.name!r} at b=3, t=13: {small.dropped} of {small.dropped} recomputations are left "
        "out, because the budget of 68.8 KiB does not need them"
    ]


@pytest.mark.slow
def test_some_recomputes_are_left_out_where_the_budget_calls_for_some(attention: Schedule) -> None:
    """Between the sizes at which all are needed, and none."""
    model, dropped = seeded(Attention()), list[int]()
    planned = apply(copy.deepcopy(model), attention)
    every = expand(attention).recomputes
    for batch in range(3, 24):
        here = fitted(attention, {"b": batch})
        expanded = expand(here.schedule)
        peak = simulate(link(expanded.graph, expanded.recomputes)).peak
        assert peak <= attention.solve.budget or here.dropped == 0
        assert [recompute for recompute in every if recompute in expanded.recomputes] == [*expanded.recomputes]
        assert here.planned - here.dropped == len(expanded.recomputes)
        if 0 < here.dropped < here.planned and here.dropped not in dropped:
            assert_same(step(planned, call(batch, T)), step(model, call(batch, T)))
        dropped.append(here.dropped)
    assert len(set(dropped)) > 2
    assert dropped == sorted(dropped, reverse=True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (call(25, 4), r"the input 'x' is f32.25,4,6. on cpu: b is 25, the schedule is for 2 to 24 .dimension 0."),
        (call(1, 4), r"b is 1, the schedule is for 2 to 24"),
        (
            call(4, 41),
            r"the input 'x' is .*: t is 41, the schedule is for 2 to 40 .dimension 1.\n  apply.*pad or cut it",
        ),
        (
            (data(4, 8, 6), labels(4, 7)),
            r"the input 'labels' must be i64.b,t. with b=4 by 'x', t=8 by 'x', got i64.4,7.",
        ),
        ((data(4, 8, 7), labels(4, 8)), r"the input 'x' must be f32.b,t,6. with b=4 by 'x'"),
        ((data(4, 8), labels(4, 8)), r"the input 'x' must be f32.b,t,6., got f32.4,8."),
        ((data(4, 8, 6).double(), labels(4, 8)), r"the input 'x' must be f32.4,8,6. on cpu, got f64"),
        ((data(4, 8, 6),), r"the input 'labels' was a tensor i64.b,t. when planning, now it is None"),
    ],
)
def test_other_calls_are_refused(attention: Schedule, given: Any, said: str) -> None:
    planned = apply(seeded(Attention()), attention)
    with pytest.raises(BindError, match=said):
        planned(*given)


def test_steps_of_a_dimension() -> None:
    schedule = schedule_of(seeded(Attention()), call(B, T))
    planned = apply(seeded(Attention()), ranged(schedule, t=Dimension(min=13, max=39, multiple=13, planned=T)))
    planned(*call(3, 26))
    with pytest.raises(BindError, match="t is 27, the schedule is for 13 to 39 in steps of 13"):
        planned(*call(3, 27))


@pytest.mark.slow
def test_what_is_out_of_range_runs_another_schedule_or_the_models_own(attention: Schedule) -> None:
    model = seeded(Attention())
    item = schedule_of(model, call(1, 5))
    planned = apply(copy.deepcopy(model), [attention, item], otherwise="original")
    with warnings.catch_warnings():
        warnings.simplefilter("error", SteppedAsideWarning)
        for size in ((3, 7), (1, 5), (24, 40)):
            assert_same(step(planned, call(*size)), step(model, call(*size)))
    with pytest.warns(SteppedAsideWarning, match="b is 30, the schedule is for 2 to 24"):
        assert_same(step(planned, call(30, 7)), step(model, call(30, 7)))


def test_a_loop_over_batches_of_any_length_and_a_smaller_last_one(attention: Schedule) -> None:
    """The loop of a trainer with dynamic padding."""
    lengths = [13, 9, 30, 9, 22, 13, 40, 2]
    batches = [call(8, t) for t in lengths] + [call(3, 17)]
    results = []
    for schedule in (None, attention):
        model = seeded(Attention())
        used = model if schedule is None else apply(model, schedule)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(0)
        losses = []
        for batch in batches * 2:
            loss = used(*batch)["loss"]
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        results.append(torch.stack(losses))
    assert torch.equal(results[1], results[0])


def test_programs_are_kept_by_size_and_boundedly(attention: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    events = len(verify(fitted(attention, {"b": 3, "t": 4}).schedule).linked.events)
    monkeypatch.setattr(step_at_size, "KEPT_BYTES", int(3.5 * events * step_at_size._EVENT_BYTES))
    collected: list[Any] = []
    fit = step_at_size.fitted_and_linked

    def counted(schedule: Schedule, dims: Any, links: Any) -> Any:
        collected.append(tuple(dims.values()))
        return fit(schedule, dims, links)

    monkeypatch.setattr(step_at_size, "fitted_and_linked", counted)
    planned = apply(seeded(Attention()), attention)
    for size in ((3, 4), (3, 4), (5, 4), (3, 4), (6, 4), (7, 4), (3, 4), (5, 4)):
        loss = planned(*call(*size))["loss"]
    loss.backward()  # of a step that is kept no longer, or again
    assert collected == [
        (B, T),
        (3, 4),
        (5, 4),
        (6, 4),
        (7, 4),
        (5, 4),
    ]  # (3, 4) was called again before it was the oldest


def test_backward_of_a_step_that_is_no_longer_kept(attention: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_at_size, "KEPT_BYTES", 1)
    model, planned = seeded(Attention()), apply(seeded(Attention()), attention)
    results = []
    for module in (model, planned):
        torch.manual_seed(0)
        losses = [module(*call(*size))["loss"] for size in ((3, 4), (5, 6))]
        for loss in losses:
            loss.backward()
        results.append([p.grad.clone() for p in module.parameters() if p.grad is not None])
    assert all(torch.equal(ours, eagers) for ours, eagers in zip(*results, strict=True))


def test_parameters_frozen_later_at_every_size(attention: Schedule) -> None:
    model = seeded(Attention())
    planned = apply(copy.deepcopy(model), attention)
    for module in (model, planned):
        module.qkv.requires_grad_(False)
    for size in ((3, 7), (11, 13)):
        assert_same(step(planned, call(*size)), step(model, call(*size)))


def test_an_output_that_follows_from_a_size(attention: Schedule) -> None:
    assert apply(seeded(Attention()), attention)(*call(3, 7))["length"] == 7


def test_verify_copies_and_evaluation(attention: Schedule) -> None:
    model = seeded(Attention())
    planned = apply(model, attention, verify=(call(5, 9), {}))
    for copied in (copy.deepcopy(planned), pickle.loads(pickle.dumps(planned))):
        assert_same(step(copied, call(4, 6)), step(model, call(4, 6)))
    with torch.no_grad():
        assert planned(*call(3, 5))["length"] == 5


def test_an_edit_of_the_step_is_refused_at_once(attention: Schedule) -> None:
    block = next(iter(attention.blocks.values()))
    forward = tuple(replace(op, args=("%view_2", 2.0)) if op.id == "div" else op for op in block.forward)
    name = next(iter(attention.blocks))
    edited = replace(attention, blocks={**attention.blocks, name: replace(block, forward=forward)})
    with pytest.raises(Exception, match="R083"):
        apply(seeded(Attention()), edited)


def test_sizes_that_are_prepared_need_nothing_at_their_first_call(
    attention: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = apply(seeded(Attention()), attention)
    remate_runtime.prepare(planned, [{"b": 3, "t": 4}, {"b": 5}])
    monkeypatch.setattr(step_at_size, "fitted_and_linked", None)
    for size in ((3, 4), (5, T)):
        assert_same(step(planned, call(*size)), step(seeded(Attention()), call(*size)))
    with pytest.raises(TypeError):
        planned(*call(4, 4))


def test_a_size_that_no_schedule_is_for_cannot_be_prepared(attention: Schedule) -> None:
    with pytest.raises(BindError, match="t is 4000"):
        remate_runtime.prepare(apply(seeded(Attention()), attention), [{"t": 4000}])
    with pytest.raises(BindError, match="no schedule was applied"):
        remate_runtime.prepare(seeded(Attention()), [{"t": 4}])


def test_many_sizes_are_warned_of_once(attention: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_at_size, "MANY_SIZES", 4)
    planned = apply(seeded(Attention()), attention)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        remate_runtime.prepare(planned, [{"b": b} for b in range(3, 11)])
    assert [str(one.message) for one in caught if "was prepared for 4 sizes" in str(one.message)]
    assert len([one for one in caught if "sizes, which took" in str(one.message)]) == 1


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_fitted_step_is_linked_as_its_schedule_says(attention: Schedule, size: tuple[int, int]) -> None:
    plain, linked = fitted_and_linked(attention, dict(zip(("b", "t"), size, strict=True)))
    assert verify(plain.schedule, warned=True) == verify(plain.schedule, warned=True, linked_before=linked)


@pytest.mark.slow
def test_fitting_simulates_a_few_steps_at_most(attention: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan is chosen once for all sizes, and only a few are."""
    simulated: list[int] = []
    usual, links = SizedLinks.link, SizedLinks()

    def counting(*step: Any) -> Any:
        simulated[-1] += 1
        return usual(*step)

    monkeypatch.setattr(SizedLinks, "link", counting)
    sizes = [{"b": b, "t": t} for b in range(2, 25) for t in range(2, 41, 3)]
    plans = set[str]()
    for again in range(2):
        for dims in sizes:
            simulated.append(0)
            fit = fitted_and_linked(attention, dims, links)[0]
            plans.add(repr(fit.schedule.statements) if fit.dropped else "")
            assert simulated[-1] <= (5 if again else (4 + fitting._TRIES) * fitting.RUNGS)
    assert 4 < len(plans) <= fitting.RUNGS + 1


def test_the_few_plans_save_nearly_as_much_as_one_for_each_size(attention: Schedule) -> None:
    links, saved, most = SizedLinks(), 0, 0
    for t in range(2, 41):
        fit, linked = fitted_and_linked(attention, {"b": 5, "t": t}, links)
        if linked is None or fit.dropped in (0, fit.planned):
            continue
        expanded, budget = linked.expanded, attention.solve.budget
        assert linked.peak <= budget
        time = simulate(link(expanded.graph, expanded.recomputes)).time
        saved += time - simulate(linked.linked).time
        most += time - simulate(fitting._left(expanded, budget)[1].linked).time
    assert 0.8 * most < saved


def test_levels_are_those_of_a_plain_list() -> None:
    chance = random.Random(0)
    for _ in range(50):
        held = [chance.randint(0, 50) for _ in range(chance.randint(1, 40))]
        levels = MemoryLevels(held)
        for _ in range(20):
            start, end, more = *sorted(chance.choices(range(len(held) + 1), k=2)), chance.randint(-30, 30)
            levels.add(start, end, more)
            held[start:end] = [each + more for each in held[start:end]]
            assert levels.peak == max(held)
