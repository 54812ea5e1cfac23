"""Plans with splits: loss heads run in tiles of rows where that is permitted, and only there."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import remate
from remate.api import splitting
from remate.api.plan import prepare
from remate.errors import InfeasibleError, UnknownNameError
from remate.splits.tiled_step import tiled_step
from remate.splits.windows import head_windows, large_windows
from remate.step_measurement.allocator import peak_bytes
from remate.strategy import CandidatePool, StepInstance, solve
from remate_runtime import apply
from remate_runtime.flat_step import TILE, expand
from remate_runtime.format import Recompute, Schedule, Split, decode, encode
from remate_runtime.link import link, simulate
from tests.models import decoders

from .captured_once import captured_once  # noqa: F401

pytestmark = [pytest.mark.eager, pytest.mark.usefixtures("captured_once")]
WIDTH, WORDS, ROWS = 64, 1024, 256
WEIGHTS = {"weight": torch.linspace(0.5, 1.5, WORDS)}


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """A language model without attention, that returns its loss alone."""

    def __init__(self, **loss: Any) -> None:
        super().__init__()
        self.embedding, self.layers = nn.Embedding(WORDS, WIDTH), nn.Sequential(*(Layer() for _ in range(3)))
        self.head, self.loss = nn.Linear(WIDTH, WORDS, bias=False), loss

    def forward(self, words: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(
            self.head(self.layers(self.embedding(words))).view(-1, WORDS), target.view(-1), **self.loss
        )


class LossAlone(nn.Module):
    """A model of `transformers` whose logits nobody wants."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        return self.model(**inputs).loss


def words(batch: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    shape = batch, ROWS // 4
    return torch.randint(0, WORDS, shape), torch.randint(0, WORDS, shape)


@cache
def built(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    if name == "plain":
        return Model(), words(), {}
    if name == "images":
        model, x = images()
        return WithLoss(model, lambda y, _: y.square().mean()), (x, x), {}
    model, args, kwargs = decoders.llama(layers=2, batch=4, length=64, vocab=WORDS)
    return LossAlone(model).eval(), args, kwargs


@cache
def baseline(name: str) -> Schedule:
    model, args, kwargs = built(name)
    return remate.plan(model, args, kwargs, budget="100%", cost="cpu", progress=None)


def planned(name: str, budget: str | int, **options: Any) -> Schedule:
    model, args, kwargs = built(name)
    chosen: dict[str, Any] = {"cost": "cpu", "effort": "quick", "split": "head", "progress": None, **options}
    schedule = remate.plan(model, args, kwargs, budget=budget, **chosen)
    assert isinstance(schedule, Schedule)
    return schedule


@cache
def floor(name: str) -> int:
    step = prepare(*built(name), cost="cpu")
    return StepInstance(step.captured.graph, step.parts).floor


@cache
def refused(name: str, split: str | None) -> InfeasibleError:
    """The refusal of a budget that nothing meets."""
    with pytest.raises(InfeasibleError) as error:
        planned(name, 1000, split=split)
    return error.value


@cache
def smallest() -> Schedule:
    return planned("plain", refused("plain", "head").smallest)


def splits(schedule: Schedule) -> list[Split]:
    return [statement for statement in schedule.statements if isinstance(statement, Split)]


def gradients(run: nn.Module, model: nn.Module, args: Any, kwargs: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    torch.manual_seed(7)
    loss = run(*args, **kwargs)
    loss.backward()
    return loss.detach(), {name: parameter.grad for name, parameter in model.named_parameters()}


def assert_eagers_but_for_listed(
    model: nn.Module, schedule: Schedule, args: Any, kwargs: Any, within: str = ""
) -> nn.Module:
    """Compare a step with eager's, to the bit but for the gradients that the file lists. Return the scheduled copy.

    within: The planned parts; what is before them follows from the gradient of their input.
    """
    expanded = expand(schedule)
    eager, ours = copy.deepcopy(model), copy.deepcopy(model)
    applied = apply(ours, schedule, verify="never")
    expected, computed = gradients(eager, eager, args, kwargs), gradients(applied, ours, args, kwargs)
    names = [value.name for value in expanded.graph.values]
    listed = {names[v] for v in (*expanded.reordered, *expanded.rounded)}
    torch.testing.assert_close(computed[0], expected[0])
    for parameter, gradient in expected[1].items():
        torch.testing.assert_close(computed[1][parameter], gradient, rtol=1e-4, atol=1e-6)
        own = parameter.removeprefix(within).partition(".")[2] if parameter.startswith(within) and within else parameter
        assert own in listed or not parameter.startswith(within) or torch.equal(computed[1][parameter], gradient)
    return applied


@pytest.mark.slow("llama")
@pytest.mark.filterwarnings("ignore:.*evaluation mode")
@pytest.mark.parametrize("name", ["plain", "llama"])
def test_a_budget_below_the_floor_of_the_step_is_met(name: str) -> None:
    model, args, kwargs = built(name)
    budget = floor(name) * 9 // 10
    schedule = planned(name, budget)
    assert decode(encode(schedule)) == schedule
    assert schedule.requires == ("split",)
    assert schedule.solve.settings is not None
    assert schedule.solve.settings.split == "head"
    (split,) = splits(schedule)
    assert split.into > 1
    assert schedule.baseline_peak_bytes == baseline(name).baseline_peak_bytes
    assert schedule.solve.baseline_time == baseline(name).solve.baseline_time
    expanded = expand(schedule)
    predicted = simulate(link(expanded.graph, expanded.recomputes)).peak
    assert predicted == schedule.peak_bytes <= budget
    applied = assert_eagers_but_for_listed(model, schedule, args, kwargs)
    applied.zero_grad(set_to_none=True)

    def step() -> None:
        applied(*args, **kwargs).backward()

    assert peak_bytes(step) <= predicted


@pytest.mark.slow
def test_the_measured_peak_is_the_predicted_one() -> None:
    """Tiles of convolutions need workspace, which is measured as well."""
    model, args, _ = built("images")
    schedule = planned("images", "40%", cost="measured", cache=False, split=True)
    assert splits(schedule)
    assert schedule.tile_workspaces
    applied = apply(copy.deepcopy(model), schedule, verify="never")
    applied(*args).backward()
    applied.zero_grad(set_to_none=True)
    assert peak_bytes(lambda: applied(*args).backward()) == schedule.peak_bytes


@pytest.mark.slow
def test_nothing_is_split_without_permission() -> None:
    """A refusal names the loss head if its split meets the budget, otherwise the splits with the lowest floor."""
    with pytest.raises(InfeasibleError) as refusal:
        planned("plain", refused("plain", None).floor * 9 // 10, split=None)
    head = refusal.value.split
    assert head is not None
    assert head.permitted == "head"
    assert "split='head' (--split head)" in str(refusal.value)
    assert smallest().peak_bytes < refusal.value.floor  # the hint works
    for permitted in (None, "head"):
        error = refused("plain", permitted)
        assert error.split is not None
        assert error.split.permitted == "all"
        assert error.split.floor < refused("plain", "head").floor < error.budget + head.floor
        assert "split=True (--split all)" in str(error)


def test_a_refusal_names_splits_only_if_they_help() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 1))
    with pytest.raises(InfeasibleError) as error:
        remate.plan(model, (torch.randn(1, WIDTH),), budget=1, cost="cpu", progress=None)
    assert error.value.split is None
    assert "split" not in str(error.value)


def test_a_split_that_is_not_faster_is_not_taken() -> None:
    schedule = planned("plain", "100%")
    assert not schedule.statements
    assert not schedule.requires
    assert schedule.time_ns == baseline("plain").time_ns


@pytest.mark.slow
def test_nothing_fits_where_no_number_of_tiles_helps() -> None:
    error = refused("plain", "head")
    assert error.floor < refused("plain", None).floor
    assert smallest().peak_bytes <= error.smallest


@pytest.mark.slow
def test_tiles_run_again_by_statements_of_the_top_level() -> None:
    assert any(TILE in name for each in smallest().statements if isinstance(each, Recompute) for name in each.recompute)


def test_the_default_budget_is_a_share() -> None:
    model, args, _ = built("plain")
    schedule = remate.plan(model, args, cost="cpu", effort="quick", split="head", progress=None)
    assert schedule.solve.settings is not None
    assert schedule.solve.settings.budget == "60%"


def layers() -> tuple[nn.Module, torch.Tensor]:
    model = nn.Sequential(*(part for _ in range(2) for part in (nn.Linear(16, 512), nn.GELU(), nn.Linear(512, 16))))
    return model, torch.randn(512, 16)


def images() -> tuple[nn.Module, torch.Tensor]:
    convolution = nn.Conv2d(3, 24, 3, padding=1), nn.GroupNorm(4, 24), nn.SiLU(), nn.AvgPool2d(2)
    return nn.Sequential(*convolution, nn.Conv2d(24, 8, 3, padding=1), nn.GroupNorm(4, 8)), torch.randn(8, 3, 32, 32)


@pytest.mark.parametrize("build", [layers, pytest.param(images, marks=pytest.mark.slow)])
def test_other_large_operations_are_split(build: Any) -> None:
    """Below the floor of the step, and of the step with a split head."""
    torch.manual_seed(0)
    model, x = build()
    run = WithLoss(model, lambda y, _: y.square().mean())
    options: dict[str, Any] = {"cost": "h100", "effort": "quick", "progress": None}
    with pytest.raises(InfeasibleError) as error:
        remate.plan(run, (x, x), budget=1000, split="head", **options)
    schedule = remate.plan(run, (x, x), budget=error.value.floor * 8 // 10, split=True, **options)
    assert isinstance(schedule, Schedule)
    assert schedule.solve.settings is not None
    assert schedule.solve.settings.split == "all"
    assert max(len(split.split) for split in splits(schedule)) >= 4
    expanded = expand(schedule)
    assert simulate(link(expanded.graph, expanded.recomputes)).peak == schedule.peak_bytes <= schedule.budget_bytes
    assert_eagers_but_for_listed(run, schedule, (x, x), {})


def test_equal_layers_have_equal_windows() -> None:
    step = prepare(*built("plain"), cost="cpu")
    windows = [w for w in large_windows(step, 2 * ROWS * WIDTH * 4) if len(w.operations) > 1]
    graph = step.captured.graph
    kinds = {tuple(graph.operations[i].op for i in window.operations) for window in windows}
    assert len(windows) > len(kinds)
    covered = [i for window in windows for i in window.operations]
    assert len(covered) == len(set(covered))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"split": "tail"}, UnknownNameError),
        ({"disk_budget": "1GiB"}, remate.BudgetError),
        ({"at": ["layers.*", "head"]}, remate.BudgetError),
    ],
)
def test_what_does_not_go_with_splits_is_refused(options: dict[str, Any], error: type[Exception]) -> None:
    model, args, _ = built("plain")
    given: dict[str, Any] = {"cost": "cpu", "split": "head", "progress": None, **options}
    with pytest.raises(error, match="split"):
        remate.plan(model, args, **given)


@pytest.mark.slow
def test_parts_of_one_kind_are_split() -> None:
    model, args, _ = built("plain")
    options: dict[str, Any] = {"cost": "cpu", "effort": "quick", "split": True, "progress": None}
    schedule = remate.plan(model, args, at="layers.*", budget="35%", **options)
    assert isinstance(schedule, Schedule)
    assert splits(schedule)
    assert schedule.peak_bytes <= schedule.budget_bytes
    assert_eagers_but_for_listed(model, schedule, args, {}, within="layers.")


@pytest.mark.quick("loss4")
@pytest.mark.parametrize("loss", [{}, {"reduction": "sum"}, {"ignore_index": 5}, {"label_smoothing": 0.1}, WEIGHTS])
def test_windows_of_heads(loss: dict[str, Any]) -> None:
    step = prepare(Model(**loss), words(), cost="cpu")
    (window,) = head_windows(step)
    operations = [step.captured.graph.operations[i] for i in window.operations]
    assert window.rows == ROWS
    kinds = [op.op for op in operations]
    assert kinds.count("aten.mm") == 3  # logits, and the gradients of both factors
    assert {"aten._log_softmax", "aten.nll_loss_forward", "aten.nll_loss_backward"} <= set(kinds)


def test_why_no_head_is_split_is_said() -> None:
    said: list[str] = []
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WORDS))
    for loss, why in (
        (F.mse_loss, "'mse_loss' (aten.mse_loss) cannot be split along rows"),
        (torch.dist, "has no loss that is known"),
    ):
        args = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WORDS)
        options: dict[str, Any] = {"budget": "99%", "cost": "cpu", "split": "head"}
        remate.plan(WithLoss(model, loss), args, **options, progress=said.append)
        assert any(why in line for line in said)
        said.clear()


class WithLoss(nn.Module):
    def __init__(self, model: nn.Module, loss: Any) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.loss(self.model(x), y)


@pytest.mark.slow
def test_sizes_stay_open() -> None:
    model = built("plain")[0]
    schedule = planned("plain", "35%", dims={"words": {0: "b=1..8"}, "target": {0: "b"}})
    assert splits(schedule)
    applied = apply(copy.deepcopy(model), schedule, verify="never")
    for batch in (1, 3, 8):
        inputs = words(batch)
        torch.testing.assert_close(applied(*inputs), model(*inputs))


def test_tiles_are_leaves() -> None:
    """The forward and the backward of a tile are one leaf, so that strategies plan tiles like blocks."""
    step = prepare(*built("plain"), cost="cpu")
    (window,) = head_windows(step)
    tiled = tiled_step(baseline("plain"), {window: 4}, "cpu", step.price)
    (block,) = tiled.blocks
    leaves = list(block.leaves())
    operations = tiled.expanded.graph.operations
    covered = [i for leaf in leaves for i in range(*leaf.forward)]
    covered += [i for leaf in reversed(leaves) for i in range(*leaf.backward)]
    assert covered == list(range(len(operations)))
    names = [{operations[i].id for span in (leaf.forward, leaf.backward) for i in range(*span)} for leaf in leaves]
    for tile in range(4):
        (own,) = [ids for ids in names if f"embedding~head._log_softmax{TILE}{tile}" in ids]
        assert f"embedding~head.head.grad.mm{TILE}{tile}" in own
        assert not any(f"{TILE}{other}." in f"{name}." for name in own for other in range(4) if other != tile)


def test_tiles_cost_more_than_their_share() -> None:
    step = prepare(*built("plain"), cost="cpu")
    (window,) = head_windows(step)
    times = []
    for into in (2, 8, 32):
        priced = tiled_step(baseline("plain"), {window: into}, "cpu", step.price)
        assert all(
            f"{TILE}{into}" in name or f"{TILE}all" in name for costs in priced.costs.ns.values() for name in costs
        )
        times.append(sum(op.ns for op in priced.expanded.graph.operations))
    assert baseline("plain").time_ns < times[0] < times[1] < times[2]


def test_ctrl_c_ends_the_search_for_a_number_of_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []

    def interrupted(*args: Any, pool: CandidatePool, **options: Any) -> Any:
        searched.append(len(searched))
        solution = solve(*args, pool=pool, **options)
        pool.interrupted = len(searched) == 2
        return solution

    monkeypatch.setattr(splitting, "solve", interrupted)
    schedule = planned("plain", "60%")
    assert len(searched) == 2
    assert schedule.peak_bytes <= schedule.budget_bytes
