"""`show` tells what the step takes where delivered gradients are freed, if that is less."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from remate.cli import main
from tests.runtime.small import data, seeded
from tests.runtime.stepping import no_reruns, schedule_of


class Wide(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(width, width) for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


@pytest.mark.parametrize(("width", "told"), [(512, True), (16, False)])
def test_where_it_differs(width: int, told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schedule_of(seeded(Wide(width)), (data(4, width),), reruns=no_reruns).save(str(tmp_path / "s.json"))
    assert main(["show", str(tmp_path / "s.json")]) == 0
    assert ("peak, gradients freed when delivered" in capsys.readouterr().out) == told
