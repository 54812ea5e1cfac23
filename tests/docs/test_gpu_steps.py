"""The table of large steps on an H100 is what the code gives."""

from __future__ import annotations

import re

import pytest

from tools.bench.gpu_steps import STEPS, checkpointed, prepared
from tools.documentation.results import lines_of

_COMMAND = "write it again: python -m tools.bench.gpu_steps -o tools/bench/results/gpu_steps.txt"
_SMALL = "vit-l"


def test_every_step_has_a_table() -> None:
    names = [about[1] for line in lines_of("gpu_steps.txt") if (about := re.match(r"([\w-]+): .* operations; ", line))]
    assert names == list(STEPS), _COMMAND


_PARAMETERS = {  # as published
    "vit-l": 304326632,
    "resnet50": 25557032,
    "llama3-8b": 8030261248,
    "mixtral-8x7b": 46702792704,
    "deepseek-v2-lite": 15706484224,
    "llama3-70b": 70553706496,
    "llama3-405b": 405853388800,
}


@pytest.mark.slow("70b", "405b")
@pytest.mark.parametrize("name", _PARAMETERS)
def test_a_model_has_the_published_number_of_parameters(name: str) -> None:
    model, _, _ = STEPS[name].build()
    assert sum(parameter.numel() for parameter in model.parameters()) == _PARAMETERS[name]


@pytest.mark.slow
def test_the_table_of_a_step_is_current() -> None:
    step, lines = prepared(STEPS[_SMALL]), lines_of("gpu_steps.txt")
    assert step.about in lines, _COMMAND
    written = [re.split(r"\s{2,}", line.strip()) for line in lines[lines.index(step.about) + 3 :][:2]]
    base = step.instance.baseline
    for name, plan in checkpointed(step.instance).items():
        row = next(row for row in written if row[0] == f"{name} checkpointing")
        assert row[1:4] == [
            f"{plan.peak / 2**30:.1f} GiB ({plan.peak / base.peak:.0%})",
            f"{plan.time / 1e6:.1f} ms",
            f"{plan.time / base.time - 1:+.1%}",
        ], _COMMAND
