"""Loops as people write them: parameters and gradients at the end are eager's to the bit, or the call says what
works."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune
from torch.optim.swa_utils import AveragedModel

from remate_runtime import BindError, ExecutionError, Schedule, StaleModelError, apply

from .small import data, seeded
from .stepping import just_in_time, schedule_of

X, Y = data(6, 8), torch.tensor([0, 1, 2, 0, 1, 2])
BATCHES = [(data(6, 8, seed=seed), Y.roll(seed)) for seed in range(3)]
Make = Callable[[], Any]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down, self.drop = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.down(torch.tanh(self.up(self.norm(x)))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.Sequential(Block(), Block()), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(x))


def net() -> Any:
    return seeded(Net()).train()


@functools.cache
def schedule() -> Schedule:
    return schedule_of(net(), (X.clone().requires_grad_(),), recomputes=just_in_time)


def train(model: Any, optimizer: torch.optim.Optimizer | None = None) -> None:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1)
    for x, y in BATCHES:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def preference(make: Make) -> Any:
    """The policy is its own reference in the first step, a copy of it later; two forwards in one loss."""
    model = make()
    reference = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for at, (x, _) in enumerate(BATCHES):
        with torch.no_grad():
            if at:
                before = F.log_softmax(reference(x), -1)
            else:
                model.eval()
                before = F.log_softmax(model(x), -1)
                model.train()
        chosen, other = F.log_softmax(model(x), -1), F.log_softmax(model(x.flip(0)), -1)
        F.softplus(-(chosen - before).mean() + (other - before).sum() / 8).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def averages(make: Make) -> Any:
    model = make()
    mean, moving = AveragedModel(model), copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in BATCHES:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        mean.update_parameters(model)
        with torch.no_grad():
            for old, new in zip(moving.parameters(), model.parameters(), strict=True):
                old.lerp_(new, 0.1)
        moving(x)
    F.cross_entropy(moving(X), Y).backward()
    return nn.ModuleList([model, mean.module, moving])


def adversaries(make: Make) -> Any:
    makes, judges = make(), make()
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (makes, judges)]
    for x, _ in BATCHES:
        tensor = F.pad(makes(x), (0, 5))
        for optimizer, sample, sign in ((optimizers[1], tensor.detach(), 1.0), (optimizers[0], tensor, -1.0)):
            optimizer.zero_grad()
            F.softplus(sign * judges(sample).sum(1)).mean().backward()
            optimizer.step()
    return nn.ModuleList([makes, judges])


def sharpness(make: Make) -> Any:
    """SAM: the gradient of a point nearby, at the weights as they were."""
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in BATCHES:
        for nearby in (False, True):
            torch.manual_seed(1)
            F.cross_entropy(model(x), y).backward()
            if not nearby:
                before = [p.detach().clone() for p in model.parameters()]
                with torch.no_grad():
                    for p in model.parameters():
                        p.add_(p.grad, alpha=0.05)
                optimizer.zero_grad()
        with torch.no_grad():
            for p, old in zip(model.parameters(), before, strict=True):
                p.copy_(old)
        optimizer.step()
        optimizer.zero_grad()
    return model


def attacked(make: Make) -> Any:
    """The gradient of the input alone, then a step on what it leads to."""
    model, x = make(), X.clone().requires_grad_()
    (slope,) = torch.autograd.grad(F.cross_entropy(model(x), Y), x)
    F.cross_entropy(model(x.detach() + 0.1 * slope.sign()), Y).backward()
    return model


def weights_of_a_step_ahead(make: Make) -> Any:
    """First-order meta learning: the loss of parameters that a step has moved."""
    model = make()
    named = dict(model.named_parameters())
    loss = F.cross_entropy(torch.func.functional_call(model, named, (X,)), Y)
    slopes = torch.autograd.grad(loss, list(named.values()))
    moved = {name: p - 0.1 * slope for (name, p), slope in zip(named.items(), slopes, strict=True)}
    F.cross_entropy(torch.func.functional_call(model, moved, (X,)), Y).backward()
    return model


def validated(make: Make) -> Any:
    model = make()
    for _ in range(2):
        train(model)
        model.eval()
        with torch.no_grad():
            model(data(11, 8))
        with torch.inference_mode():
            model(X)
        model.train()
    return model


def thawed(make: Make) -> Any:
    model = make()
    for frozen in (False, True, False):
        model.blocks[0].requires_grad_(not frozen)
        train(model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1))
    return model


def tied_later(make: Make) -> Any:
    model = make()
    model.blocks[1].up.weight = model.blocks[0].up.weight
    train(model)
    return model


def skipped(make: Make) -> Any:
    """Forwards that no backward follows: an error in between, a loss that is not finite."""
    model = make()
    with pytest.raises(RuntimeError):
        model(X).view(5)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in [(X * float("nan"), Y), *BATCHES]:
        loss = F.cross_entropy(model(x), y)
        if torch.isfinite(loss):
            (loss * 0.5 / 3 + 1).backward()
            nn.utils.clip_grad_value_(model.parameters(), 0.01)
            optimizer.step()
            optimizer.zero_grad()
    return model


def within_another(make: Make) -> Any:
    """A forward and a backward of the model in the backward of somebody else's function."""
    model = make()

    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            torch.manual_seed(9)
            with torch.enable_grad():
                loss = model(X.clone().requires_grad_()).square().sum()
            loss.backward()
            return gradient

    Again.apply(X.clone().requires_grad_()).sum().backward()
    return model


EQUAL = (
    preference,
    averages,
    adversaries,
    sharpness,
    attacked,
    weights_of_a_step_ahead,
    validated,
    thawed,
    tied_later,
    skipped,
    within_another,
)


@pytest.mark.quick("weights_of_a_step_ahead")
@pytest.mark.compiled
@pytest.mark.parametrize("loop", EQUAL, ids=lambda loop: loop.__name__)
def test_a_loop_ends_as_in_eager(loop: Callable[[Make], Any]) -> None:
    file, ends = schedule(), []
    for make in (net, lambda: apply(net(), file)):
        torch.manual_seed(7)
        model = loop(make)
        ends.append([*model.state_dict().values(), *[p.grad for p in model.parameters()], torch.get_rng_state()])
    assert len(ends[0]) == len(ends[1])
    for actual, wanted in zip(ends[1], ends[0], strict=True):
        assert actual is wanted is None or torch.equal(actual, wanted)


def penalty(model: Any) -> None:
    x = X.clone().requires_grad_()
    torch.autograd.grad(model(x).sum(), x, create_graph=True)


def backward_twice(model: Any) -> None:
    loss = model(X).sum()
    loss.backward(retain_graph=True)
    loss.backward()


def normed(model: Any) -> None:
    torch.nn.utils.parametrizations.weight_norm(model.head)
    model(X)


def pruned(model: Any) -> None:
    prune.l1_unstructured(model.head, "weight", amount=0.3)
    model(X)


def another_head(model: Any) -> None:
    model.head = nn.Linear(8, 3)
    model(X)


REFUSED: dict[Callable[[Any], None], tuple[type[Exception], str]] = {
    penalty: (ExecutionError, "use the original model for double backward"),
    backward_twice: (ExecutionError, "run forward again before each backward"),
    normed: (BindError, "plan the model again"),
    pruned: (StaleModelError, "plan the model again"),
    another_head: (BindError, r"for this call: remate\.plan\(model\.train\(\)"),
    lambda model: torch.vmap(model, randomness="different")(data(2, 6, 8)): (ExecutionError, "use the original model"),
}


@pytest.mark.quick("backward_twice")
@pytest.mark.parametrize("act", REFUSED, ids=lambda act: act.__name__)
def test_a_loop_that_cannot_run_is_told_what_can(act: Callable[[Any], None]) -> None:
    kind, told = REFUSED[act]
    with pytest.raises(kind, match=told):
        act(apply(net(), schedule()))


def test_checkpointing_that_a_library_switches_on_is_switched_off_again() -> None:
    """`model.gradient_checkpointing_enable()` and Trainer's option of that name set a flag that forward reads."""

    class Flagged(Net):
        gradient_checkpointing = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.blocks(x)) if not self.gradient_checkpointing else self.head(self.blocks(x) * 1)

    def made() -> Any:
        model = seeded(Flagged()).train()
        model.gradient_checkpointing = False
        return model

    schedule, told = schedule_of(made(), (X,)), r"\n  .*model\.gradient_checkpointing_disable\(\)"
    model = made()
    planned = apply(model, schedule)
    model.gradient_checkpointing = True
    with pytest.raises(StaleModelError, match=told):
        planned(X)
    with pytest.raises(StaleModelError, match=told):
        apply(model, schedule)
