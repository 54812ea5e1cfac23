"""Splits on the CPU: the loss is eager's to the bit, bytes are the predicted ones, and of gradients only those that the
schedule lists differ, by rounding."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from torch import nn

import remate
from remate.api.plan import prepare
from remate.splits.windows import head_windows, loss_heads
from remate.step_measurement.allocator import peak_bytes
from remate_runtime import apply
from remate_runtime.errors import ScheduleError
from remate_runtime.flat_step import Expanded, expand
from remate_runtime.format import Recompute, Schedule, Split, decode, encode
from remate_runtime.link import link, simulate
from tests.format.independent_simulator import simulate as independently
from tools.expected import expected_of

pytestmark = pytest.mark.eager
WORDS, ROWS, WIDTH = 96, 192, 64  # tiles of 64 rows: blocks of products and vectors are those of the whole


class Head(nn.Module):
    """An embedding, a layer and a loss head, whose weight is the embedding's if `tied`."""

    def __init__(self, loss: Callable[..., torch.Tensor], tied: bool, bias: bool) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head, self.loss = nn.Linear(WIDTH, WORDS, bias=bias), loss
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, words: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.loss(self.head(torch.tanh(self.layer(self.embedding(words)))).view(-1, WORDS), target.view(-1))


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.gate = nn.Linear(WIDTH, 4 * WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return (x + self.down(F.silu(self.gate(y)) * torch.relu(self.up(y)))).square().mean()


class Images(nn.Module):
    """Convolutions, norms, pooling, upsampling, and a connection around them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.inner, self.last = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(16, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.silu(self.norm(self.first(x)))
        inner = F.interpolate(torch.relu(self.inner(F.max_pool2d(y, 2))), scale_factor=2.0)
        joined = self.last(torch.cat([y, inner], 1))[:, :, 1:-1]
        return F.layer_norm(F.avg_pool2d(joined, 2), (8,)).square().mean()


def words() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    target = torch.randint(0, WORDS, (3, ROWS // 3))
    target[0, :9] = -100
    return torch.randint(0, WORDS, (3, ROWS // 3)), target


def planned(model: nn.Module, *args: torch.Tensor) -> Schedule:
    return remate.plan(model, args, budget="100%", cost="cpu", progress=None)


def with_split(schedule: Schedule, ids: tuple[str, ...], into: int, *others: Any) -> Schedule:
    made = replace(schedule, statements=(Split(ids, into), *others), requires=("split",))
    return decode(encode(made))


def sized(expanded: Expanded, *sizes: int) -> tuple[str, ...]:
    """Operations, no views, that read or make a value with all these sizes."""
    graph = expanded.graph
    found = []
    for op in graph.operations:
        shapes = [graph.values[v].type.shape for v in (*op.reads, *op.writes) if v is not None]
        if not op.view and any(all(size in shape for size in sizes) for shape in shapes):
            found.append(op.id)
    return tuple(found)


def head_of(schedule: Schedule) -> tuple[str, ...]:
    names = sized(expand(schedule), WORDS, ROWS)
    return (*names, *(op.id for op in expand(schedule).graph.operations if "nll_loss_forward" in op.id))


def own_window(schedule: Schedule, model: nn.Module, *args: torch.Tensor) -> tuple[str, ...]:
    """The operations that the planner would split."""
    (window,) = head_windows(prepare(model, args, cost="cpu"))
    return tuple(expand(schedule).graph.operations[i].id for i in window.operations)


def gradients(model: nn.Module, run: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, dict[str, Any]]:
    loss = run(*args)
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}


def compared(schedule: Schedule, model: nn.Module, *args: torch.Tensor, strict: bool = True) -> None:
    """Beside eager: bitwise, but for what the schedule lists. strict: also what kernels may round otherwise."""
    eager, ours = copy.deepcopy(model), copy.deepcopy(model)
    applied = apply(ours, schedule, verify="never")
    one, two = gradients(eager, eager, args), gradients(ours, applied, args)
    expanded = expand(schedule)
    summed = {expanded.graph.values[v].name for v in expanded.reordered}
    assert summed
    rounded = {expanded.graph.values[v].name for v in expanded.rounded}
    if not strict and any(v in expanded.rounded for v in expanded.graph.outputs):
        torch.testing.assert_close(one[0], two[0])
    else:
        assert torch.equal(one[0], two[0])
    exact = copy.deepcopy(model).double()
    doubles = tuple(a.double() if a.is_floating_point() else a for a in args)
    reference = gradients(exact, exact, doubles)[1]
    for name, expected in one[1].items():
        found = two[1][name]
        if name not in summed:
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
            assert (not strict and name in rounded) or torch.equal(found, expected), name
            continue
        own = (expected.double() - reference[name]).abs().max()
        ulp = torch.finfo(expected.dtype).eps * reference[name].abs().max()
        assert (found.double() - reference[name]).abs().max() <= 2 * own + 2 * ulp, name


def weights(scores: torch.Tensor) -> torch.Tensor:
    return torch.linspace(0.5, 1.5, scores.shape[1], dtype=scores.dtype)


def soft(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.zeros(scores.shape, dtype=scores.dtype).scatter(1, target.clamp(min=0)[:, None], 0.75)


def sentences(scores: torch.Tensor) -> torch.Tensor:
    return scores.view(3, -1, WORDS)


def masked(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    losses, mask = F.cross_entropy(scores, target, reduction="none"), (target % 3 > 0).float()
    return (losses * mask).sum() / mask.sum()


LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "mean": F.cross_entropy,
    "sum": lambda x, y: F.cross_entropy(x, y, reduction="sum"),
    "class 0 ignored": lambda x, y: F.cross_entropy(x, y.clamp(min=0), ignore_index=0),
    "smoothed": lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
    "with z-loss": lambda x, y: F.cross_entropy(x, y) + 1e-4 * torch.logsumexp(x, 1).square().mean(),
    "with weights": lambda x, y: F.cross_entropy(x, y, weight=weights(x)),
    "with weights, summed": lambda x, y: F.cross_entropy(x, y, weight=weights(x), reduction="sum"),
    "with weights, smoothed": lambda x, y: F.cross_entropy(x, y, weight=weights(x), label_smoothing=0.1),
    "with weights, by row": lambda x, y: F.cross_entropy(x, y, weight=weights(x), reduction="none").square().mean(),
    "masked by row": masked,
    "of log probabilities": lambda x, y: -torch.log_softmax(x, 1).gather(1, y.clamp(min=0)[:, None]).mean(),
    "of probabilities": lambda x, y: F.cross_entropy(x, soft(x, y)),
    "divergence": lambda x, y: F.kl_div(F.log_softmax(x, 1), soft(x, y), reduction="batchmean"),
    "capped": lambda x, y: F.cross_entropy(3 * torch.tanh(x / 3), y),
    "with accuracy": lambda x, y: F.cross_entropy(x, y) + 0.0 * (x.argmax(1) == y).float().mean(),
    "binary, by row": lambda x, y: F.binary_cross_entropy_with_logits(x, soft(x, y), reduction="none").mean(1).mean(),
    "squares, by row": lambda x, y: F.mse_loss(x, soft(x, y), reduction="none").mean(1).mean(),
    "of shifted words": lambda x, y: F.cross_entropy(
        sentences(x)[:, :-1].reshape(-1, WORDS), y.view(3, -1)[:, 1:].reshape(-1)
    ),
    "transposed": lambda x, y: F.cross_entropy(sentences(x).transpose(1, 2), y.view(3, -1)),
    "of shifted words, transposed": lambda x, y: F.cross_entropy(
        sentences(x)[:, :-1].permute(0, 2, 1), y.view(3, -1)[:, 1:], label_smoothing=0.1
    ),
    "of one sentence, transposed": lambda x, y: F.cross_entropy(x[None].transpose(1, 2), y[None]),
    "with entropy": lambda x, y: (
        F.cross_entropy(x, y) + 0.01 * (F.softmax(x, 1) * F.log_softmax(sentences(x), 2).view(x.shape)).sum(1).mean()
    ),
    "with log-sum-exp": lambda x, y: (torch.logsumexp(x, 1) - x.gather(1, y.clamp(min=0)[:, None])[:, 0]).mean(),
    "Huber's, by row": lambda x, y: F.huber_loss(x, soft(x, y), reduction="none").mean(1).mean(),
}


@pytest.mark.quick("mean-False-True")
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", ["mean", "sum", "class 0 ignored", "smoothed"])
def test_a_head_in_tiles_is_eagers(name: str, bias: bool, tied: bool) -> None:
    torch.manual_seed(0)
    model, args = Head(LOSSES[name], tied, bias), words()
    plain = planned(model, *args)
    schedule = with_split(plain, head_of(plain), 3)
    compared(schedule, model, *args)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in LOSSES if name not in ("mean", "sum", "class 0 ignored", "smoothed")]
)
def test_other_losses_in_tiles_are_eagers(name: str) -> None:
    """The planner finds the window, all of the head is in it, and the second implementation splits it the same way."""
    torch.manual_seed(0)
    model, args = Head(LOSSES[name], False, True), words()
    plain = planned(model, *args)
    names = own_window(plain, model, *args)
    assert sum(op.id in names and op.op in ("aten.addmm", "aten.mm") for op in expand(plain).graph.operations) >= 3
    schedule = with_split(plain, names, 3)
    compared(schedule, model, *args, strict="smoothed" not in name)
    assert independently_the_same(schedule)


@pytest.mark.slow
def test_losses_of_images_in_tiles_are_eagers() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 9, 1))
    target = torch.randint(0, 9, (6, 12, 12))
    target[0, :3] = -100
    cases: tuple[dict[str, Any], ...] = ({}, {"weight": torch.linspace(0.5, 1.5, 9)}, {"reduction": "none"})
    for options in cases:
        run = Segmentation(model, options)
        args = torch.randn(6, 3, 12, 12), target
        plain = planned(run, *args)
        schedule = with_split(plain, own_window(plain, run, *args), 3)
        compared(schedule, run, *args)
        assert independently_the_same(schedule)


class Segmentation(nn.Module):
    def __init__(self, model: nn.Module, options: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.options = model, options

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        options = {name: given.to(x.dtype) if name == "weight" else given for name, given in self.options.items()}
        return F.cross_entropy(self.model(x), target, **options).mean()


@pytest.mark.quick("binary_cross_entropy_with_logits")
@pytest.mark.parametrize("loss", [F.mse_loss, F.binary_cross_entropy_with_logits, F.smooth_l1_loss, F.huber_loss])
def test_a_mean_of_all_elements_is_refused_with_what_to_write(loss: Callable[..., torch.Tensor]) -> None:
    model = Head(lambda x, y: loss(x, soft(x, y)), False, True)
    heads = loss_heads(prepare(model, words(), cost="cpu"))
    assert not heads.windows
    (refusal,) = heads.refusals
    assert loss.__name__ in refusal.message
    assert 'reduction="none"' in (refusal.hint or "")


def test_what_a_head_holds_is_what_is_predicted() -> None:
    torch.manual_seed(0)
    model, args = Head(F.cross_entropy, False, True), words()
    plain = remate.plan(model, args, budget="100%", cache=False, progress=None)  # measured: without upper bounds
    names = head_of(plain)
    local = [name for name in names if "grad" not in name.split("~")[-1] and "nll" not in name]
    first = next(name for name in names if "nll_loss_backward" in name)
    again = [Recompute(tuple(f"{name}@{tile}" for name in local), f"{first}@{tile}") for tile in (0, 1)]
    for schedule in (with_split(plain, names, 3), with_split(plain, names, 3, *again)):
        applied = apply(copy.deepcopy(model), schedule, verify="never")
        expanded = expand(schedule)
        predicted = simulate(link(expanded.graph, expanded.recomputes)).peak
        applied(*args).backward()
        applied.zero_grad(set_to_none=True)
        assert peak_bytes(lambda applied=applied: applied(*args).backward()) == predicted
        assert predicted < plain.baseline_peak_bytes


def test_sums_of_low_precision_are_accumulated_in_single_precision() -> None:
    torch.manual_seed(0)
    model, args = Head(F.cross_entropy, False, True).bfloat16(), words()
    plain = planned(model, *args)
    schedule = with_split(plain, head_of(plain), 3)
    graph = expand(schedule).graph
    totals = [op for op in graph.operations if op.op == "aten.add.Tensor" and ".sum" in op.id]
    assert totals
    assert {graph.values[op.writes[0]].type.dtype for op in totals if op.writes[0] is not None} == {"f32"}
    compared(schedule, model, *args)


def test_gated_layers_in_tiles() -> None:
    torch.manual_seed(0)
    model, x = MLP(), torch.randn(3, 64, WIDTH)
    plain = planned(model, x)
    names = [n for n in sized(expand(plain), ROWS, 4 * WIDTH) if n]
    names += [n for n in sized(expand(plain), 3, 64, 4 * WIDTH) if n not in names]
    schedule = with_split(plain, tuple(names), 3)
    compared(schedule, model, x)
    assert independently_the_same(schedule)


def independently_the_same(schedule: Schedule) -> bool:
    return independently(json.loads(encode(schedule))) == expected_of(schedule, floor=False)


CASES: dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]] = {}


def case(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...], Schedule]:
    torch.manual_seed(0)
    if name == "images":
        model, args = Images(), (torch.randn(5, 3, 16, 16),)
    elif name == "head":
        model, args = Head(LOSSES["smoothed"], True, True), words()
    elif name == "sentences":
        model, args = Head(LOSSES["of shifted words, transposed"], False, True), words()
    else:
        model, args = MLP(), (torch.randn(3, 64, WIDTH),)
    if name not in CASES:
        CASES[name] = model, args
        PLANS[name] = planned(model, *args)
    return model, args, PLANS[name]


PLANS: dict[str, Schedule] = {}


def test_a_target_that_the_split_computes_is_refused_and_the_hint_works() -> None:
    """The loss reads the whole target before the first tile. Without reduction it reads it tile by tile."""
    _, _, plain = case("sentences")
    names = [op.id for op in expand(plain).graph.operations if not op.view][:7]
    with pytest.raises(ScheduleError, match=r"it reads the target of all rows, which '.*clone'") as refused:
        expand(with_split(plain, tuple(names), 2))
    assert refused.value.code == "R091"
    assert refused.value.hint == "leave 'embedding~head.clone' out"
    names.remove("embedding~head.clone")
    assert independently_the_same(with_split(plain, tuple(names), 2))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_windows_are_refused_or_compute_what_eager_computes(data: st.DataObject) -> None:
    model, args, plain = case(data.draw(st.sampled_from(["head", "MLP", "images", "sentences"])))
    graph = expand(plain).graph
    able = [op.id for op in graph.operations if not op.view]
    start = data.draw(st.integers(0, len(able) - 1))
    names = able[start : start + data.draw(st.integers(1, 9))]
    names += data.draw(st.lists(st.sampled_from(able), max_size=4))
    schedule = replace(plain, statements=(Split(tuple(dict.fromkeys(names)), data.draw(st.integers(2, 5))),))
    schedule = replace(schedule, requires=("split",))
    try:
        expanded = expand(schedule)
    except ScheduleError as fault:
        if fault.code not in ("R090", "R091", "R092"):
            raise
        return
    assert independently_the_same(schedule)
    ours, eager = copy.deepcopy(model), copy.deepcopy(model)
    applied = apply(ours, schedule, verify="never")
    expected, found = gradients(eager, eager, args), gradients(ours, applied, args)
    names_of = [value.name for value in expanded.graph.values]
    changed = {names_of[v] for v in (*expanded.reordered, *expanded.rounded)}
    outputs_change = any(v in expanded.graph.outputs for v in expanded.rounded)
    assert outputs_change or torch.equal(expected[0], found[0])
    torch.testing.assert_close(expected[0], found[0])
    for name, value in expected[1].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-4, atol=1e-5)
        assert name in changed or torch.equal(found[1][name], value)


@pytest.mark.slow
def test_a_split_goes_with_a_range_of_sizes() -> None:
    torch.manual_seed(0)
    model, (one, two) = Head(F.cross_entropy, False, False), words()
    plain = remate.plan(
        model, (one, two), budget="100%", cost="cpu", progress=None, dims={"words": {0: "b=1..6"}, "target": {0: "b"}}
    )
    schedule = with_split(plain, head_of(plain), 3)
    applied = apply(copy.deepcopy(model), schedule, verify="never")
    eager = copy.deepcopy(model)
    for batch in (2, 3, 6):
        first, second = (t.repeat(2, 1)[:batch] for t in (one, two))
        assert torch.allclose(applied(first, second), eager(first, second))
