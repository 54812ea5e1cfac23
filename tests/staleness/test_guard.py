"""What changes after a schedule was applied is noticed at the next call; what steps aside says so."""

from __future__ import annotations

import copy
import functools
import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.flop_counter import FlopCounterMode

from remate.errors import CaptureError
from remate_runtime import BindError, Schedule, StaleModelError, SteppedAsideWarning, apply
from remate_runtime.format import decode, encode
from tests.runtime.stepping import assert_same, schedule_of, step

from .sources import Sources, sources

__all__ = ["sources"]
X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def schedule(sources: Sources) -> Schedule:
    return decode(encode(schedule_of(sources.build(), (X,))))


def _seen(module: nn.Module, *rest: Any) -> Any:
    return rest if module is None else None


def _set(path: str, name: str, value: Any) -> Callable[[Any], None]:
    return lambda model: setattr(model.get_submodule(path), name, value)


def _replace_function(model: Any) -> None:
    type(model.blocks[0]).forward.__globals__["leaky"] = F.relu


def _replace_global(model: Any) -> None:
    type(model.blocks[0]).forward.__globals__["SLOPE"] = 0.75


CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "attribute that warms up": (
        _set("blocks.1", "alpha", 0.6),
        r"'blocks.1' \(Block\): attribute alpha was 0.5, is 0.6",
    ),
    "flag": (_set("blocks.0", "residual", False), "attribute residual was true, is false"),
    "dropout": (_set("blocks.2.drop", "p", 0.0), r"'blocks.2.drop' \(Dropout\): attribute p was 0.1, is 0.0"),
    "class attribute hidden": (_set("blocks.0", "depth", 3), "attribute depth was 2, is 3"),
    "class attribute": (lambda m: setattr(type(m.blocks[0]), "depth", 3), "attribute depth was 2, is 3"),
    "activation": (_set("blocks.0", "act", torch.sin), "attribute act was torch.nn.functional.silu, is torch.sin"),
    "entry of a dict": (lambda m: m.blocks[0].scaling.update(default=3.0), "attribute scaling was"),
    "field of a config": (
        lambda m: setattr(m.blocks[1].config, "gain", 2.0),
        r"'blocks.1.config' \(Config\): attribute gain",
    ),
    "config exchanged": (
        _set("blocks.1", "config", None),
        "attribute config was an object of class 'Config', is null",
    ),
    "global": (_replace_global, "global 'train.SLOPE' was 0.25, is 0.75"),
    "function": (_replace_function, "function 'train.leaky' was train.leaky, is torch.nn.functional.relu"),
    "method": (lambda m: setattr(type(m.blocks[0]), "mix", lambda self, x: x), "function 'train.Block.mix' was"),
    "forward": (_set("blocks.0", "forward", functools.partial(torch.mul, 2)), "its forward was replaced by"),
    "forward of the class": (
        lambda m: setattr(type(m.blocks[0]), "forward", lambda self, x: x),
        "function 'train.Block.forward' was train.Block.forward, is",
    ),
    "forward of the model": (_set("", "forward", torch.sum), r"the model \(Net\): its forward was replaced by"),
    "attributes of a config": (
        lambda m: setattr(m.blocks[1].config, "__dict__", {**vars(m.blocks[1].config), "gain": 2.0}),
        r"'blocks.1.config' \(Config\): attribute gain",
    ),
    "hooks in a new dict": (
        lambda m: setattr(m.blocks[0], "_forward_hooks", {0: _seen}),
        "the hook 'forward: test_guard._seen' was not there",
    ),
    "forward hook": (
        lambda m: m.blocks[0].register_forward_hook(_seen),
        "the hook 'forward: test_guard._seen' was not there",
    ),
    "pre-hook": (
        lambda m: m.head[0].register_forward_pre_hook(_seen),
        "the hook 'forward_pre: test_guard._seen' was not there",
    ),
    "backward hook": (
        lambda m: m.blocks[0].register_full_backward_hook(_seen),
        "'backward: test_guard._seen' was not there",
    ),
}


@pytest.mark.quick("dropout")
@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES)
def test_changes_after_apply_are_refused(
    sources: Sources, schedule: Schedule, change: Callable[[Any], Any], message: str
) -> None:
    model = sources.build()
    planned = apply(model, schedule)
    planned(X).backward()
    change(model)
    with pytest.raises(StaleModelError, match=message):
        planned(X)
    with pytest.raises(StaleModelError, match="plan the model again"):
        planned(X)  # not once only


DICTS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "parameters": (lambda m, new: setattr(m.blocks[0].a, "_parameters", new.a._parameters), "another _parameters"),
    "modules": (
        lambda m, new: setattr(m.blocks, "_modules", dict(m.blocks._modules)),
        "'blocks': has another _modules",
    ),
    "all attributes": (lambda m, new: setattr(m.blocks[0], "__dict__", vars(new)), "another __dict__"),
    "all, in the same dict": (lambda m, new: vars(m.blocks[0]).update(vars(new)), "another _parameters"),
}


@pytest.mark.parametrize(("change", "message"), DICTS.values(), ids=DICTS)
def test_a_module_with_other_dicts_is_refused_until_applied_again(
    sources: Sources, schedule: Schedule, change: Callable[[Any, Any], Any], message: str
) -> None:
    model = sources.build()
    planned = apply(model, schedule)
    planned(X).backward()
    change(model, sources.build().blocks[0])
    with pytest.raises(BindError, match=f"{message}.*; apply it again"):
        planned(X)
    again = apply(model, schedule)
    assert_same(step(again, (X,)), step(model, (X,)))


def test_a_class_that_gets_a_forward_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain(nn.Linear):
        pass

    model = nn.Sequential(Plain(8, 8))
    planned = apply(model, schedule_of(model, (X,)))
    monkeypatch.setattr(Plain, "forward", lambda self, x: x * 2, raising=False)
    with pytest.raises(StaleModelError, match=r"forward reaches .*a_class_that_gets_a_forward"):
        planned(X)


def test_what_is_set_back_runs_again(sources: Sources, schedule: Schedule) -> None:
    model = sources.build()
    planned = apply(model, schedule)
    model.blocks[0].alpha = 0.7
    handle = model.blocks[1].register_forward_hook(_seen)
    with pytest.raises(StaleModelError, match=r"alpha was 0.5, is 0.7\n(.*\n)*.*was not there"):
        planned(X)
    model.blocks[0].alpha = 1 / 2
    handle.remove()
    model.blocks[0].scaling = {"default": 2.0}  # another dict that says the same
    assert_same(step(planned, (X,)), step(sources.build(), (X,)))


def test_hooks_of_all_modules_are_refused(sources: Sources, schedule: Schedule) -> None:
    planned = apply(sources.build(), schedule)
    handle = register_module_forward_hook(_seen)
    try:
        with pytest.raises(StaleModelError, match=r"'global: test_guard\._seen', registered for all modules"):
            planned(X)
        with pytest.raises(CaptureError, match="registered for all modules, would never be called"):
            schedule_of(sources.build(), (X,))
    finally:
        handle.remove()
    planned(X)


@pytest.mark.slow("MemTracker")
@pytest.mark.parametrize("counter", [functools.partial(FlopCounterMode, display=False), MemTracker])
def test_counters_of_torch_are_no_hooks(sources: Sources, schedule: Schedule, counter: Callable[[], Any]) -> None:
    """They know the module that runs by hooks of all modules, which compute nothing."""
    planned, model = apply(sources.build(), schedule), sources.build()
    with counter() as counted:
        actual = step(planned, (X,))
    with counter() as eager:
        wanted = step(model, (X,))
    assert_same(actual, wanted)
    if isinstance(counted, FlopCounterMode):
        assert counted.get_total_flops() >= eager.get_total_flops() > 0  # what runs again is counted again


def test_copies_are_watched_by_themselves(sources: Sources, schedule: Schedule) -> None:
    planned = apply(sources.build(), schedule)
    buffer = io.BytesIO()
    torch.save(planned, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(planned), torch.load(buffer, weights_only=False)):
        other(X)
        other.blocks[0].alpha = 0.9
        with pytest.raises(StaleModelError, match="alpha"):
            other(X)
    planned(X)


def test_unrelated_changes_are_fine(sources: Sources, schedule: Schedule) -> None:
    model = sources.build()
    planned = apply(model, schedule)
    model.steps_done = 3
    model.blocks[0].name = "first"
    model.blocks[0].config.name = "b"
    model.register_forward_hook(_seen)
    model.blocks[0].a.weight.register_hook(lambda grad: grad)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        planned(X).backward()


def test_eval_with_gradients_says_so_once(sources: Sources, schedule: Schedule) -> None:
    planned = apply(sources.build(), schedule)
    planned.eval()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        planned(X)
    with pytest.warns(SteppedAsideWarning, match=r"eval\(\) mode with gradients on"):
        planned(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        planned(X)


def test_a_forward_that_does_not_call_the_schedule_says_so(sources: Sources, schedule: Schedule) -> None:
    model = sources.build()
    planned = apply(model, schedule)
    planned.forward = lambda x: model.head(x).sum()
    with pytest.warns(SteppedAsideWarning, match=r"its forward was replaced by '.*<lambda>', which does not call it"):
        planned(X)
    planned = apply(sources.build(), schedule)
    inner = planned.forward
    planned.forward = lambda x: inner(x) * 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        planned(X)


def test_replicas_of_data_parallel_say_so(sources: Sources, schedule: Schedule) -> None:
    planned = apply(sources.build(), schedule)
    replica = planned._replicate_for_data_parallel()
    replica._modules = dict(planned._modules)
    with pytest.warns(SteppedAsideWarning, match="a replica of DataParallel"):
        replica(X)


class Optional(nn.Module):
    """Reads what may be registered later."""

    gain: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        return (x * self.gain if hasattr(self, "gain") else x).sum()


GAINS: dict[str, Callable[[Any], Any]] = {
    "buffer": lambda model: model.register_buffer("gain", torch.full((8,), 2.0)),
    "parameter": lambda model: model.register_parameter("gain", nn.Parameter(torch.full((8,), 2.0))),
    "number": lambda model: setattr(model, "gain", 2.0),
    "number of the class": lambda model: setattr(type(model), "gain", 2.0),
}


@pytest.mark.parametrize("name", GAINS)
def test_what_forward_asks_for_is_there_later(name: str) -> None:
    class Asking(Optional):
        pass

    model = Asking()
    planned = apply(model, schedule_of(model, (X,)))
    planned(X).backward()
    GAINS[name](model)
    with pytest.raises(StaleModelError, match="attribute gain was absent"):
        planned(X)
