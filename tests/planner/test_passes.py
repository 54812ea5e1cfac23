"""Bounds for chains of which little is kept: never above the exact optimum, and higher than the bounds of cuts."""

from __future__ import annotations

import itertools

import pytest

from remate.strategy import Context, Deadline, Request, StepInstance
from remate.strategy.bound import passes as module
from remate.strategy.bound.link_model import LinkModel, LinkQuery, shape_of
from remate.strategy.bound.spine import spine
from remate_runtime.format import Gradients

from .exact_optimum import ExactOptimum
from .strategy_graphs import Tape
from .test_cuts import proven
from .test_optimum import truths

STEPS = 3  # seeds that a part of the slow test takes


def chain(layers: int, carried: int, inner: int, ns: tuple[int, int], workspace: int, loss: int) -> StepInstance:
    """Layers that hand a value of `carried` bytes on, each with one of `inner` bytes that its backward reads; the loss
    reads `loss` bytes. ns: of what makes the one, and the other."""
    tape = Tape()
    x = tape.source("x", carried)
    for _ in range(layers):
        within = tape.forward((x,), (inner,), ns[1], saves_inputs=False, saves_output=True, workspace=workspace)
        x = tape.forward((x, within), (carried,), ns[0], saves_inputs=False)
    scores = tape.forward((x,), (loss,), 1)
    return StepInstance(tape.graph(tape.forward((scores,), (1,), 1)))


def compare(seeds: range, delivered: Gradients = "retained") -> tuple[int, int]:
    """Hold the bound against the truth on every budget of every step. Returns how many steps, and how often it says
    something."""
    steps = said = 0
    for name, about, optima in truths(seeds, delivered):
        steps += 1
        for budget, optimum in optima.items():
            result = proven("passes", about, budget)
            assert result <= optimum, f"{name} at {budget}: bound {result} above the optimum {optimum}"
            said += result > about.baseline.time
    return steps, said


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try the bound on every step with a chain, with many prices."""
    monkeypatch.setattr(module, "SCARCE", 0)
    monkeypatch.setattr(module, "KEPT", (0.1, 0.5, 1.2, 2.0, 5.0))


@pytest.mark.slow
@pytest.mark.usefixtures("always")
def test_a_sample_of_tiny_steps() -> None:
    steps, said = compare(range(200, 202))
    assert steps >= 8
    assert said >= 1


@pytest.mark.slow
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("delivered", ["retained", "accumulated", "consumed"])
@pytest.mark.parametrize("first", [202])
def test_tiny_steps(first: int, delivered: Gradients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remate_runtime.link.deliveries.TOGETHER", 1)  # as the truth takes gradients: one by one
    steps, _ = compare(range(first, first + STEPS), delivered)
    assert steps >= 12


@pytest.mark.slow
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("carried", [2, 3])
@pytest.mark.parametrize("ns", [(1, 9), (7, 3)])
def test_short_chains(carried: int, ns: tuple[int, int]) -> None:
    about = chain(4, carried, 7, ns, 2, 14)
    truth = ExactOptimum(about.graph)
    least = truth.least_peak()
    for budget in range(least, least + 9, 2):
        optimum = truth.fastest(budget)
        assert optimum is not None
        assert about.baseline.time < proven("passes", about, budget) <= optimum.time


def test_long_chains_are_passed_through_again() -> None:
    """Of 24 layers, two values find room beside the scores, and behind them what four layers hold."""
    about = chain(24, 10, 400, (50, 50), 20, 900)
    budget, base = about.floor + 10, about.baseline.time
    item, result = proven("cut", about, budget), proven("passes", about, budget)
    assert result - base > 1.2 * (item - base)


def test_links_follow_one_another() -> None:
    about = chain(6, 3, 9, (1, 5), 0, 0)
    links = spine(about)
    assert len(links) >= 4
    assert links[-1].output == -1
    for link, following in itertools.pairwise(links):
        assert following.source == link.output
        producer = about.problem.producer[following.output] if following.output >= 0 else -1
        assert producer < 0 or following.source in about.problem.reads[producer]
    operations = [f for link in links for f in link.operations]
    assert operations == sorted(set(operations))


def test_equal_links_have_one_model() -> None:
    about = chain(8, 3, 9, (1, 5), 0, 0)
    links, backward_start = spine(about), about.problem.backward_start
    end = len(about.problem.real)
    shapes = {shape_of(about.problem, link, backward_start, end, top=False) for link in links[1:-1]}
    assert len(shapes) < len(links) - 2


def test_what_a_link_costs() -> None:
    """The second layer: its inner value takes 5 ns and 9 bytes, what it hands on 1 ns and 3 bytes."""
    about = chain(4, 3, 9, (1, 5), 0, 0)
    problem, deadline = about.problem, Deadline()
    link = spine(about)[1]
    model = LinkModel(shape_of(problem, link, problem.backward_start, len(problem.real), top=False))
    there = LinkQuery(between=True, after=True)
    nothing_held = model.least(deadline, 1e3, 0.0, there)
    passed = model.least(deadline, 1e3, 0.0, LinkQuery(between=True, after=True, output_between=True))
    assert nothing_held == pytest.approx(5, abs=1e-3)
    assert passed == pytest.approx(6, abs=1e-3)
    assert model.least(deadline, 0.1, 0.0, there) == pytest.approx(0.9, abs=1e-3), "its inner value is held"
    assert model.least(deadline, 1e3, 0.0, LinkQuery(between=False, after=True, output_between=True)) == float("inf")


def test_nothing_is_said_after_the_deadline(always: None) -> None:
    about = chain(4, 2, 7, (1, 9), 2, 14)
    deadline = Deadline()
    deadline.interrupt()
    context = Context(deadline, about.baseline.time)
    assert module.passes(about, Request(about.floor), context) == about.baseline.time
