"""Partition and fold on captured models: valid, exact in both directions, and small where a model repeats."""

from __future__ import annotations

import pytest

from remate.block_templates.folding import fold
from remate.capture.capture_step import capture
from remate.partition.partitioning import partition
from remate_runtime.flat_step.expansion import expand
from remate_runtime.format.reader import decode
from remate_runtime.format.writer import encode
from remate_runtime.link.linker import link
from remate_runtime.link.simulator import simulate
from tests.models import ZOO

from .folding import meaning, random_recomputes, schedule_of
from .test_partition import check

# model -> (instances of the largest stack of equal blocks, their ids)
STACKS = {
    "gpt2": [f"transformer.h.{k}" for k in range(4)],
    "two_tower": ["tower.0", "tower.1", "tower.0~2", "tower.1~2"],
    "resnet": ["blocks.0", "blocks.1"],
    "llama": [f"model.layers.{k}" for k in range(3)],
    "vit": [f"layers.{k}" for k in range(4)],
}
OTHERS = ("moe", "bert")  # of which no stack is named


@pytest.mark.quick("resnet")
@pytest.mark.parametrize("name", [*STACKS, *OTHERS])
def test_zoo(name: str) -> None:
    captured = capture(*ZOO[name].build())
    hierarchy = partition(captured)
    check(captured, hierarchy)
    graph = hierarchy.captured.graph
    recomputes = random_recomputes(graph, 1, 40)
    folded = fold(hierarchy.captured, recomputes, hierarchy)
    text = encode(schedule_of(folded))
    expanded = expand(decode(text))
    assert meaning(expanded.graph) == meaning(graph)
    assert list(expanded.recomputes) == recomputes
    assert simulate(link(expanded.graph, expanded.recomputes)).peak == simulate(link(graph, recomputes)).peak
    # block order costs next to nothing: autograd's own order is nearly the same
    assert simulate(link(graph)).peak <= 1.02 * simulate(link(captured.graph)).peak
    assert encode(schedule_of(fold(hierarchy.captured, recomputes, partition(captured)))) == text
    templates = {i.id: i.block for i in folded.program if i.id in STACKS.get(name, ())}
    assert list(templates) == STACKS.get(name, [])
    assert len(set(templates.values())) <= 2  # the last of a stack may end it in another way
