"""The table of predicted and published times is what the code gives."""

from __future__ import annotations

import pytest
import torch

from tools.bench.published import HEAD, PUBLISHED, Decoder, predicted, shown
from tools.documentation.results import text_tables

_COMMAND = "write it again: python -m tools.bench.published -o tools/bench/results/published.txt"


def written() -> dict[str, list[str]]:
    head, *rows = text_tables("published.txt")[0]
    assert head == HEAD
    return dict(zip(PUBLISHED, rows, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_predictions_are_current(name: str) -> None:
    assert written()[name] == shown(PUBLISHED[name], predicted(PUBLISHED[name])), f"published.txt: {_COMMAND}"


def test_published_figures_and_errors_are_current() -> None:
    for name, row in written().items():
        cells = shown(PUBLISHED[name], float(row[4].removesuffix(" ms")))
        assert row[:5] + row[6:] == cells[:5] + cells[6:], f"published.txt: {_COMMAND}"
        assert abs(int(row[5].removesuffix("%")) - int(cells[5].removesuffix("%"))) <= 1


def test_a_model_has_the_published_number_of_parameters() -> None:
    with torch.device("meta"):
        model = Decoder(24, 2048, 16, 50368, 2048, 0.0, written_out=False)
    assert sum(parameter.numel() for parameter in model.parameters()) == 1315950592
