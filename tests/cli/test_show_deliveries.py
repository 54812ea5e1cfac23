"""`show` and `check` print the memory of the step for each use of delivered gradients."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from remate.cli import main
from remate.present.text import size
from remate.schedule_tools.analysis import open_schedule
from remate.schedule_tools.figures import refreshed
from remate_runtime.format import GRADIENTS, Gradients
from remate_runtime.link import simulate
from tests.runtime.small import data, seeded
from tests.runtime.stepping import no_recomputes, schedule_of


class Wide(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(width, width) for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


def rows(text: str) -> dict[str, list[str]]:
    results = [line.split("  ") for line in text.splitlines() if line.startswith("  gradients ")]
    return {cells[1]: [cell.strip() for cell in cells[2:] if cell] for cells in results}


@pytest.mark.quick("consumed")
@pytest.mark.parametrize("assumed", GRADIENTS)
def test_show_and_check_tell_all_three(assumed: Gradients, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schedule = schedule_of(seeded(Wide(512)), (data(4, 512),), recomputes=no_recomputes)
    schedule = refreshed(replace(schedule, solve=replace(schedule.solve, gradients=assumed))).schedule
    path = str(tmp_path / "s.json")
    schedule.save(path)
    opened = open_schedule(path)
    peaks = {kind: size(simulate(opened.linked, kind).peak) for kind in GRADIENTS}
    assert peaks["retained"] != peaks["accumulated"] == peaks["consumed"]
    assert size(schedule.solve.peak) == peaks[assumed]
    assert main(["show", path]) == 0
    printed = rows(capsys.readouterr().out)
    for kind in GRADIENTS:
        planned = " (planned for)" if kind == assumed else ""
        assert printed[f"gradients {kind}{planned}"][:2] == [peaks[kind]] * 2
    assert main(["check", path]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "delivery of gradients" in line)
    said = {kind: f"{kind} {peaks[kind]}" for kind in GRADIENTS}
    said["accumulated"] += " beside 4.01 MiB of .grad"
    said[assumed] += " (planned for)"
    assert line.endswith(f": {', '.join(said.values())}")
