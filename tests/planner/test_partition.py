"""The partition: blocks are contiguous, the new order is topological, repeated structure is found."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from remate.capture.capture_step import capture
from remate.capture.captured import Captured
from remate.partition.canonical import exports, form, readers_of, storages
from remate.partition.cuts import LARGE, costs
from remate.partition.partitioning import Hierarchy, partition

from .folding import random_step
from .synthetic import Tape, layers


def check(captured: Captured, hierarchy: Hierarchy) -> None:
    """Invariants of any partition of any step."""
    graph, leaves = hierarchy.captured.graph, list(hierarchy.leaves())
    assert sorted(hierarchy.order) == list(range(len(captured.graph.operations)))
    assert [op.id for op in graph.operations] == [captured.graph.operations[i].id for i in hierarchy.order]
    assert hierarchy.order[: graph.backward_start] == tuple(
        range(graph.backward_start)
    )  # random operations keep their order
    collected: set[int] = set()
    for i, op in enumerate(graph.operations):
        assert all(v in collected for v in op.reads if graph.values[v].kind == "op")
        assert all(graph.values[v].producer == i for v in op.writes if v is not None)
        collected.update(v for v in op.writes if v is not None)
    forward = [i for leaf in leaves for i in range(*leaf.forward)]
    backward = [i for leaf in reversed(leaves) for i in range(*leaf.backward)]
    assert (forward, backward) == (
        list(range(graph.backward_start)),
        list(range(graph.backward_start, len(graph.operations))),
    )
    ids = [leaf.id for leaf in leaves]
    assert not [a for a in ids for b in ids if b.startswith(a + ".")]
    assert len(set(ids)) == len(ids)
    drawn = [i for i in hierarchy.order if captured.graph.operations[i].random]
    assert drawn == sorted(drawn)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 30), operations=st.integers(1, 160))
def test_partition_of_random_steps_is_valid_and_deterministic(seed: int, operations: int) -> None:
    captured = random_step(seed, operations)
    hierarchy = partition(captured)
    check(captured, hierarchy)
    assert hierarchy == partition(captured)


@pytest.mark.parametrize("loose", [False, True])
def test_repeated_modules_become_blocks(loose: bool) -> None:
    captured = layers(6, loose=loose)
    hierarchy = partition(captured)
    check(captured, hierarchy)
    assert [part.id for part in hierarchy.parts] == ["embed", *(f"h.{k}" for k in range(6)), "head"]
    keys = {form(hierarchy.captured.graph, part).key for part in hierarchy.parts[2:-1]}
    assert len(keys) == 1


def test_layers_without_modules_are_cut_once_per_period() -> None:
    captured = layers(24, modules=False)
    hierarchy = partition(captured)
    check(captured, hierarchy)
    graph = hierarchy.captured.graph
    keys = [form(graph, part).key for part in hierarchy.parts]
    assert len(hierarchy.parts) >= 4
    assert len(set(keys)) < len(keys)
    result = costs(graph)
    residual = result.crossing[1]  # one value of the residual stream
    assert all(result.crossing[part.forward[0]] == residual for part in hierarchy.parts[1:])


def test_a_forward_without_repetition_is_cut_where_few_bytes_cross() -> None:
    tape = Tape()
    x = tape.source("x")
    narrow = []
    for k in range(30):
        for j in range(3 + (7 * k) % 5):
            x = tape.op("mul", x, tape.parameter(f"w{k}.{j}"), size=64 + j)
        x = tape.op("sum", x, size=2)
        narrow.append(len(tape.operations))
    captured = tape.captured(x)
    hierarchy = partition(captured)
    check(captured, hierarchy)
    assert len(hierarchy.parts) > 2
    assert all(part.forward[0] in narrow for part in hierarchy.parts[1:])
    assert all(costs(captured.graph).size(*part.forward) <= LARGE for part in hierarchy.parts)


def test_skips_do_not_break_the_order() -> None:
    tape = Tape({f"{side}.{k}": side.title() for side in ("down", "up") for k in range(3)})
    x, skips = tape.source("x"), []
    for k in range(3):
        for j in range(8):
            x = tape.op("mul", x, tape.parameter(f"down.{k}.w{j}"), module=f"down.{k}")
        skips.append(x)
    for k in range(3):
        x = tape.op("add", x, skips[2 - k], module=f"up.{k}")
        for j in range(8):
            x = tape.op("mul", x, tape.parameter(f"up.{k}.w{j}"), module=f"up.{k}")
    captured = tape.captured(tape.op("sum", x))
    hierarchy = partition(captured)
    check(captured, hierarchy)
    names = [f"{side}.{k}" for side in ("down", "up") for k in range(3)]
    assert [part.id for part in hierarchy.parts][: len(names)] == names
    graph = hierarchy.captured.graph
    for part in hierarchy.parts:  # every parameter's gradient is made in the block that uses the parameter
        for parameter, gradient in graph.gradients:
            if graph.values[parameter].name.startswith(part.id + "."):
                assert graph.values[gradient].producer in range(*part.backward)


def test_exports_are_what_others_read() -> None:
    hierarchy = partition(layers(4))
    graph = hierarchy.captured.graph
    readers = readers_of(graph)
    middle = hierarchy.parts[2]
    produced = [v for i in (*range(*middle.forward), *range(*middle.backward)) for v in graph.operations[i].writes]
    names = {graph.values[produced[k] or 0].name for k in exports(graph, middle, readers)}
    assert "h.1.add" in names
    assert "h.1.norm" not in names


def test_storages_tell_inputs_on_one_storage() -> None:
    tape = Tape({f"h.{k}": "Layer" for k in range(2)})
    x = tape.op("mul", tape.source("x"), tape.parameter("w"), size=64)
    y = tape.op("view", x, view=True, size=8)
    for k in range(2):
        for j in range(4):
            x = tape.op("mul", x, tape.parameter(f"h.{k}.w{j}"), module=f"h.{k}")
            x = tape.op("add", x, y, module=f"h.{k}")
    hierarchy = partition(tape.captured(tape.op("sum", x)))
    graph, layer = hierarchy.captured.graph, next(p for p in hierarchy.parts if p.id == "h.0")
    shape = form(graph, layer)
    at = {graph.values[v].name: k for k, v in enumerate(shape.sources)}
    result = storages(graph, shape)
    assert result[at["view"]] == (at["mul"], 256)
    assert result[at["h.0.w0"]] == (at["h.0.w0"], 32)


def test_calls_of_one_module_in_a_row_are_blocks_of_their_own() -> None:
    tape = Tape({"layer": "Layer", "layer.up": "Linear", "layer.down": "Linear"})
    x, up, down = tape.source("x"), tape.parameter("layer.up.weight"), tape.parameter("layer.down.weight")
    for _ in range(4):
        for name, weight in (("layer.up", up), ("layer.down", down)):
            for _ in range(4):
                x = tape.op("mul", x, weight, module=name)
    captured = tape.captured(tape.op("sum", x))
    hierarchy = partition(captured)
    check(captured, hierarchy)
    assert [part.id for part in hierarchy.parts][:4] == ["layer", "layer~2", "layer~3", "layer~4"]
    assert {part.prefix for part in hierarchy.parts[:4]} == {"layer"}


class Looping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = x + self.down(torch.tanh(self.up(self.norm(x)))).sigmoid()
        return x


def test_rounds_of_a_loop_inside_a_module_have_ids_of_their_own() -> None:
    """They had the module's, and what their backward runs was lost."""
    captured = capture(nn.Sequential(*[Looping() for _ in range(6)], nn.Linear(16, 3)), (torch.randn(4, 16),))
    check(captured, partition(captured))
