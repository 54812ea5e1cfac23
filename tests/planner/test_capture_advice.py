"""Advice for forward code that depends on values: each hint names the cause, and the code that it proposes is planned."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.ao.quantization import FakeQuantize
from torch.nn import functional as F

from remate.capture.capture_step import CaptureError, capture

Forward = Callable[[Any, torch.Tensor, torch.Tensor], Any]


class Model(nn.Module):
    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.layer, self.layers = nn.Linear(16, 4), nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.experts, self.gate = nn.ModuleList(nn.Linear(16, 4) for _ in range(4)), nn.Linear(16, 4)
        self.average, self.quantizer = nn.Linear(16, 4).requires_grad_(False), FakeQuantize()
        self.norm, self.usual_norm = nn.BatchNorm1d(4, momentum=None), nn.BatchNorm1d(4, momentum=0.1)
        self.register_buffer("scale", torch.tensor(0.1))
        self.register_buffer("zero", torch.tensor(0, dtype=torch.int32))
        self.seen = 0.0
        self._forward = forward

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self._forward(self, x, y)


def loss_of(m: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(m.layer(x), y)


def assigned(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    loss = loss_of(m, x, y)
    m.seen = loss.item()
    return loss


def returned(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    loss = loss_of(m, x, y)
    return loss, {"loss": float(loss)}


def printed(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    loss = loss_of(m, x, y)
    value = loss.item()
    print(f"loss {value:.3f}")
    return loss


def to_numpy(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    loss = loss_of(m, x, y)
    m.seen = loss.detach().numpy()
    return loss


def detached(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    loss = loss_of(m, x, y)
    return loss, {"loss": loss.detach()}


def factor(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    z = m.layer(x)
    return (z * z.sum().item()).mean()


def as_tensor(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    z = m.layer(x)
    return (z * z.sum().detach()).mean()


def asserts(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    assert (y >= 0).all()
    return loss_of(m, x, y)


def raises(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    if torch.isnan(x).any():
        raise ValueError("not a number")
    return loss_of(m, x, y)


def checks(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    torch._check_tensor_all(y >= 0)
    return loss_of(m, x, y)


def torch_compilable_check(condition: torch.Tensor) -> None:
    """As transformers has it."""
    torch._check_tensor_all(condition)


def checks_switchably(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    torch_compilable_check(y >= 0)
    return loss_of(m, x, y)


def tells(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    return loss_of(m, x, y), torch.isnan(x).any()


def branch(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    z = m.layer(x)
    if z.abs().max() > 100:
        z = z * 0.1
    return F.cross_entropy(z, y)


def chosen(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    z = m.layer(x)
    return F.cross_entropy(torch.where(z.abs().max() > 100, z * 0.1, z), y)


def skips(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    for layer in m.layers:
        if torch.rand(()) < 0.5:
            continue
        x = layer(x)
    return loss_of(m, x, y)


def drawn(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    for layer in m.layers:
        x = torch.where(torch.rand(()) < 0.5, x, layer(x))
    return loss_of(m, x, y)


def length(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    n = int(y.max())
    return m.layer(x[: n + 1]).mean()


def fixed(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    inside = torch.arange(len(x)) <= y.max()
    return (m.layer(x).mean(1) * inside).sum() / inside.sum()


def rows(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    mask = y > 0
    return F.cross_entropy(m.layer(x[mask]), y[mask])


def masked(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    mask = y > 0
    loss = F.cross_entropy(m.layer(x), y, reduction="none")
    return F.cross_entropy(m.layer(x), y.masked_fill(~mask, -100)) + (loss * mask).sum() / mask.sum()


def routed(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    top, out = m.gate(x).argmax(-1), torch.zeros(len(x), 4)
    for at, expert in enumerate(m.experts):
        (index,) = torch.where(top == at)
        out = out.index_add(0, index, expert(x[index]))
    return F.cross_entropy(out, y)


def dense(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    weight = F.one_hot(m.gate(x).argmax(-1), 4)
    return F.cross_entropy(sum(e(x) * weight[:, i : i + 1] for i, e in enumerate(m.experts)), y)  # type: ignore[arg-type]


def interleaved(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    return m.layer(x.repeat_interleave(y, 0)).mean()


def searched(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    return m.layer(x[torch.searchsorted(y.cumsum(0), torch.arange(6), right=True)]).mean()


def counted(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    return (m.layer(x) * torch.bincount(y)).sum()


def summed(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    return (m.layer(x) * F.one_hot(y, 4).sum(0)).sum()


def averaged(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    with torch.no_grad():
        for old, new in zip(m.average.parameters(), m.layer.parameters(), strict=True):
            old.mul_(0.9).add_(new, alpha=0.1)
    return F.mse_loss(m.layer(x), m.average(x))


def nested(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    return m.layer(torch.nested.nested_tensor([x[:3], x[3:]], layout=torch.jagged)).values().square().mean()


CASES: dict[str, tuple[Forward, str, Forward]] = {
    "assigned": (assigned, "return it detached", detached),
    "returned": (returned, "return it detached", detached),
    "printed": (printed, "return it detached", detached),
    "numpy": (to_numpy, "return it detached", detached),
    "factor": (factor, "compute with the tensor itself", as_tensor),
    "assert": (asserts, "leave the check out", tells),
    "check": (checks, "leave the check out", tells),
    "check of transformers": (checks_switchably, "TRANSFORMERS_DISABLE_TORCH_CHECK=1", tells),
    "raise": (raises, "return the condition", tells),
    "branch": (branch, "torch.where", chosen),
    "skipped layers": (skips, "torch.where(torch.rand(()) < rate, x, layer(x))", drawn),
    "length": (length, "use a fixed size and mask the rest", fixed),
    "rows": (rows, "labels.masked_fill(~mask, -100)", masked),
    "experts": (routed, "run each expert on all tokens", dense),
    "repeats": (interleaved, "torch.searchsorted(repeats.cumsum(0)", searched),
    "bincount": (counted, "one_hot(classes, num_classes).sum(0)", summed),
    "one_hot": (lambda m, x, y: (m.layer(x) * F.one_hot(y)).sum(), "one_hot(classes, num_classes)", summed),
    "average": (averaged, "directly before the call", lambda m, x, y: F.mse_loss(m.layer(x), m.average(x))),
    "nested": (nested, "pad to a batch with a mask", masked),
    "batch norm": (
        lambda m, x, y: F.cross_entropy(m.norm(m.layer(x)), y),
        "momentum=0.1",
        lambda m, x, y: F.cross_entropy(m.usual_norm(m.layer(x)), y),
    ),
    "fake quantization": (
        lambda m, x, y: F.cross_entropy(m.quantizer(m.layer(x)), y),
        "torch.fake_quantize_per_tensor_affine",
        lambda m, x, y: F.cross_entropy(
            torch.fake_quantize_per_tensor_affine(m.layer(x), m.scale, m.zero, -128, 127), y
        ),
    ),
}


@pytest.mark.quick("numpy")
@pytest.mark.parametrize("case", CASES)
def test_the_advice_names_the_cause_and_works_when_followed(case: str) -> None:
    fails, advice, works = CASES[case]
    call = torch.randn(8, 16), torch.randint(0, 4, (8,))
    with contextlib.redirect_stdout(None), pytest.raises(CaptureError) as refused:
        capture(Model(fails), call)
    assert advice in refused.value.hint, str(refused.value)
    capture(Model(works), call)


def test_a_model_that_chooses_its_loss_by_the_labels_is_told_the_setting() -> None:
    class Classifier(nn.Linear):
        config = type("Config", (), {"problem_type": None})()

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            index = (labels >= 0).nonzero().squeeze(1)
            return F.cross_entropy(super().forward(x[index]), labels[index])

    with pytest.raises(CaptureError, match=r"model\.config\.problem_type = 'single_label_classification'"):
        capture(Classifier(16, 4), (torch.randn(8, 16), torch.randint(0, 4, (8,))))


def test_one_hot_refuses_what_eager_refuses() -> None:
    captured = capture(Model(summed), (torch.randn(8, 16), torch.randint(0, 4, (8,))))
    assert any(operation.op.startswith("aten.scatter") for operation in captured.graph.operations)


def test_operators_that_refuse_fake_tensors_print_nothing() -> None:
    def grouped(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        ends = torch.arange(4, 9, 4, dtype=torch.int32)
        return torch.nn.functional.grouped_mm(x, m.layer.weight.t().expand(2, 16, 4), offs=ends).mean()

    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("torch._subclasses.fake_tensor")
    log.addHandler(handler)
    try:
        capture(Model(grouped), (x := torch.randn(8, 16), x))
    finally:
        log.removeHandler(handler)
    assert logged == []
