"""`apply(..., verify=True)`: a step beside the model sees what no digest can, and leaves everything as it was."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from remate_runtime import BindError, StaleModelError, apply
from remate_runtime.staleness import beyond_reordering
from tests.runtime.small import Answering, Mlp, Normed, Tied, data, seeded
from tests.runtime.stepping import schedule_of

GAIN = "2.0"  # what is read from the environment is not in a digest


class Hidden(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.lin(x) * float(os.environ.get("REMATE_TEST_GAIN", GAIN))).pow(2).mean()


def test_a_change_that_the_digest_does_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = seeded(Hidden()), data(4, 8)
    schedule = schedule_of(model, (x,))
    apply(model, schedule, verify=True)
    monkeypatch.setenv("REMATE_TEST_GAIN", "0.5")
    apply(model, schedule)
    with pytest.raises(
        StaleModelError,
        match=r"differs in\n  - the first result of the schedule .*aten.mul(.|\n)*gradient of 'lin.weight': "
        r"the model gives",
    ):
        apply(model, schedule, verify=True)
    with pytest.raises(StaleModelError, match="gradient of"):
        apply(model, schedule, verify=((x,), {}))


class Spelled(nn.Module):
    """The same product by one operator or by two."""

    def __init__(self, wide: bool = False, gain: float = 1.0) -> None:
        super().__init__()
        self.lin, self.norm, self.drop = nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8), nn.Dropout(0.2)
        self.wide, self.gain = wide, gain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x.unsqueeze(1) * self.lin.weight).sum(-1) if self.wide else self.lin(x)
        return self.lin(self.drop(self.norm(y)).relu_()).pow(2).mean() * self.gain


def test_operators_that_eager_does_not_run_are_named(recwarn: pytest.WarningsRecorder) -> None:
    model, x = seeded(Spelled()), data(4, 8)
    schedule = schedule_of(model, (x,))
    apply(model, schedule, verify=((x,), {}))
    assert not recwarn.list
    other = seeded(Spelled(wide=True))
    with pytest.warns(
        UserWarning,
        match=r"does not run aten.mm 2 times but 1, as in 'model.lin.mm' \(test_beside.py:.*different order",
    ):
        apply(other, schedule, stale="warn", verify=((x,), {}))
    with pytest.raises(StaleModelError, match=r"  - the model's own forward does not run aten.mm 2 times but 1"):
        apply(seeded(Spelled(wide=True, gain=2.0)), schedule, stale="warn", verify=((x,), {}))


@pytest.mark.quick("Tied")
@pytest.mark.parametrize(
    ("build", "args", "kwargs"),
    [
        (Normed, (data(4, 3, 6, 6),), {}),
        (lambda: Mlp(0.3), (data(4, 8),), {}),
        (Tied, (torch.arange(5),), {}),
        (Answering, (data(2, 8),), {"mask": torch.ones(2, 4, dtype=torch.bool), "labels": {"y": data(2, 4)}}),
    ],
)
def test_everything_is_left_as_it_was(build: Any, args: Any, kwargs: Any) -> None:
    model = seeded(build())
    schedule = schedule_of(model, args, kwargs)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
        parameter.register_post_accumulate_grad_hook(lambda p: p.data.zero_())  # an optimizer in backward
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    generator = torch.get_rng_state()
    apply(model, schedule, verify=True)
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in model.parameters())


def test_buffers_are_compared() -> None:
    model, x = seeded(Normed()), data(4, 3, 6, 6)
    schedule = schedule_of(model, (x,))
    model.norm.momentum = 0.5
    with pytest.raises(StaleModelError, match=r"attribute momentum was 0\.1"):
        apply(model, schedule)
    with pytest.raises(StaleModelError, match=r"buffer 'norm\.running_mean'"):
        apply(model, replace(schedule, digest=None), verify=True)


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(1, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids).mean()


def test_calls_that_random_inputs_cannot_make() -> None:
    model, ids = Embedding(), torch.zeros(6, dtype=torch.int64)
    schedule = schedule_of(model, (ids,))
    with pytest.raises(BindError, match=r"random inputs of the planned types: (.|\n)*verify=\(args, kwargs\)"):
        apply(model, schedule, verify=True)
    apply(model, schedule, verify=((ids,), {}))
    with pytest.raises(BindError, match="verify runs a step in the planned mode"):
        apply(model.eval(), schedule, verify=True)


def test_tolerance_is_that_of_sums_in_another_order() -> None:
    a, noise = torch.tensor([1.0, 2.0]), torch.tensor([1e-9])
    names = {"a": a, "zero": torch.zeros(1)}
    close = {"a": a * (1 + 1e-6), "zero": noise}
    assert list(beyond_reordering("gradient of", names, close, torch.float32)) == []
    far = {"a": a * 1.01, "zero": torch.full((1,), 1e-3)}
    assert len(list(beyond_reordering("gradient of", names, far, torch.float32))) == 2
    assert list(beyond_reordering("gradient of", names, far, torch.bfloat16)) == []
    assert len(list(beyond_reordering("gradient of", names, close, torch.float64))) == 2
    assert len(list(beyond_reordering("gradient of", names, {"a": None, "zero": noise}, torch.float32))) == 1
