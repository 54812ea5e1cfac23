"""One tensor given for several inputs: forward may ask for that, and compute something else then."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import remate
import remate_runtime
from remate_runtime.applied import identity
from remate_runtime.errors import BindError
from remate_runtime.format import input_leaves

A, B = torch.randn(2, 3, 8), torch.randn(2, 3, 8)


class Asks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, others: dict[str, torch.Tensor]) -> torch.Tensor:
        if x is others["y"]:
            return self.linear(x).square().mean() * 3
        return (self.linear(x) * self.linear(others["y"])).mean()


class AsksNot(Asks):
    def forward(self, x: torch.Tensor, others: dict[str, torch.Tensor]) -> torch.Tensor:
        return (self.linear(x) * self.linear(others["y"])).mean()


def applied(model: nn.Module, args: tuple[Any, ...], **options: Any) -> Any:
    schedule = remate.plan(model, args, budget="100%", cost="cpu", cache=False, **options)
    return remate_runtime.apply(model, schedule, verify=True)


def call(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
    return x, {"y": y}


@pytest.mark.quick("True")
@pytest.mark.parametrize("same", [False, True])
def test_a_call_with_another_pattern_is_refused_where_forward_asks(same: bool) -> None:
    model = Asks()
    planned = applied(model, call(A, A if same else B))
    for x, y in ((A, B), (A, A), (B, A), (B, B)):
        if (x is y) == same:
            assert torch.equal(planned(*call(x, y)), model(*call(x, y)))
        else:
            with pytest.raises(BindError, match=r"'x' and 'others\.y' are (one tensor|two tensors)"):
                planned(*call(x, y))


@pytest.mark.quick("False")
@pytest.mark.parametrize("same", [False, True])
def test_any_pattern_is_taken_where_forward_does_not_ask(same: bool) -> None:
    model = AsksNot()
    planned = applied(model, call(A, A if same else B))
    for x, y in ((A, B), (A, A), (B, A), (B, B)):
        assert torch.equal(planned(*call(x, y)), model(*call(x, y)))


@pytest.mark.slow
def test_attention_of_torch_asks() -> None:
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    own, cross = applied(model, (A, A, A)), applied(model, (A, B, B))
    assert torch.equal(own(A, A, A)[0], model(A, A, A)[0])
    assert torch.equal(cross(A, B, B)[0], model(A, B, B)[0])
    with pytest.raises(BindError, match="pass a copy for one of them"):
        cross(A, A, A)
    with pytest.raises(BindError, match="pass one tensor for both"):
        own(A, A, B)


def test_a_recorded_call_and_other_sizes_keep_the_pattern() -> None:
    model = Asks()
    with remate.record(model) as recorded:
        model(*call(A, A)).backward()
    schedule = remate.plan(
        recorded, budget="100%", cost="cpu", cache=False, dims={"x": {0: "b"}, "others": {"y": {0: "b"}}}
    )
    assert [leaf.same for leaf in input_leaves(schedule.model.inputs)] == ["", "x"]
    planned = remate_runtime.apply(model, schedule)
    assert torch.equal(planned(*call(A, A)), model(*call(A, A)))
    with pytest.raises(BindError):
        planned(*call(A, B))


class AsksFromASize(AsksNot):
    def forward(self, x: torch.Tensor, others: dict[str, torch.Tensor]) -> torch.Tensor:
        if x is others["y"] and len(x) > 8:
            return self.linear(x).square().mean() * 3
        return super().forward(x, others)


@pytest.mark.slow
def test_forward_is_asked_again_only_beyond_the_sizes_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    ask = identity.ignores_identity
    monkeypatch.setattr(identity, "ignores_identity", lambda *call: asked.append(call) or ask(*call))
    for model, refuses in ((AsksNot(), False), (AsksFromASize(), True)):
        planned = applied(model, call(A, B), dims={"x": {0: "b=2..16"}, "others": {"y": {0: "b"}}})
        asked.clear()
        for b, times in ((4, 1), (8, 2), (6, 2), (5, 2), (2, 3), (3, 3), (7, 3)):
            x = torch.randn(b, 3, 8)
            assert torch.equal(planned(*call(x, x)), model(*call(x, x)))
            assert len(asked) == times
        x = torch.randn(16, 3, 8)
        if refuses:
            with pytest.raises(BindError, match="are one tensor"):
                planned(*call(x, x))
        else:
            assert torch.equal(planned(*call(x, x)), model(*call(x, x)))


def test_the_gradient_of_an_input_that_is_given_twice_is_the_sum() -> None:
    model = AsksNot()
    x: Any = A.clone().requires_grad_()
    planned = applied(model, call(x, B.clone().requires_grad_()))
    planned(*call(x, x)).backward()
    result, x.grad = x.grad, None
    model(*call(x, x)).backward()
    wanted: Any = x.grad
    assert torch.allclose(result, wanted)
