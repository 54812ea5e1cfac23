"""`remate.plan(dims=...)`: one file for a range of sizes, or the reason why there is none."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import remate
import remate_runtime
from remate.cli import main
from remate.errors import DimsError
from remate.profile.costing import costed
from remate.step_measurement.allocator import peak_bytes
from remate_runtime import Schedule
from remate_runtime.flat_step import expand
from remate_runtime.format import at_size, checked_text, load
from remate_runtime.link import link, simulate
from remate_runtime.operator_calls import uses_known_workspace

from .models import Attention, Branches, Convolutions, Every, Logarithm, Loop, Numbers, OfBatch, Padded

BT = {"x": {0: "b", 1: "t"}}
BT_TOKENS = {"tokens": {0: "b", 1: "t"}}


pytestmark = pytest.mark.filterwarnings("ignore:.*over its budget")  # budgets are those of the planned size


def planned(model: nn.Module, args: Any, dims: Any, budget: str = "100%") -> Schedule:
    return remate.plan(model, args, budget=budget, cost="cpu", dims=dims)


def features(b: int, t: int) -> tuple[torch.Tensor]:
    return (torch.randn(b, t, 4, generator=torch.Generator().manual_seed(b * t)),)


def tokens(b: int, t: int) -> tuple[torch.Tensor]:
    return (torch.randint(32, (b, t), generator=torch.Generator().manual_seed(b * t)),)


def trained(model: nn.Module, args: Any) -> list[torch.Tensor]:
    """The loss, and the gradients of one step."""
    for parameter in model.parameters():
        parameter.grad = None
    torch.manual_seed(0)
    loss = model(*args)
    loss.backward()
    grads = [parameter.grad for parameter in model.parameters()]
    assert all(grad is not None for grad in grads)
    return [loss.detach(), *(grad for grad in grads if grad is not None)]


def assert_trains(model: nn.Module, schedule: Schedule, sizes: dict[str, int], args: Any) -> None:
    """At these sizes the schedule's step is eager's to the last bit, and takes what is predicted; the estimate of what
    an operation needs for a scalar is an upper bound."""
    plain = at_size(schedule, sizes)
    theirs, ours = copy.deepcopy(model), copy.deepcopy(model)
    applied = remate_runtime.apply(ours, plain)
    for wanted, actual in zip(trained(theirs, args), trained(applied, args), strict=True):
        assert torch.equal(wanted, actual), sizes
    written = expand(plain)
    predicted = simulate(link(written.graph, written.recomputes)).peak
    for parameter in ours.parameters():
        parameter.grad = None
    assert predicted - 64 <= peak_bytes(lambda: applied(*args).backward()) <= predicted, sizes


@pytest.fixture(scope="module")
def attention() -> Schedule:
    torch.manual_seed(0)
    return planned(Attention(), tokens(4, 16), {"tokens": {0: "b", 1: "t=2..64"}}, "90%")


@pytest.mark.slow
def test_heads_as_many_as_the_batch_and_positions(attention: Schedule) -> None:
    """The example's batch is also the number of heads and the width of one."""
    model, schedule = Attention(), attention
    dims = schedule.model.dims
    assert [(dim.min, dim.max, dim.planned) for dim in dims.values()] == [(2, 4, 4), (2, 64, 16)]
    for b, t in [(4, 16), (2, 2), (3, 7), (4, 4), (3, 64)]:
        assert_trains(model, schedule, {"b": b, "t": t}, tokens(b, t))


@pytest.mark.slow
def test_images_of_any_size() -> None:
    model = Convolutions()
    image = {"x": {0: "b=2..6", 2: "h=8..24", 3: "w=8..24"}}
    args = (torch.randn(4, 3, 16, 12),)
    schedule = planned(model, args, image)
    for b, h, w in [(4, 16, 12), (2, 8, 8), (6, 24, 24), (3, 9, 18)]:
        plain = at_size(schedule, {"b": b, "h": h, "w": w})
        theirs, ours = copy.deepcopy(model), copy.deepcopy(model)
        example = (torch.randn(b, 3, h, w),)
        actual = trained(remate_runtime.apply(ours, plain), example)
        assert all(torch.equal(left, right) for left, right in zip(trained(theirs, example), actual, strict=True))
        assert all(torch.equal(left, right) for left, right in zip(theirs.buffers(), ours.buffers(), strict=True))


@pytest.mark.slow
def test_filled_up_to_a_multiple_at_every_length() -> None:
    """Whatever lengths were captured, no other one may have another rounding."""
    model = Padded()
    schedule = planned(model, features(3, 32), BT)
    for t in range(2, 33):
        written = expand(at_size(schedule, {"t": t})).graph
        assert any(value.type.shape == (3, -(-t // 8) * 8, 16) for value in written.values), t
    for t in (9, 17, 2, 31, 32):
        assert_trains(model, schedule, {"b": 2, "t": t}, features(2, t))


def test_numbers_that_stay_open_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simplest of several expressions may be the wrong one."""
    monkeypatch.setattr("remate.dims.family._MORE", 0)
    with pytest.raises(DimsError, match=r"the shape of .* may still be one of several numbers at b=\d+, t=\d+"):
        planned(Padded(), features(3, 32), BT)


@pytest.mark.slow
def test_a_branch_becomes_the_range() -> None:
    schedule = planned(Branches(), features(3, 32), BT)
    assert (schedule.model.dims["t"].min, schedule.model.dims["t"].max) == (21, 32)
    short = planned(Branches(), features(3, 16), {"x": {1: "t=2.."}})
    assert (short.model.dims["t"].min, short.model.dims["t"].max) == (2, 16)


def test_a_branch_within_the_range_that_was_requested_for() -> None:
    with pytest.raises(DimsError, match=r"models\.py:\d+.*t > 20.*\n  hint: write .t=21\.\.32"):
        planned(Branches(), features(3, 32), {"x": {1: "t=8..32"}})


@pytest.mark.slow
def test_a_remainder_becomes_the_multiple() -> None:
    schedule = planned(Every(8), features(3, 64), BT)
    assert (schedule.model.dims["t"].multiple, schedule.model.dims["t"].min) == (8, 8)


def test_a_remainder_that_must_not_be_zero() -> None:
    with pytest.raises(DimsError, match=r"t % 3 != 0|t % 3"):
        planned(Every(3), features(3, 32), BT)


@pytest.mark.quick("model1")
@pytest.mark.parametrize(
    ("model", "told"),
    [
        (Logarithm(), r"a number among the arguments of aten\.mul\.Tensor \(models\.py:Logarithm\.forward\+1\)"),
        (Numbers(), r"from Python numbers.*models\.py:Numbers\.forward\+1"),
        (Loop(), r"operations more for each t: forward loops over t"),
    ],
)
def test_what_cannot_be_left_open_says_why(model: nn.Module, told: str) -> None:
    with pytest.raises(DimsError, match=told):
        planned(model, features(3, 12), BT)


@pytest.mark.slow
def test_a_table_that_ends() -> None:
    with pytest.raises(
        DimsError,
        match=r"at t=\d+ .* position \d+ of an embedding that has 64 rows \(models\.py:\d+\)\n  hint: write .t=2\.\.64",
    ):
        planned(Attention(64), tokens(3, 16), {"tokens": {1: "t=2..96"}})


@pytest.mark.slow
def test_from_one_on() -> None:
    """Strides of sizes of 1 say nothing; gradients are eager's up to rounding."""
    model = Branches()
    schedule = planned(model, features(3, 16), {"x": {0: "b=1..3", 1: "t=1..16"}})
    for b, t in [(1, 16), (3, 1), (1, 1)]:
        plain = at_size(schedule, {"b": b, "t": t})
        wanted = trained(copy.deepcopy(model), features(b, t))
        actual = trained(remate_runtime.apply(copy.deepcopy(model), plain), features(b, t))
        assert all(torch.allclose(left, right) for left, right in zip(wanted, actual, strict=True))


@pytest.mark.slow
def test_the_batch_where_the_model_allows() -> None:
    schedule = planned(Loop(), features(6, 5), "auto")
    assert {name: (dim.min, dim.max) for name, dim in schedule.model.dims.items()} == {"b": (2, 6)}
    with pytest.warns(UserWarning, match=r"for a batch of 5 only: .*aten\.mul\.Tensor"):
        fixed = planned(OfBatch(), features(5, 3), "auto")
    assert fixed.model.dims == {}
    with pytest.warns(UserWarning, match="for one size: no input has a batch of more than 2[^!]*plan with a larger"):
        assert planned(Loop(), features(2, 5), "auto").model.dims == {}


def test_a_file_is_hardly_longer(attention: Schedule) -> None:
    plain = planned(Attention(), tokens(4, 16), None, "90%")
    assert len(checked_text(attention)) <= 1.1 * len(checked_text(plain))


@pytest.mark.slow
def test_bytes_are_planned_at_the_largest_size() -> None:
    dims = {"tokens": {0: "b=2..8", 1: "t"}}
    whole = planned(Attention(), tokens(4, 16), dims)
    assert whole.model.dims["b"].planned == 4
    schedule = planned(Attention(), tokens(4, 16), dims, "16MiB")
    assert schedule.model.dims["b"].planned == 8
    assert schedule.solve.baseline_peak > whole.solve.baseline_peak


@pytest.mark.slow
def test_a_file_for_a_range_for_each_budget(tmp_path: Path) -> None:
    """`frontier` leaves sizes open as `plan` does."""
    model, args = Attention(), tokens(4, 16)
    wanted = planned(model, args, BT_TOKENS, "90%")
    schedules = remate.frontier(model, args, budgets=["90%", "100%"], cost="cpu", dims=BT_TOKENS)
    assert [entry.model.dims for entry in schedules] == [wanted.model.dims] * 2
    assert (schedules[0].blocks, schedules[0].program) == (wanted.blocks, wanted.program)
    (largest,) = remate.frontier(model, args, budgets=["16MiB"], cost="cpu", dims={"tokens": {0: "b=2..8", 1: "t"}})
    assert largest.model.dims["b"].planned == 8
    script = (
        "import torch\nfrom tests.dims.models import Attention\n\ndef build():\n    return Attention(), (TOKENS,)\n"
    )
    (tmp_path / "model.py").write_text(script.replace("TOKENS", "torch.randint(32, (4, 16))"))
    argv = ["frontier", f"{tmp_path}/model.py:build", "--budgets", "90%,100%", "--cost", "cpu", "--no-plot", "--quiet"]
    assert main([*argv, "-o", str(tmp_path / "out"), "--dims", "tokens=b,t"]) == 0
    assert load(str(tmp_path / "out" / "budget-090.json")).model.dims == wanted.model.dims


@pytest.mark.slow
def test_the_same_bytes_again() -> None:
    texts = {checked_text(planned(Padded(), features(3, 32), BT)) for _ in range(2)}
    assert len(texts) == 1


@pytest.mark.slow
def test_measured_workspaces(tmp_path: Path) -> None:
    """Never less than what is measured at a size; at the planned size no more either, for all that is there."""
    args = (torch.randn(6, 3, 24, 24),)
    spec = {"x": {0: "b"}}
    costs = tmp_path / "costs.json"
    model = Convolutions()
    schedule = remate.plan(model, args, budget="100%", profile=costs, dims=spec)
    for b in (2, 3, 6):
        written = expand(at_size(schedule, {"b": b}))
        exact = simulate(link(costed(written.graph, "measured"), written.recomputes)).peak
        predicted = simulate(link(written.graph, written.recomputes)).peak
        assert exact <= predicted
        if b == 6:
            assert exact == predicted == schedule.solve.peak


@pytest.mark.slow
def test_the_first_step_at_a_size_takes_no_more_than_the_next() -> None:
    """Constants are the same tensors at all sizes."""

    class Constants(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.clone()
            x[:, 0] = 2.5
            return (self.linear(x) * torch.tensor([float(n) for n in range(4)])).pow(2).mean()

    model = Constants()
    applied = remate_runtime.apply(model, planned(model, features(3, 12), BT), verify="never")
    for b, t in [(3, 12), (2, 5), (3, 2)]:
        peaks = []
        for _ in range(2):
            model.zero_grad()
            peaks.append(peak_bytes(lambda b=b, t=t: applied(*features(b, t)).backward()))
        assert peaks[0] == peaks[1], (b, t)


def test_lengths_that_vary_and_a_smaller_last_batch(attention: Schedule) -> None:
    """A training loop over one file: the losses of eager."""
    model, schedule = Attention(), attention
    theirs, ours = copy.deepcopy(model), copy.deepcopy(model)
    losses: list[list[float]] = []
    for trained_one in (theirs, remate_runtime.apply(ours, schedule)):
        optimizer = torch.optim.AdamW(trained_one.parameters(), lr=0.01)
        losses.append([])
        for b, t in [(4, 32), (4, 19), (4, 32), (4, 5), (4, 19), (3, 27)]:
            optimizer.zero_grad()
            loss = trained_one(*tokens(b, t))
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_recurrent_layers_become_time_steps(tmp_path: Path) -> None:
    """What whole layers hold follows no formula in the batch size."""
    model = nn.LSTM(4, 8, batch_first=True)
    schedule = planned(model, (features(3, 4)[0],), {"input": {0: "b"}})
    assert not any(op.op.startswith("aten.mkldnn_") for block in schedule.blocks.values() for op in block.forward)
    applied = remate_runtime.apply(copy.deepcopy(model), schedule)
    for batch in (3, 2):
        x = features(batch, 4)[0]
        for left, right in zip(applied(x)[0], model(x)[0], strict=True):
            assert torch.allclose(left, right, atol=1e-6)


@pytest.mark.skipif(not uses_known_workspace(torch.float32), reason="another oneDNN")
def test_a_recurrent_layer_that_is_one_operation_keeps_its_size() -> None:
    model = nn.LSTM(4, 8, batch_first=True)
    with pytest.warns(UserWarning, match="for a batch of 3 only: its LSTM is one operation"):
        schedule = planned(model, (features(3, 4)[0],), "auto")
    assert not schedule.model.dims
    x = features(3, 4)[0]
    assert torch.equal(remate_runtime.apply(copy.deepcopy(model), schedule)(x)[0], model(x)[0])


@pytest.mark.slow
def test_a_live_attribute_and_a_size_in_one_number() -> None:
    class Scaled(nn.Module):
        def __init__(self, apart: bool) -> None:
            super().__init__()
            self.layer, self.alpha, self.apart = nn.Linear(4, 4), 0.5, apart

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y, size = self.layer(x), x.shape[0]
            return y * self.alpha / size**0.5 if self.apart else y * (self.alpha / size**0.5)

    options: Any = {"budget": "100%", "cost": "cpu", "dims": {"x": {0: "t"}}, "live": ["alpha"]}
    with pytest.raises(DimsError, match=r"takes .*alpha.* at one of them and .* at the other[^!]*one after the other"):
        remate.plan(Scaled(apart=False), (torch.randn(6, 4),), **options)
    remate.plan(Scaled(apart=True), (torch.randn(6, 4),), **options)


class Columns(nn.Module):
    """Takes its input column by column, as recurrent networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.RNNCell(1, 4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(x.size(0), 4)
        for column in x.split(1, dim=1):
            h = self.cell(column, h)
        return self.head(h)


@pytest.mark.slow
def test_rows_of_a_wider_tensor_keep_their_gap_at_other_sizes() -> None:
    """The input `data[:, :-1]`: 9 numbers from row to row, whatever the batch."""
    model = Columns()
    schedule = planned(model, (torch.randn(17, 9)[:, :-1],), "auto")
    assert schedule.model.inputs["args"] == [{"tensor": "f32[b,8]{9,1}", "name": "x"}]
    applied = remate_runtime.apply(model, schedule)
    x = torch.randn(7, 9)[:, :-1]
    assert torch.equal(applied(x), model(x))
