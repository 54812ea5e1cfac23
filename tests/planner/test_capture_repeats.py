"""Equal blocks are traced once, and the step is the same as with all blocks traced."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from remate.capture import torch_api
from remate.capture.capture_step import capture
from remate.capture.captured import Captured
from remate.capture.repeats import alike, candidates, tracing
from remate.capture.repeats.errors import UnlikeError
from tests.models import ZOO

from .repeating_models import KINDS, STATE, Stack

# The blocks of other models are of the same kinds as those of these.
EQUAL = ("t5", "moe", "mlp_mixer")
# Models without equal blocks: nothing is traced in another way.
DIFFERENT = {"two_tower", "resnet", "regnet", "depthwise", "unet", "lstm", "gru", "state_space"}


def both(
    build: Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> tuple[Captured, Captured, int]:
    """Capture with and without templates; returns the number of blocks that were not traced."""
    count = 0
    usual = tracing.paste

    def counting(module: Any, instances: Any) -> None:
        nonlocal count
        usual(module, instances)
        count = len(instances)

    monkeypatch.setattr(tracing, "paste", counting)
    for module in (alike, candidates):
        monkeypatch.setattr(module, "SHARE", 0.0)  # however little it saves
    quick = capture(*build())
    monkeypatch.setattr(tracing, "candidates", lambda model: {})
    return quick, capture(*build()), count


def differs(left: Captured, right: Captured) -> str:
    """The first difference; "" if there is none."""
    for first, second in zip(left.graph.operations, right.graph.operations, strict=False):
        if repr(first) != repr(second):
            return f"{first}\n{second}"
    return "" if repr(left) == repr(right) else "elsewhere"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", KINDS)
def test_the_step_is_that_of_tracing_everything(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, pasted = KINDS[name]

    def build() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
        STATE.clear()
        torch.manual_seed(0)
        return make(), (torch.randn(2, 8, 4),), {}

    quick, whole, count = both(build, monkeypatch)
    assert differs(quick, whole) == ""
    assert count == pasted


@pytest.mark.parametrize("name", sorted(DIFFERENT))
def test_models_without_equal_blocks_have_no_candidates(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "SHARE", 0.0)
    assert candidates.candidates(ZOO[name].build()[0]) == {}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", EQUAL)
def test_steps_of_the_zoo_are_those_of_tracing_everything(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quick, whole, _ = both(ZOO[name].build, monkeypatch)
    assert differs(quick, whole) == ""


def traces(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> int:
    """Number of complete traces during the capture of `model`."""
    count = 0
    usual = torch_api.joint

    def counting(*given: Any) -> Any:
        nonlocal count
        result = usual(*given)
        count += 1
        return result

    monkeypatch.setattr(torch_api, "joint", counting)
    capture(model, (torch.randn(2, 8, 4),), {})
    return count


@pytest.mark.quick("rates")
@pytest.mark.parametrize("name", ["shared", "shared once", "rates", "batch norm", "written"])
def test_what_cannot_be_put_together_is_traced_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is seen in the first run of forward, which is then the one that every trace makes."""
    assert traces(KINDS[name][0](), monkeypatch) == 1
    assert alike.SHARE > 0


@pytest.mark.slow
def test_blocks_that_are_a_small_part_of_the_step_are_traced_in_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mostly(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x
            for _ in range(40):
                y = (y + 1).tanh()
            return super().forward(x) + y.mean()

    assert traces(Mostly(), monkeypatch) == 1
    assert traces(Stack(), monkeypatch) == 2  # the block, and the step around it


@pytest.mark.slow
def test_a_block_that_cannot_be_traced_by_itself_is_told_to_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*given: Any) -> Any:
        raise UnlikeError("it is another")

    whole = capture(Stack(), (torch.ones(2, 8, 4),), {})
    monkeypatch.setattr(tracing, "template", fails)
    with caplog.at_level(logging.DEBUG, "remate.capture"):
        assert differs(capture(Stack(), (torch.ones(2, 8, 4),), {}), whole) == ""
    assert "blocks.0 cannot be traced individually: it is another" in caplog.text


class Mixing(nn.Module):
    """Across and within, so that gradients have a different memory layout than what they belong to."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.across, self.within = nn.LayerNorm(8), nn.Linear(5, 5), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.across(self.norm(x).transpose(1, 2)).relu().transpose(1, 2)
        return x + self.within(x).tanh()


class Mixer(nn.Module):
    """way: how the last block's result is read, which determines the memory layout of its gradient."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.norm, self.blocks = way, nn.LayerNorm(8), nn.Sequential(*(Mixing() for _ in range(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(x.transpose(1, 2))
        if self.way == "norm":
            return self.norm(x).mean(1).pow(2).mean()
        return x.mean() if self.way == "mean" else (x[:, ::2] if self.way == "part" else x.transpose(1, 2)).pow(2)


def mixer(way: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    torch.manual_seed(0)
    return Mixer(way), (torch.randn(2, 8, 5),), {}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["norm", "mean", "part", "transposed"])
def test_gradients_that_lie_otherwise(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one template for each memory layout of gradients."""
    collected: list[Any] = []
    usual = tracing.template
    monkeypatch.setattr(tracing, "template", lambda *given: collected.append(given[2:]) or usual(*given))
    quick, whole, count = both(lambda: mixer(way), monkeypatch)
    assert differs(quick, whole) == ""
    assert count == 3  # the first one's input has no gradient
    assert len(collected) <= 3


@pytest.mark.slow
def test_gradients_that_lie_otherwise_each_time_are_traced_in_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_TRIES", 0)
    quick, whole, count = both(lambda: mixer("norm"), monkeypatch)
    assert (differs(quick, whole), count) == ("", 0)


@pytest.mark.slow
def test_gradients_of_another_layout_are_no_anomaly() -> None:
    """The first template's gradient is contiguous, those that the mixer's blocks are given are not: nobody is reported
    that."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        capture(*ZOO["mlp_mixer"].build())
    assert [str(warning.message) for warning in told] == []
