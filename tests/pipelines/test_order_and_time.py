"""The actions, the memory and the time of pipelines, without processes."""

from __future__ import annotations

import itertools
import random

import pytest

from remate import UnknownNameError
from remate.pipelines.choice import choose
from remate.pipelines.order import SCHEDULES, Action, PipelineOrder, pipeline_order
from remate.pipelines.rank_memory import rank_peak
from remate.pipelines.stage_use import StageUse
from remate.pipelines.step_time import PipelineGraph, StageTimes


def use(forward: int = 1, backward: int = 2, kept: int = 10, **more: int) -> StageUse:
    given = {"forward_peak": kept, "first_backward": kept, "later_backward": kept, "gradients": 0, **more}
    rest = {"input_gradients": 0, "inputs": 0, "outputs": 0, "tangents": 0}
    return StageUse(forward=forward, backward=backward, kept=kept, **{**rest, **given})


@pytest.fixture(params=SCHEDULES)
def order(request: pytest.FixtureRequest) -> PipelineOrder:
    return pipeline_order(request.param, 4, 8)


def test_1f1b_holds_one_microbatch_less_on_each_stage_and_gpipe_all() -> None:
    assert [pipeline_order("1f1b", 4, 8).in_flight(stage) for stage in range(4)] == [4, 3, 2, 1]
    assert [pipeline_order("gpipe", 4, 8).in_flight(stage) for stage in range(4)] == [8, 8, 8, 8]
    assert [pipeline_order("zbvzerobubble", 4, 8).in_flight(stage) for stage in range(4)] == [4, 3, 2, 1]


def test_each_stage_runs_each_microbatch_once(order: PipelineOrder) -> None:
    actions = [action for row in order.ranks for action in row]
    for stage in range(4):
        for kind in ("forward", "backward"):
            numbers = [a.microbatch for a in actions if a.stage == stage and (a.kind == "F" or a.is_backward)]
            assert sorted(numbers) == sorted([*range(8), *range(8)]), kind


def test_what_torch_does_not_have_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"no pipeline schedule '1f1'\n.*did you mean 1f1b"):
        pipeline_order("1f1", 2, 4)
    with pytest.raises(UnknownNameError, match="1F1B needs one stage on each rank, and there are 4 stages on 2 ranks"):
        pipeline_order("1f1b", 4, 4, ranks=2)
    with pytest.raises(UnknownNameError, match="ZBVZeroBubble needs two stages on each rank"):
        pipeline_order("zbvzerobubble", 8, 8, ranks=2)
    with pytest.raises(UnknownNameError, match=r"for 4 stages and 2 microbatches(.|\n)*more microbatches"):
        pipeline_order("1f1b", 4, 2)


@pytest.mark.parametrize("name", ["GPipe", "1F1B"])
def test_equal_stages_take_the_time_of_the_textbook(name: str) -> None:
    stages, microbatches = 4, 8
    graph = PipelineGraph(pipeline_order(name, stages, microbatches))
    times = {stage: StageTimes(3, 7) for stage in range(stages)}
    assert graph.time(times) == (microbatches + stages - 1) * 10
    assert graph.lower_bound(times, dict.fromkeys(range(stages), 10)) == graph.time(times)


def test_the_bound_is_never_above_the_time(order: PipelineOrder) -> None:
    rng, graph = random.Random(0), PipelineGraph(order)
    for _ in range(30):
        base = {stage: StageTimes(rng.randint(1, 9), rng.randint(1, 9)) for stage in range(4)}
        slower = {
            stage: StageTimes(t.forward + rng.randint(0, 5), t.backward + rng.randint(0, 5))
            for stage, t in base.items()
        }
        least = {stage: t.forward + t.backward for stage, t in slower.items()}
        assert graph.time(base) <= graph.lower_bound(base, least) <= graph.time(slower)


def test_a_rank_holds_what_is_in_flight_buffers_and_what_was_sent() -> None:
    order = pipeline_order("1F1B", 3, 5)
    about = use(kept=100, first_backward=130, later_backward=120, gradients=40, inputs=7, tangents=5, outputs=3)
    peak = rank_peak(order, 1, dict.fromkeys(range(3), about))
    assert peak.buffers == 5 * (7 + 5)
    # The second backward: another microbatch in flight, `.grad`, and an output that torch has sent.
    assert peak.peak == peak.buffers + 100 + 120 + 40 + 3
    assert peak.at == Action(1, "B", 1)


def test_zero_bubble_keeps_gradients_that_wait_for_their_turn() -> None:
    order = pipeline_order("ZBVZeroBubble", 4, 8)
    plain, waiting = (rank_peak(order, 1, dict.fromkeys(range(4), use(gradients=g))).peak for g in (0, 1000))
    assert waiting >= plain + 2000


@pytest.mark.quick("1F1B")
@pytest.mark.parametrize("name", ["1F1B", "Interleaved1F1B"])
def test_the_choice_is_the_best_of_all(name: str) -> None:
    order, rng = pipeline_order(name, 4, 4), random.Random(1)
    graph = PipelineGraph(order)
    for _ in range(8):
        plans = [
            [use(5, 10 + more, kept=60 - 9 * more + rng.randint(0, 9)) for more in range(0, 6, 2)] for _ in range(4)
        ]
        budget = rng.randint(110, 260)
        fitting = []
        for row in itertools.product(range(3), repeat=4):
            uses = {stage: plans[stage][at] for stage, at in enumerate(row)}
            if all(rank_peak(order, rank, uses).peak <= budget for rank in range(len(order.ranks))):
                fitting.append(graph.time({stage: StageTimes.of(one) for stage, one in uses.items()}))
        choice = choose(order, plans, budget)
        assert (choice if isinstance(choice, int) else choice.time) == (min(fitting) if fitting else choice)
        assert isinstance(choice, int) == (not fitting)
