"""Compiled steps under the conditions that training loops bring: bad indices, aliases, precisions, sizes, late
changes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import remate
from remate.step_measurement.allocator import peak_bytes
from remate_runtime import ExecutionError, apply, predicted_peak
from remate_runtime.engine.compiled.segments import compiles
from remate_runtime.flat_step import expand
from remate_runtime.link import Execution, link

from ..small import data, seeded
from ..stepping import everything, just_in_time, no_recomputes, schedule_of
from .subjects import assert_close


class Inner(nn.Module):
    """Two layers, with the rest given as a function."""

    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        self.one, self.two, self.scale, self.body = nn.Linear(8, 8), nn.Linear(8, 8), torch.arange(8.0), body

    def forward(self, *args: torch.Tensor) -> Any:
        return self.body(self, *args)


def gradients(model: nn.Module, *args: torch.Tensor) -> dict[str, Any]:
    """What a step leaves: outputs, and gradients beside those that were there."""
    result = model(*args)
    outputs = result if isinstance(result, tuple) else (result,)
    outputs[0].backward()
    by_name = {f"output {at}": output.detach().clone() for at, output in enumerate(outputs) if output.numel()}
    return by_name | {
        f"gradient {n}": None if p.grad is None else p.grad.detach().clone() for n, p in model.named_parameters()
    }


def pair(model: nn.Module, args: tuple[Any, ...], recomputes: Any = just_in_time) -> tuple[Any, Any]:
    """The model compiled, and in eager."""
    schedule = schedule_of(model, args, recomputes=recomputes)
    return apply(copy.deepcopy(model), schedule, engine="compiled"), copy.deepcopy(model)


def picked(self: Any, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    w = self.one(x)
    rows, wide = w[:3], at[:, None].expand(3, 8)
    results = [
        F.embedding(at, w),
        w.index_select(0, at),
        w.gather(0, wide),
        w[at],
        w.index_add(0, at, rows),
        w.index_copy(0, at, rows),
        w.index_put((at,), rows),
        w.scatter_add(0, wide, rows),
        w.scatter_reduce(0, wide, rows, "amax"),
        torch.ops.aten._unsafe_index(w, [at]),
        torch.ops.aten._unsafe_masked_index(w, (at > 0)[:, None], [at], 0.0),
        F.binary_cross_entropy(w.sigmoid(), torch.ones_like(w)),
    ]
    divided = torch.div(at + 5, at + 2, rounding_mode="floor") % (at + 2)
    return sum((entry.square().sum() for entry in results), F.cross_entropy(self.two(rows), at) + divided.sum())


def test_what_raises_for_some_data_is_not_compiled() -> None:
    """Inductor lets index_select take -1, and ends the process for a number out of range in one of several threads."""
    written = expand(schedule_of(seeded(Inner(picked)), (data(5, 8), torch.tensor([0, 1, 4]))))
    graph = written.graph
    linked = link(graph, written.recomputes)
    runs = {event.op for event in linked.events if isinstance(event, Execution)}
    left = {graph.operations[at].op.split(".")[1] for at in runs if not compiles(graph, graph.operations[at])}
    assert left >= {"embedding", "index_select", "gather", "index", "index_add", "index_copy", "index_put"}
    assert left >= {"scatter_add", "scatter_reduce", "nll_loss_forward", "embedding_dense_backward"}
    assert left >= {"_unsafe_index", "_unsafe_index_put", "_unsafe_masked_index", "binary_cross_entropy"}
    assert left >= {"div", "remainder"}
    assert "nll_loss_backward" not in left  # the loss has refused what its gradient would take for others


@pytest.mark.slow
@pytest.mark.parametrize("operator", ["index_select", "index_add"])
def test_a_negative_number_is_refused_as_in_eager(operator: str) -> None:
    def body(self: Any, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        w = torch.tanh(self.one(x))
        rest = () if operator == "index_select" else (w[:3],)
        return getattr(w, operator)(0, at, *rest).square().sum()

    compiled, eager = pair(seeded(Inner(body)), (data(5, 8), torch.tensor([0, 1, 4])))
    for model in (compiled, eager):
        with pytest.raises((IndexError, RuntimeError), match=r"out of (range|bounds)"):
            model(data(5, 8), torch.tensor([0, -1, 4]))


@pytest.mark.slow
def test_what_is_no_probability_is_refused_as_in_eager() -> None:
    """Inductor makes a loss of it."""

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy(self.two(x).tanh(), torch.ones_like(x))

    model = seeded(Inner(body))
    with torch.no_grad():
        model.two.bias.fill_(9.0)
    for item in pair(model, (data(4, 8),)):
        item(data(4, 8)).backward()
        with pytest.raises(RuntimeError, match="all elements of input should be between 0 and 1"):
            item(data(4, 8) * 1e3)


def aliases(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.tanh(self.one(x) * self.scale)
    return self.two(y * y).sum(), y, y.t(), y[1:3], y[:0], x, self.one.weight.t(), x.clone()


@pytest.mark.slow
@pytest.mark.parametrize("recomputes", [no_recomputes, everything])
def test_outputs_that_are_views_inputs_and_empty(recomputes: Any) -> None:
    x = data(4, 8)
    compiled, eager = pair(seeded(Inner(aliases)), (x,), recomputes)
    for _ in range(3):  # `.grad` accumulates
        actual = compiled(x)
        assert actual[4].shape == (0, 8)
        assert actual[5].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert actual[7].untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
        assert len({t.untyped_storage().data_ptr() for t in actual[1:4]}) == 1
        assert_close(gradients(compiled, x), gradients(eager, x))


@pytest.mark.slow
def test_an_output_that_backward_reads_must_not_change() -> None:
    compiled, _ = pair(seeded(Inner(aliases)), (data(4, 8),), no_recomputes)
    for at in (1, 2, 3):
        actual = compiled(data(4, 8))
        actual[at].detach().mul_(2)
        with pytest.raises(ExecutionError, match="modified in place between forward and backward"):
            actual[0].backward()


@pytest.mark.slow
def test_inputs_of_other_strides_and_offsets() -> None:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.tanh(self.one(x) * x.sin())).square().sum()

    whole = data(9, 20)
    given = (data(4, 8), data(8, 4).t(), whole.flatten()[1:33].view(4, 8), whole[::2, ::2][:4, :8])
    for planned in given[:2]:
        compiled, eager = pair(seeded(Inner(body)), (planned,))
        for x in given:
            assert_close(gradients(compiled, x), gradients(eager, x))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [0, 1])
def test_batches_of_none_and_one(rows: int) -> None:
    x = torch.ones(rows, 8)
    compiled, eager = pair(seeded(Inner(lambda self, x: self.two(torch.tanh(self.one(x))).sum())), (x,))
    assert_close(gradients(compiled, x), gradients(eager, x))


@pytest.mark.slow
def test_an_optimizer_between_steps_and_two_forwards_before_one_backward() -> None:
    x, y = data(4, 8), data(4, 8, seed=7)
    compiled, eager = pair(seeded(Inner(lambda self, x: self.two(torch.tanh(self.one(x))).square().sum())), (x,))
    for model in (compiled, eager):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(3):
            first, second = model(x), model(y)
            second.backward()
            first.backward()
            optimizer.step()
    assert_close(gradients(compiled, x), gradients(eager, x))


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x + self.narrow(F.gelu(self.wide(self.norm(x))))
        return (torch.tanh(self.norm(h)) * h).mean().float()


def far(model: nn.Module, exact: nn.Module) -> float:
    """Largest distance of a gradient, relative to its length."""
    pairs = zip(model.parameters(), exact.parameters(), strict=True)
    return max(float((a.grad.double() - b.grad).norm() / b.grad.norm()) for a, b in pairs)  # type: ignore[union-attr, operator]


@pytest.mark.slow
def test_low_precision_is_as_near_to_float64_as_eager() -> None:
    x, model = data(32, 16), seeded(Small())
    exact = copy.deepcopy(model).double()
    exact(x.double()).backward()
    model, x = model.to(torch.float16), x.to(torch.float16)
    compiled, eager = pair(model, (x,), everything)
    for loss in (compiled(x), eager(x)):
        loss.backward()
    assert far(compiled, exact) <= 2 * far(eager, exact)


class Norms(nn.Module):
    """Under autocast: statistics in full precision, of what has low precision."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 32), nn.Linear(32, 16)
        self.layer, self.group, self.root = nn.LayerNorm(32), nn.GroupNorm(4, 32), nn.RMSNorm(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm in (self.layer, self.group, self.root):
            x = x + torch.tanh(self.outer(norm(self.inner(x))))
        return x.square().mean()


@pytest.mark.slow
def test_norms_under_autocast_are_compiled(caplog: pytest.LogCaptureFixture) -> None:
    x, model = data(32, 16), seeded(Norms())
    exact = copy.deepcopy(model).double()
    exact(x.double()).backward()
    with torch.autocast("cpu", torch.bfloat16):
        compiled, eager = pair(model, (x,))
        losses = compiled(x), eager(x)
    for loss in losses:
        loss.backward()
    assert far(compiled, exact) <= 2 * far(eager, exact)
    assert not [record for record in caplog.records if "does not compile" in record.getMessage()]


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm, self.layer = nn.Embedding(11, 8), nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for _ in range(2):
            x = x + torch.tanh(self.layer(self.norm(x)))
        return F.cross_entropy((x @ self.table.weight.t()).flatten(0, 1), labels.flatten())


def ids(*size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 11, size), torch.randint(0, 11, size)


@pytest.mark.slow
def test_named_sizes() -> None:
    """A size's functions are compiled when it is first called."""
    model = seeded(Tokens())
    dims = {"ids": {0: "b=2..8", 1: "t=4..32"}, "labels": {0: "b", 1: "t"}}
    schedule = remate.plan(model, ids(4, 16), budget="75%", dims=dims, effort="quick")
    compiled, eager = apply(copy.deepcopy(model), schedule, engine="compiled"), copy.deepcopy(model)
    for size in ((3, 9), (8, 32), (3, 9)):
        given = ids(*size)
        if size == (8, 32):  # first called without gradients
            with torch.inference_mode():
                assert torch.allclose(compiled(*given), eager(*given), atol=1e-5)
        assert_close(gradients(compiled, *given), gradients(eager, *given))
        compiled.zero_grad()
        measured = peak_bytes(lambda given=given: compiled(*given).backward())
        assert measured == predicted_peak(compiled, {"b": size[0], "t": size[1]})
        eager.zero_grad()
        compiled.zero_grad()
    assert_close(both(compiled), both(eager))


def both(model: nn.Module) -> dict[str, Any]:
    """Forwards of two sizes, then their backwards."""
    torch.manual_seed(0)
    model.zero_grad()
    first, second = model(*ids(8, 32)), model(*ids(3, 9))
    first.backward()
    second.backward()
    return {f"gradient {name}": parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.slow
def test_the_ambient_dtype_and_device_are_not_the_steps() -> None:
    x, model = data(4, 16), seeded(Small())
    schedule = schedule_of(model, (x,), recomputes=just_in_time)
    wanted = gradients(copy.deepcopy(model), x)
    torch.set_default_dtype(torch.float64)
    try:
        compiled = apply(copy.deepcopy(model), schedule, engine="compiled")
        assert_close(gradients(compiled, x), wanted)
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.device("meta"):
        compiled = apply(copy.deepcopy(model), schedule, engine="compiled")
    assert_close(gradients(compiled, x), wanted)


def badly_predicted(self: Any, x: torch.Tensor) -> torch.Tensor:
    """torch tells a wrong layout of the gradient of a padded image that lies channels last; pivots are never 0; and
    there is no product of groups in f32 on tensors without data."""
    w = torch.tanh(self.one(x))
    image = w[None, None].repeat(2, 3, 1, 1).to(memory_format=torch.channels_last)
    groups = torch.ops.aten._grouped_mm(w[:, None].repeat(1, 4, 1), w[None].repeat(4, 1, 1).transpose(1, 2))
    padded = F.pad(image * image.sin(), (1, 2, 2, 1), mode="replicate")
    return (
        padded.square().sum()
        + torch.linalg.solve(w[:4, :4] + 3 * torch.eye(4), w).sum()
        + groups.square().sum()
        + self.two(w).sum()
    )


@pytest.mark.slow
def test_operators_that_do_not_compile_are_interpreted_and_what_lies_around_them_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO", "remate_runtime"):
        compiled, eager = pair(seeded(Inner(badly_predicted)), (data(4, 8),))
        for _ in range(2):
            assert_close(gradients(compiled, data(4, 8)), gradients(eager, data(4, 8)))
    told = [record.getMessage() for record in caplog.records if record.name.startswith("remate_runtime")]
    for operator in ("replication_pad2d_backward", "linalg_lu_solve"):
        assert any(f"aten.{operator} does not compile" in text for text in told)
    (summary,) = (text for text in told if "operations interpreted" in text)
    assert int(summary.split(" operations interpreted")[0].split()[-1]) < 20, told
