"""Writes that a step must not perform are refused with the module and the line of forward."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn

from remate.capture.capture_step import CaptureError, capture


class Resized(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("index", torch.zeros(1))
        self.index: torch.Tensor

    def forward(self, a: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        if self.index.shape[0] != a.shape[0]:
            self.index = torch.arange(a.shape[0]).float()
        return super().forward(a) + self.index[:, None]


class Clamped(nn.Linear):
    def forward(self, a: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        self.weight.data.clamp_(-0.1, 0.1)  # here: parameter '1.weight'
        return super().forward(a)


class Started(nn.Linear):
    started = False

    def forward(self, a: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        first = not self.started
        self.started = True  # here: attributes (1.started)
        return super().forward(a) * (2 if first else 1)


class Overwritten(nn.Linear):
    def forward(self, a: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        a.detach().mul_(2)  # here: into
        return super().forward(a)


class Replacing(nn.Linear):
    def forward(self, a: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        self.weight = nn.Parameter(self.weight * 0.9)  # here: parameter '1.weight'
        return super().forward(a)


def test_a_buffer_that_follows_the_batch_is_made_before_planning() -> None:
    layer = Resized()
    with pytest.warns(UserWarning, match="index"):
        capture(nn.Sequential(nn.Linear(4, 4), layer), (torch.ones(3, 4),))
    assert layer.index.tolist() == [0, 1, 2]


@pytest.mark.quick("Replacing")
@pytest.mark.parametrize("layer", [Clamped, Replacing, Started])
def test_place(layer: Any) -> None:
    with pytest.raises(CaptureError) as caught:
        capture(nn.Sequential(nn.Linear(4, 4), layer(4, 4)), (torch.ones(3, 4),))
    _is_there(caught.value, layer, "1")


def test_the_parts_without_written_parameters_can_be_planned() -> None:
    class Averaging(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(3)]
            self.query, self.key, self.head = (nn.Sequential(*layer) for layer in layers)
            self.key.requires_grad_(False)

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                for mine, other in zip(self.key.parameters(), self.query.parameters(), strict=True):
                    mine.lerp_(other, 0.1)
            return self.head(self.query(a)) - self.key(a)

    with pytest.raises(CaptureError, match=r"forward writes into parameter 'key\.0\.weight'") as caught:
        capture(Averaging(), (torch.ones(3, 4),))
    assert caught.value.parts == ("query", "head")


def test_input() -> None:
    with pytest.raises(CaptureError) as caught:
        capture(Overwritten(4, 4), (torch.ones(3, 4),))
    _is_there(caught.value, Overwritten, "")


def _is_there(error: CaptureError, layer: Any, module: str) -> None:
    lines, first = inspect.getsourcelines(layer)
    at, line = next((at, line) for at, line in enumerate(lines) if "# here: " in line)
    assert error.module == module
    assert error.source == f"test_refused_writes.py:{first + at}"
    assert line.split("# here: ")[1].strip() in str(error)
    assert error.hint


def test_without_a_file() -> None:
    """A class without readable source is identified by its module."""
    names: dict[str, Any] = {"nn": nn, "torch": torch}
    exec(inspect.getsource(Started), names)
    with pytest.raises(CaptureError, match=r"attributes \(1.started\)"):
        capture(nn.Sequential(nn.Linear(4, 4), names["Started"](4, 4)), (torch.ones(3, 4),))
