"""Which outputs a plan has gradients for when nobody chose, and how to choose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import remate
import remate_runtime
from remate_runtime.errors import ExecutionError
from remate_runtime.format import output_leaves

X, Y = torch.randn(4, 8), torch.randint(16, (4,))


@dataclass
class Result:
    logits: torch.Tensor
    loss: torch.Tensor


class Head(nn.Module):
    """Returns a function of its logits and loss."""

    def __init__(self, result: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.linear, self.result = nn.Linear(8, 16), result

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        logits = self.linear(x)
        return self.result(logits, functional.cross_entropy(logits, y))


def planned(result: Callable[[Any, Any], Any], **options: Any) -> tuple[list[str], list[str], list[str]]:
    """Outputs with a gradient, outputs that refuse one, and what progress was reported that."""
    lines: list[str] = []
    options = {"budget": "100%", "cost": "cpu", "cache": False, "progress": lines.append, **options}
    schedule: Any = remate.plan(Head(result), (X, Y), **options)
    leaves = list(output_leaves(schedule.model.outputs))
    given, refused = [leaf.name for leaf in leaves if leaf.grad], [leaf.name for leaf in leaves if leaf.detached]
    return given, refused, [line for line in lines if "gradient of" in line]


@pytest.mark.slow("1_0")
@pytest.mark.parametrize(
    ("result", "loss"),
    [
        (lambda logits, loss: (logits, loss), "1"),
        (lambda logits, loss: [loss, logits], "0"),
        (lambda logits, loss: {"logits": logits, "loss": loss, "norm": logits.norm()}, "loss"),
        (Result, "loss"),
        (lambda logits, loss: (logits, {"loss": loss, "count": 3}), "1.loss"),
        (lambda logits, loss: [(logits, loss)], "0.1"),
        (lambda logits, loss: (logits, loss, loss.detach()), "1"),
    ],
)
def test_the_only_scalar_gets_the_gradient_and_the_plan_says_so(result: Any, loss: str) -> None:
    given, refused, lines = planned(result)
    assert given == [loss]
    assert refused
    assert repr(loss) in lines[0]
    assert "differentiate=" in lines[0]


@pytest.mark.slow("<lambda>5", "<lambda>1")
@pytest.mark.parametrize(
    "result",
    [
        lambda logits, loss: logits,
        lambda logits, loss: (logits, loss, logits.square().mean()),
        lambda logits, loss: (logits, logits * 2),
        lambda logits, loss: (logits, loss[None]),
        lambda logits, loss: (logits * 2, loss),  # a penalty beside a prediction
        lambda logits, loss: {"eps": logits, "aux": loss},
    ],
)
def test_every_output_gets_one_where_no_scalar_stands_out(result: Any) -> None:
    given, refused, lines = planned(result)
    assert given
    assert not refused
    assert not lines


def test_a_star_asks_for_all() -> None:
    given, refused, lines = planned(lambda logits, loss: (logits, loss), differentiate=["*"])
    assert (given, refused, lines) == (["0", "1"], [], [])


def test_a_gradient_for_another_output_is_refused() -> None:
    model = Head(lambda logits, loss: (logits, loss))
    applied = remate_runtime.apply(model, remate.plan(model, (X, Y), budget="100%", cost="cpu", cache=False))
    total: Any = sum(part.sum() for part in applied(X, Y))
    with pytest.raises(ExecutionError, match="differentiate=\\['1', '0'\\]"):
        total.backward()


class Penalised(nn.Module):
    """A block that returns a state and a penalty, both of which the enclosing model uses."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        h = self.linear(x).relu()
        return h, h.square().mean()


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = Penalised(), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, penalty = self.block(x)
        return self.head(h).mean() + penalty


def test_a_part_of_a_model_has_gradients_for_all_that_it_returns() -> None:
    model = Around()
    part: Any = remate.plan(model, (X,), at="block", budget="100%", cost="cpu", cache=False)
    assert [leaf.name for leaf in output_leaves(part.model.outputs) if leaf.grad] == ["0", "1"]
    model(X).backward()
    wanted: list[Any] = [parameter.grad for parameter in model.parameters()]
    model.zero_grad(set_to_none=True)
    remate_runtime.apply(model, part)(X).backward()
    assert all(torch.allclose(p.grad, g) for p, g in zip(model.parameters(), wanted, strict=True) if p.grad is not None)
    assert all(p.grad is not None for p in model.parameters())
