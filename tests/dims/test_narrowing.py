"""A range ends where the step differs: by captures where nobody gave its ends, else refused with the range that
works."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import remate
import remate_runtime
from remate.errors import DimsError
from remate_runtime import Schedule

pytestmark = pytest.mark.filterwarnings("ignore:.*over its budget")
T = {"x": {0: "b", 1: "t"}}


class Around(nn.Module):
    """A layer, and a function of its result."""

    def __init__(self, then: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.then = nn.Linear(4, 8), then

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.then(self.layer(x)).tanh().pow(2).mean()


class Filtered(nn.Module):
    """A kernel of five without padding, and a kernel of three with padding."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(4, 8, 5), nn.Conv1d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x.transpose(1, 2)).relu()).pow(2).mean()


class Shifted(nn.Module):
    """Each token is predicted from the previous ones."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.embed(x).tanh())
        return F.cross_entropy(logits[:, :-1].reshape(-1, 16), x[:, 1:].reshape(-1))


class Joined(nn.Module):
    """Two sequences as one, of which the mean is taken."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer = nn.Parameter(torch.zeros(1, 1, 4)), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        whole = torch.cat([self.first.expand(x.shape[0], -1, -1), self.layer(x), self.layer(y)], 1)
        return whole.softmax(1).pow(2).mean()


def features(b: int, t: int) -> torch.Tensor:
    return torch.randn(b, t, 4, generator=torch.Generator().manual_seed(b * t))


def tokens(b: int, t: int) -> torch.Tensor:
    return torch.randint(16, (b, t), generator=torch.Generator().manual_seed(b * t))


def planned(model: nn.Module, args: Any, dims: Any, said: list[str] | None = None) -> Schedule:
    say = None if said is None else said.append
    return remate.plan(model, args, budget="100%", cost="cpu", dims=dims, progress=say)


def trained(model: nn.Module, args: Any) -> list[torch.Tensor | None]:
    model.zero_grad()
    loss = model(*args)
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in model.parameters())]


def assert_trains(model: nn.Module, schedule: Schedule, calls: list[Any]) -> None:
    theirs, applied = copy.deepcopy(model), remate_runtime.apply(copy.deepcopy(model), schedule)
    for args in calls:
        pairs = zip(trained(theirs, args), trained(applied, args), strict=True)
        assert all(torch.equal(left, right) for left, right in pairs if left is not None and right is not None)


def windows(y: torch.Tensor) -> torch.Tensor:
    return y.unfold(1, 4, 2)


def patches(y: torch.Tensor) -> torch.Tensor:
    return y.view(y.shape[0], y.shape[1] // 4, 32)


def mirrored(y: torch.Tensor) -> torch.Tensor:
    return F.pad(y.transpose(1, 2), (3, 2), mode="reflect")


@pytest.mark.slow
@pytest.mark.quick("shift", "kernel")
@pytest.mark.parametrize(
    ("model", "make", "kept", "why"),
    [
        (Filtered(), features, (5, 24, 1), r"t is from 5 \(at t=4 .*Kernel size.* \(test_narrowing\.py:\d+\)"),
        (Shifted(), tokens, (3, 24, 1), r"t is from 3 \(the step at t=2 differs"),
        (Around(windows), features, (4, 24, 1), r"t is from 4 \(at t=3 .* size is 4 \(test_narrowing\.py:\d+\)"),
        (Around(patches), features, (4, 24, 4), r"t is a multiple of 4 \(at t=23 .* is invalid for input"),
        (Around(mirrored), features, (4, 24, 1), r"t is from 4 \(at t=3 .*[Pp]adding size"),
    ],
    ids=["kernel", "shift", "windows", "patches", "mirror"],
)
def test_the_range_is_what_the_model_allows(
    model: nn.Module, make: Any, kept: tuple[int, int, int], why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    schedule = planned(model, (make(5, 24),), T, said)
    b, t = schedule.model.dims["b"], schedule.model.dims["t"]
    assert (b.min, b.max, t.min, t.max, t.multiple) == (2, 5, *kept)
    assert any(re.match(why, line) for line in said), said
    assert "Traceback" not in capfd.readouterr().err
    assert_trains(
        model, schedule, [(make(*sizes),) for sizes in ((5, 24), (2, t.min), (3, 20), (4, t.min + t.multiple))]
    )


@pytest.mark.quick("multiple")
@pytest.mark.parametrize(
    ("model", "wanted", "told"),
    [
        (Filtered(), "t=3..24", r'at t=3 .*Kernel size.*\n  hint: write "t=5\.\.24"'),
        (Around(patches), "t=2..24", r'is invalid for input.*\n  hint: write "t=4\.\.24/4"'),
    ],
    ids=["least", "multiple"],
)
def test_what_was_requested_for_is_not_taken_away(model: nn.Module, wanted: str, told: str) -> None:
    with pytest.raises(DimsError, match=told):
        planned(model, (features(3, 24),), {"x": {1: wanted}})


@pytest.mark.slow
def test_several_sizes_in_one_axis() -> None:
    """The number of elements is a sum of three products."""
    model = Joined()
    dims = {"x": {0: "b", 1: "t"}, "y": {0: "b", 1: "s"}}
    schedule = planned(model, (features(4, 12), features(4, 9)), dims)
    assert_trains(model, schedule, [(features(b, t), features(b, s)) for b, t, s in ((4, 12, 9), (2, 2, 9), (3, 7, 2))])


class Nested(nn.Module):
    """Decides about short sequences only where they are no long ones."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        if x.shape[1] < 8 and x.shape[1] % 3 == 0:
            y = y * 2
        return y.pow(2).mean()

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)


def test_what_is_decided_for_some_sizes_only() -> None:
    """No sample may be a multiple of three below 8: the range is where nothing else is decided."""
    schedule = planned(Nested(), (features(3, 24),), {"x": {1: "t"}})
    assert schedule.model.dims["t"].min == 8
    with pytest.raises(DimsError, match=r'test_narrowing\.py:\d+.*\n  hint: write "t=8\.\.24"'):
        planned(Nested(), (features(3, 24),), {"x": {1: "t=2..24"}})


class Pooled(nn.Module):
    """A mean over what may be a single number, if an image is both low and narrow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(2, 4, 4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).mean((2, 3)).pow(2).sum()


def image(b: int, h: int, w: int) -> torch.Tensor:
    return torch.randn(b, 2, h, w, generator=torch.Generator().manual_seed(b * h * w))


@pytest.mark.slow
def test_sizes_that_are_too_small_together() -> None:
    model = Pooled()
    schedule = planned(model, (image(4, 24, 16),), {"x": {0: "b", 2: "h", 3: "w"}})
    dims = schedule.model.dims
    assert schedule.digest is not None
    assert (dims["b"].min, dims["h"].min, dims["w"].min) == (2, 8, 4)
    assert_trains(model, schedule, [(image(*sizes),) for sizes in ((2, 8, 4), (4, 24, 16), (3, 9, 7))])


@pytest.mark.slow
def test_sizes_that_are_too_small_together_up_to_what_is_planned() -> None:
    """The planned size is the least; the batch has no part in it and is not named."""
    told = r"is not that at b=4, h=8, w=8: [^!]*\n  hint: write \"h=8\.\.16\", for which the step is the same, or leave h fixed"
    with pytest.raises(DimsError, match=told):
        planned(Pooled(), (image(4, 8, 8),), {"x": {0: "b", 2: "h=4..16", 3: "w=4..16"}})


class Sound(nn.Module):
    """Two strides, one after the other, and attention over what is left."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(1, 4, 10, 5), nn.Conv1d(4, 4, 3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(self.first(x.unsqueeze(1)).relu())
        return (y.mT @ y).softmax(-1).pow(2).mean()


@pytest.mark.slow
def test_strides_one_after_the_other() -> None:
    """`((t-10)//10)^2`."""
    model = Sound()

    def sound(b: int, t: int) -> torch.Tensor:
        return features(b, t)[..., 0].contiguous()

    schedule = planned(model, (sound(3, 150),), {"x": {0: "b", 1: "t"}})
    least = schedule.model.dims["t"].min
    assert_trains(model, schedule, [(sound(*sizes),) for sizes in ((3, 150), (2, least), (2, 99), (3, 101), (2, 60))])


class Summed(nn.Module):
    """The gradient of a sum is expanded: transposed where it is a square, it has the same strides."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).sum()


@pytest.mark.quick("2")
@pytest.mark.parametrize("planned", [2, 5])
def test_a_square_does_not_end_a_range(planned: int) -> None:
    model = Summed()
    schedule = remate.plan(model, (torch.ones(planned, 2, 4),), budget="100%", cost="cpu", dims={"x": {0: "b=2..8"}})
    scheduled = remate_runtime.apply(copy.deepcopy(model), schedule)
    for b in range(2, 9):
        x = torch.arange(8.0 * b).view(b, 2, 4).sin()
        for each in (model, scheduled):
            each.zero_grad()
            each(x).backward()
        eager, ours = ([p.grad for p in each.parameters() if p.grad is not None] for each in (model, scheduled))
        assert all(map(torch.equal, eager, ours))
