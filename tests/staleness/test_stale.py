"""A model whose code, attributes or hooks are not those that were planned is refused, naming what and both values."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.nn import functional as F

from remate.capture.capture_step import capture
from remate.errors import CaptureError
from remate_runtime import Schedule, StaleModelError, StaleModelWarning, apply
from remate_runtime.format import decode, encode
from remate_runtime.staleness import Code
from tests.runtime.stepping import assert_same, schedule_of, step, with_recomputes

from .sources import Sources, sources

__all__ = ["sources"]
X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def schedule(sources: Sources) -> Schedule:
    """Through its text, as in another process."""
    return decode(encode(schedule_of(sources.build(), (X,))))


@pytest.mark.slow
def test_the_planned_model_is_accepted(sources: Sources, schedule: Schedule) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, eager = sources.build(), sources.build()
        assert_same(step(apply(model, schedule), (X,)), step(eager, (X,)))


HARMLESS = {
    "comment": ("        # halves\n", "        # one half\n        # of it\n"),
    "whitespace": ("y = self.alpha * x\n", "y = (\n            self.alpha   *   x\n        )\n"),
    "docstring": ('"""A function of the user\'s."""', '"""Another text."""'),
    "docstring gone": ('    """A function of the user\'s."""\n', ""),
    "local variable": (
        "        y = self.alpha * x\n        return y * self.depth",
        "        z = self.alpha * x\n        return z * self.depth",
    ),
    "annotation": ("def leaky(x):", "def leaky(x: torch.Tensor) -> torch.Tensor:"),
    "what forward does not read": ('name: str = "a"', 'name: str = "b"'),
    "code that forward does not reach": ("def build():", "def other():\n    return 3\n\n\ndef build():"),
    "moved down": ("import dataclasses\n", "import dataclasses\n\n\nNOTHING = None\n\n\n"),
}


@pytest.mark.quick("moved down")
@pytest.mark.parametrize("edit", HARMLESS.values(), ids=HARMLESS)
def test_edits_that_change_nothing_are_accepted(sources: Sources, schedule: Schedule, edit: tuple[str, str]) -> None:
    model = sources.build(*edit)
    assert_same(step(apply(model, schedule), (X,)), step(model, (X,)))


HARMFUL = {
    "residual removed": ("y = y + x", "y = y", r"class Block \(train\): its forward changed"),
    "global": ("SLOPE = 0.25", "SLOPE = 0.5", r"global 'train.SLOPE' was 0.25 when planned, is 0.5"),
    "config of a module": ("gain: float = 1.5", "gain: float = 2.5", r"CONFIG.gain' was 1.5 when planned, is 2.5"),
    "function": ("torch.where(x > 0, x", "torch.where(x > 1, x", r"function 'train.leaky', which forward reaches"),
    "method": ("self.alpha * x", "self.alpha + x", r"function 'train.Block.mix'"),
    "class attribute": ("depth = 2", "depth = 3", r"attribute depth was 2 when planned, is 3"),
    "attribute": ("self.alpha, self.residual, self.act = 0.5", "self.alpha, self.residual, self.act = 0.6", "0.5.*0.6"),
    "flag": ("0.5, True", "0.5, False", "attribute residual was true when planned, is false"),
    "dropout": (
        "p=0.1",
        "p=0.0",
        r"modules 'blocks.\[0-2\].drop' \(Dropout\): attribute p was 0.1 when planned, is 0.0",
    ),
    "function by attribute": (
        "True, F.silu",
        "True, F.relu",
        "attribute act was torch.nn.functional.silu when planned",
    ),
    "function by import": ("import gelu as", "import silu as", r"class Block \(train\): its forward changed"),
    "partial": ("beta=2.0", "beta=3.0", "functools.partial of .*2.0.* when planned, is .*3.0"),
    "dict": ('{"default": 2.0}', '{"default": 2.5}', "attribute scaling was .*2.0"),
    "module": ("nn.GELU()", "nn.SiLU()", r"module 'head.1' \(GELU\): is a torch.nn.SiLU now"),
    "module added": ("nn.GELU())", "nn.GELU(), nn.Tanh())", r"module 'head.2' \(Tanh\): was not there when planned"),
    "argument of a module": ("nn.GELU()", 'nn.GELU("tanh")', 'attribute approximate was "none" when planned'),
}


@pytest.mark.quick("config of a module")
@pytest.mark.parametrize(("old", "new", "message"), HARMFUL.values(), ids=HARMFUL)
def test_edits_that_change_the_step_are_refused(
    sources: Sources, schedule: Schedule, old: str, new: str, message: str
) -> None:
    with pytest.raises(StaleModelError, match=message):
        apply(sources.build(old, new), schedule)


REGISTRY = """
import torch
from torch import nn

REGISTERED = set()


def registered(function):
    REGISTERED.add(function)
    return function


class Scaled:
    def __init__(self, function):
        self.function = function

    def __call__(self, x):
        return self.function(x) * 2


@registered
def one(x):
    return other(x) if one in REGISTERED else x


@registered
def other(x):
    return x.tanh() if one in REGISTERED and other in REGISTERED else x


@Scaled
def third(x):
    return x + 1


class Net(nn.Module):
    def __init__(self, order=0):
        super().__init__()
        self.a, self.act = nn.Linear(8, 8), (one, other)[order]

    def forward(self, x):
        return self.through(self.a(x)).sum()

    def through(self, x):
        return third(self.act(one(x)))


def build():
    torch.manual_seed(0)
    return Net()
"""


def test_functions_that_reach_each_other_through_a_registry(sources: Sources) -> None:
    """What is recorded of them does not depend on where the search begins."""
    module, results = sources.load(REGISTRY), []
    for first, second in (("one", "other"), ("other", "one")):
        code = Code()
        code.follow(getattr(module, first))
        code.follow(getattr(module, second))
        results.append((code.functions, code.values))
    assert results[0] == results[1]
    assert all(entry["source"] for entry in results[0][1]["train.REGISTERED"])


def test_a_decorator_may_register_more_later(sources: Sources) -> None:
    text = REGISTRY.replace(" if one in REGISTERED else x", "").replace(
        " if one in REGISTERED and other in REGISTERED else x", ""
    )
    schedule = schedule_of(sources.build(text=text), (X,))
    later = text + "\n\n@registered\ndef fourth(x):\n    return x\n"
    apply(sources.build(text=later), schedule)
    with pytest.raises(StaleModelError, match="__call__"):
        apply(sources.build(text=text.replace("self.function(x) * 2", "self.function(x) * 3")), schedule)


def test_warn_goes_on_with_the_planned_step(sources: Sources, schedule: Schedule) -> None:
    model = sources.build("p=0.1", "p=0.0")
    with pytest.warns(StaleModelWarning, match="attribute p was 0.1 when planned"):
        planned = apply(model, schedule, stale="warn")
    assert_same(step(planned, (X,)), step(sources.build(), (X,)))


def test_versions_warn(sources: Sources, schedule: Schedule) -> None:
    assert schedule.digest is not None
    older = replace(schedule, digest=replace(schedule.digest, packages={"torchvision": "0.1"}))
    apply(sources.build(), older)  # a package that has nothing here: nothing to compare
    other = replace(schedule, model=replace(schedule.model, torch="2.11.0"))
    from remate_runtime.format import fingerprint

    other = replace(other, model=replace(other.model, fingerprint=fingerprint(other)))
    with pytest.warns(StaleModelWarning, match=r"planned with torch 2\.11\.0, this is torch .*\n.*verify=True"):
        apply(sources.build(), other)


def test_without_a_digest_nothing_is_compared(sources: Sources, schedule: Schedule) -> None:
    apply(sources.build("p=0.1", "p=0.0"), replace(schedule, digest=None))
    model = sources.build()
    model.blocks[0].register_forward_hook(print)
    with pytest.raises(StaleModelError, match=r"module 'blocks.0'.*forward: builtins.print"):
        apply(model, replace(schedule, digest=None))


def doubled(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
    return output * 2


def tripled(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
    return output * 3


def seen(module: nn.Module, *rest: Any) -> Any:
    """Returns nothing, which its source does not say."""
    return rest if module is None else None


@pytest.mark.quick("backward_pre")
@pytest.mark.parametrize(
    ("register", "kind"),
    [
        (nn.Module.register_forward_hook, "forward"),
        (nn.Module.register_forward_pre_hook, "forward_pre"),
        (nn.Module.register_full_backward_hook, "backward"),
        (nn.Module.register_full_backward_pre_hook, "backward_pre"),
    ],
)
def test_hooks_that_came_later_are_refused(
    sources: Sources, schedule: Schedule, register: Callable[..., Any], kind: str
) -> None:
    model = sources.build()
    register(model.blocks[1], seen)
    with pytest.raises(
        StaleModelError, match=rf"module 'blocks.1' \(Block\): the hook '{kind}: test_stale.seen' was not"
    ):
        apply(model, schedule)
    with pytest.raises(CaptureError, match=rf"hook '{kind}: test_stale.seen' of a submodule would never be called"):
        capture(model, (X,))


@pytest.mark.slow
def test_hooks_that_return_something_are_planned(sources: Sources) -> None:
    model, eager = sources.build(), sources.build()
    for module in (model, eager):
        module.blocks[1].register_forward_hook(doubled)
    schedule = decode(encode(schedule_of(model, (X,))))
    assert_same(step(apply(model, schedule), (X,)), step(eager, (X,)))
    with pytest.raises(
        StaleModelError, match=r"the hook 'forward: test_stale.doubled' was there when planned, and is gone"
    ):
        apply(sources.build(), schedule)
    model.blocks[1]._forward_hooks.clear()
    model.blocks[1].register_forward_hook(tripled)
    with pytest.raises(StaleModelError, match=r"test_stale\.tripled"):
        apply(model, schedule)


@pytest.mark.slow
def test_hooks_of_the_model_itself_run_once(sources: Sources) -> None:
    def build() -> Any:
        model = sources.build()
        model.register_forward_hook(doubled)
        return model

    model = build()
    planned = apply(model, decode(encode(schedule_of(model, (X,)))))
    assert_same(step(planned, (X,)), step(build(), (X,)))


def test_a_replaced_forward_is_refused(sources: Sources, schedule: Schedule) -> None:
    model = sources.build()
    model.blocks[0].forward = functools.partial(torch.mul, 2)
    with pytest.raises(StaleModelError, match=r"module 'blocks.0' \(Block\): its forward was replaced by"):
        apply(model, schedule)
    model = sources.build()
    inner = model.forward

    def autocast_forward(*args: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return inner(*args)

    model.forward = autocast_forward
    with pytest.raises(StaleModelError, match=r"autocast_forward'\n.*apply the schedule before a library wraps"):
        apply(model, schedule)


def test_a_class_whose_forward_was_replaced_is_refused(sources: Sources, schedule: Schedule) -> None:
    model = sources.build()
    type(model.blocks[0]).forward = lambda self, x: self.b(self.a(x))
    with pytest.raises(StaleModelError, match=r"forward reaches .*<lambda>. now, and did not when planned"):
        apply(model, schedule)


def test_source_that_cannot_be_read_is_said() -> None:
    scope: dict[str, Any] = {"nn": nn, "F": F, "__name__": "nowhere"}
    exec("class Net(nn.Linear):\n    def forward(self, x):\n        return F.gelu(super().forward(x))", scope)
    with pytest.warns(UserWarning, match=r"the source of 'nowhere.Net.forward' cannot be read"):
        captured = capture(scope["Net"](8, 2), (X,))
    assert captured.digest is not None
    assert captured.digest.functions == {"nowhere.Net.forward": None}
    apply(scope["Net"](8, 2), with_recomputes(captured, lambda graph: []))
