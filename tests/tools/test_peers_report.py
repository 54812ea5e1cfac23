"""The verdicts of the comparison with PyTorch's own means: two ways that took turns are compared round by round."""

from __future__ import annotations

import pytest

from tools.bench.peers_report import Measured, Model, paired_ratios, report
from tools.bench.subjects import SUBJECTS
from tools.bench.ways import WAYS

EAGER = Measured(tree="a", peak=200, time=1.0, low=1.0, high=1.0)


def row(each: tuple[int, ...], peak: int, tree: str = "a") -> Measured:
    return Measured(tree=tree, peak=peak, time=sum(each) / 500, low=0.9, high=1.1, each=each)


def verdict(ours: Measured, theirs: Measured) -> str:
    model = Model("m", "a model", "here", {"eager": EAGER, "compile": theirs, "remate-100-compiled": ours})
    (line,) = (line for line in report({"m": model}, WAYS).splitlines() if line.startswith("torch.compile "))
    return line


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        ((80, 90, 100, 110, 120), "  tie (×1.000, 0.900–1.100)"),
        ((80, 81, 82, 83, 84), "  dominated (×0.820, 0.810–0.830)"),
        ((105, 106, 107, 108, 109), "  not dominated (×1.070, 1.060–1.080)"),
    ],
)
def test_ways_that_took_turns_are_compared_by_round(ours: tuple[int, ...], expected: str) -> None:
    assert verdict(row(ours, 100), row((100,) * 5, 100)).endswith(expected)


def test_a_way_that_holds_more_is_no_answer() -> None:
    assert verdict(row((80,) * 5, 101), row((100,) * 5, 100)).endswith("  not dominated")


def test_ways_of_different_measurements_are_not_paired() -> None:
    mine, other = row((80,) * 5, 100), row((100,) * 5, 100, tree="b")
    assert paired_ratios(mine, other) is None
    assert verdict(mine, other).endswith("  dominated")


@pytest.mark.parametrize("name", ["vit", "bert", "convnext", "mamba"])
def test_blocks_to_checkpoint_are_those_of_the_model(name: str) -> None:
    model, _, _ = SUBJECTS[name].build()
    assert len(SUBJECTS[name].blocks(model)) == {"vit": 6, "bert": 6, "convnext": 6, "mamba": 2}[name]
