"""The self-check notices changes of a model whatever they are made of, names where, and takes nothing for a change that
is none."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import remate_runtime.applied.scheduled_forward as scheduled_forward
from remate_runtime import BindError, StaleModelError, StaleModelWarning, SteppedAsideWarning, apply
from tests.runtime.small import Mlp, Normed, data, seeded
from tests.runtime.stepping import assert_same, schedule_of, step

FILE: dict[str, Any] = {}


class Scaled(torch.autograd.Function):
    """Its backward reads what forward does not."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.kept = x
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * FILE.get("scale", 2.0)


class Net(nn.Module):
    """Reads what a guard cannot know: `FILE` stands for a file or a server."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(8, 16), nn.Linear(16, 8), nn.Dropout(0.25)

    def forward(self, x: torch.Tensor) -> Any:
        y = torch.tanh(self.a(x)) * look("gain", 1.0)
        y = self.drop(y)
        if look("flat", False):
            y = y.detach()
        if look("draws", False):
            torch.rand(1)
        if look("python", False):
            random.random()
        if look("hook", False):
            y.register_hook(lambda gradient: gradient * 2)
        if look("set", False):
            self.kept = y.detach()
        if look("writes", False):
            x.mul_(1.5)
        if look("half", False):
            return self.b(y).to(torch.bfloat16)
        if look("scale", 0.0):
            y = Scaled.apply(y)
        outputs = self.b(y) * look("after", 1.0)
        return (outputs, outputs) if look("two", False) else outputs


def look(name: str, default: Any) -> Any:
    return FILE.get(name, default)


def _blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the guard and the digest out: what they see is their tests' matter."""

    class Nothing:
        def check(self) -> None:
            pass

    monkeypatch.setattr(scheduled_forward, "unchecked", lambda *args: Nothing())


@pytest.fixture(autouse=True)
def nothing_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    FILE.clear()
    _blind(monkeypatch)


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "a number": ({"gain": 1.5}, r"aten.mul in the model itself \(test_changes.py:\d+ forward\)"),
    "another random number": ({"draws": True}, "a generator of random numbers: torch"),
    "Python's random numbers": ({"python": True}, r"random numbers: random \(Python's\)"),
    "a hook on a tensor": ({"hook": True}, "gradient of 'a.weight'"),
    "an attribute": ({"set": True}, "attribute 'kept': the model sets it to a tensor"),
    "an input that is written": ({"writes": True}, "the model writes into a tensor of shape"),
    "another dtype": ({"half": True}, r"output: the model gives bf16\[4,8\]"),
    "another structure": ({"two": True}, r"the model returns output\[0\], output\[1\]; the schedule output"),
}


@pytest.mark.quick("a number")
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_named_and_leaves_nothing_behind(change: str) -> None:
    values, told = CHANGES[change]
    model, x = seeded(Net()), data(4, 8)
    planned = apply(model, schedule_of(model, (x,)))
    FILE.update(values)
    before, given = torch.get_rng_state(), x.clone()
    with pytest.raises(StaleModelError, match=told):
        planned(x)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(x, given)
    assert not hasattr(model, "kept")


def test_a_gradient_that_is_cut_off_shows_with_backward() -> None:
    """Outputs are the same, so that only `verify=True` and (args, kwargs) see it."""
    model, x = seeded(Net()), data(4, 8)
    schedule = schedule_of(model, (x,))
    FILE["flat"] = True
    apply(model, schedule)(x)
    with pytest.raises(StaleModelError, match=r"gradient of 'a\.weight': the model gives none"):
        apply(model, schedule, verify=((x,), {}))


def test_the_backward_of_a_function() -> None:
    FILE["scale"] = 2.0
    model, x = seeded(Net()), data(4, 8)
    planned = apply(model, schedule_of(model, (x,)))
    planned(x)
    planned = apply(model, schedule_of(model, (x,)))
    FILE["scale"] = 3.0
    with pytest.raises(StaleModelError, match=r"gradient of 'a\.weight'"):
        planned(x)


def test_hooks_of_the_caller_that_round_what_is_saved() -> None:
    model, x = seeded(Net()), data(4, 8)
    planned = apply(model, schedule_of(model, (x,)))

    def rounded(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(torch.bfloat16).to(tensor.dtype)

    hooks = torch.autograd.graph.saved_tensors_hooks(rounded, lambda tensor: tensor)
    with hooks, pytest.raises(StaleModelError, match="gradient of"):
        planned(x)


def test_when() -> None:
    model, x = seeded(Net()), data(4, 8)
    schedule = schedule_of(model, (x,))

    def answers(verify: Any, calls: int) -> list[bool]:
        FILE.clear()
        planned, results = apply(model, schedule, verify=verify), []
        for number in range(calls):
            FILE["gain"] = 1.0 if number == 0 else 2.0
            try:
                planned(x)
                results.append(True)
            except StaleModelError:
                results.append(False)
        return results

    assert answers("first", 4) == [True] * 4
    assert answers(2, 5) == [True, True, False, False, False]  # calls after a difference are checked
    assert answers(1, 3) == [True, False, False]
    FILE["gain"] = 2.0
    apply(model, schedule, verify="never")(x)
    apply(model, schedule, verify=False)(x)
    planned = apply(model, schedule)
    FILE["gain"] = 1.0
    planned(x)
    FILE["gain"] = 2.0
    with torch.no_grad(), pytest.raises(StaleModelError):  # another program
        planned(x)
    for wrong in ("often", 0, -1, 1.5, (1, 2, 3)):
        with pytest.raises(Exception, match="is no time to check"):
            apply(model, schedule, verify=wrong)  # pyright: ignore[reportArgumentType]
    assert copy.deepcopy(apply(model, schedule, verify=7))._remate_step.checks.every == 7


@pytest.mark.quick("Normed")
@pytest.mark.parametrize("build", [Net, lambda: Mlp(0.5), Normed])
def test_steps_are_those_without_a_check(build: Callable[[], nn.Module]) -> None:
    model = seeded(build())
    x = data(4, 3, 6, 6) if isinstance(model, Normed) else data(4, 8)
    schedule, wanted = schedule_of(model, (x,)), copy.deepcopy(model)
    planned = apply(model, schedule, verify=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(3):
            assert_same(step(planned, (x,), seed=seed), step(wanted, (x,), seed=seed))


class Silu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.lin(x)
        return (y * torch.sigmoid(y) if FILE.get("spelled") else F.silu(y)).pow(2)


def test_rounding_is_a_warning() -> None:
    model, x = seeded(Silu()), data(64, 64)
    planned = apply(model, schedule_of(model, (x,)))
    FILE["spelled"] = True
    with pytest.warns(UserWarning, match=r"differ by rounding\n  - output(.|\n)*does not run aten.silu"):
        planned(x)


def test_another_layout_of_an_input_is_named() -> None:
    model, x = seeded(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Conv2d(8, 8, 3))), data(4, 3, 12, 12)
    planned = apply(model, schedule_of(model, (x,)))
    planned(x)
    strided = x.to(memory_format=torch.channels_last)
    if torch.equal(model(x), model(strided)):
        pytest.skip("kernels of this machine sum in the same order")
    with pytest.warns(
        StaleModelWarning, match=r"differ by rounding\n(.|\n)*'input' has a different memory layout than"
    ):
        planned(strided)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        planned(strided)
        planned(x)


class Marked(torch.Tensor):
    """A class of tensors that replaces nothing."""


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, pair: Any) -> torch.Tensor:
        left, right = pair
        y = self.a(left + right) * FILE.get("branching", 1.0)
        for other in (isinstance(pair, tuple), type(left) is Marked, not right.is_contiguous(), left.requires_grad):
            y = y * 3 if other else y
        return y


OTHER_FORMS: dict[str, Any] = {
    "tuple": lambda left, right: (left, right),
    "no gradient": lambda left, right: [left.detach(), right],
    "class": lambda left, right: [left.as_subclass(Marked), right],
    "layout": lambda left, right: [left, right.t().contiguous().t()],
    "repeated": lambda left, right: [left, right[:1].expand(4, 8)],
}


@pytest.mark.quick("tuple", "no gradient")
@pytest.mark.parametrize("form", OTHER_FORMS)
def test_the_first_call_of_each_form_is_checked(form: str) -> None:
    model, pair = seeded(Branching()), [data(4, 8).requires_grad_(), data(4, 8, seed=2)]
    planned = apply(model, schedule_of(model, (pair,)))
    planned(pair)
    for _ in range(2):
        with pytest.raises(BindError, match=r"the model computes something else for them\n(.|\n)*this form, too"):
            planned(OTHER_FORMS[form](*pair))
    planned(pair)


class Dropping(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 8, 3), nn.Dropout(0.5), nn.Conv2d(8, 8, 3))


def test_calls_of_another_layout_run_as_the_model_would() -> None:
    model, x = seeded(Dropping()), data(4, 3, 12, 12)
    schedule = schedule_of(model, (x,))
    planned = apply(copy.deepcopy(model), schedule, otherwise="original")
    calls = [x, x.to(memory_format=torch.channels_last), x, x.to(memory_format=torch.channels_last)]
    for at, call in enumerate(calls):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always", SteppedAsideWarning)
            assert_same(step(planned, (call,)), step(model, (call,)))
        assert ["'input' has a different memory layout than planned" in str(w.message) for w in seen] == [True] * (
            at == 1
        )
    with pytest.raises(BindError, match="'input' has a different memory layout than planned"):
        apply(model, schedule)(calls[1])


def test_a_change_that_another_form_showed_is_noticed_in_the_planned_one() -> None:
    model, pair = seeded(Branching()), [data(4, 8), data(4, 8, seed=2)]
    planned = apply(model, schedule_of(model, (pair,)), otherwise="original")
    planned(pair)
    FILE["branching"] = 2.0
    with pytest.warns(SteppedAsideWarning):
        planned((pair[0], pair[1]))
    with pytest.raises(StaleModelError):
        planned(pair)


def test_a_model_that_changed_is_refused_at_every_call() -> None:
    model, x = seeded(Net()), data(4, 8)
    planned = apply(model, schedule_of(model, (x,)))
    FILE["gain"] = 2.0
    for _ in range(3):
        with pytest.raises(StaleModelError):
            planned(x)


class Cache:
    """What no file can contain, as a cache of keys and values."""


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"loss": self.a(x).square().mean(), "cache": Cache()}


@pytest.mark.filterwarnings("ignore:output 'cache'")
def test_an_object_that_planning_left_out_is_no_difference() -> None:
    model, x = seeded(Cached()), data(4, 8)
    planned = apply(model, schedule_of(model, (x,)), verify=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        planned(x)["loss"].backward()


@pytest.mark.quick("0.0")
@pytest.mark.parametrize("p", [0.0, 0.25])
def test_the_place_of_a_difference_is_not_that_of_a_mask(p: float) -> None:
    model, x = seeded(Net()), data(4, 8)
    model.drop.p = p
    planned = apply(model, schedule_of(model, (x,)))
    FILE["after"] = 3.0
    with pytest.raises(StaleModelError) as raised:
        planned(x)
    assert "bernoulli" not in str(raised.value)
    assert "native_dropout" not in str(raised.value)


def test_a_forward_that_cannot_run_is_said_once() -> None:
    model, x = seeded(Net()), data(4, 8)
    planned = apply(model, schedule_of(model, (x,)), verify=1)
    FILE["gain"] = None
    with pytest.warns(UserWarning, match=r"could not run the model's own forward(.|\n)*raises TypeError"):
        planned(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        planned(x)


def test_counters_of_operations_do_not_see_it() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model, x = seeded(Net()), data(4, 8)
    planned = apply(model, schedule_of(model, (x,)))
    with FlopCounterMode(display=False) as counter:
        planned(x)
    assert counter.get_total_flops() == 2 * 4 * 8 * 16 * 2
    FILE["gain"] = 2.0
    with pytest.raises(StaleModelError):
        planned(x)


def test_who_asked_for_a_warning_gets_one() -> None:
    model, x = seeded(Net()), data(4, 8)
    schedule = schedule_of(model, (x,))
    planned, usual = apply(model, schedule, stale="warn"), apply(seeded(Net()), schedule)
    wanted = step(usual, (x,))
    FILE["gain"] = 2.0
    with pytest.warns(UserWarning, match="this call differs in"):
        actual = step(planned, (x,))
    assert_same(actual, wanted)
