"""Lives of storages and cuts of segments, without compiling anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from remate_runtime.engine.compiled.graphs import segment_graph
from remate_runtime.engine.compiled.live_ranges import Piece, drop, pieces, sources
from remate_runtime.engine.compiled.segments import Segment, compiles, cut, segment
from remate_runtime.flat_step import Expanded, Graph, expand
from remate_runtime.link import BackwardStart, Execution, Linked, RecomputeRun, Run, link
from remate_runtime.operator_calls import operators

from ..small import Normed, Tied, data, seeded
from ..stepping import everything, in_blocks, just_in_time, no_recomputes, schedule_of
from .subjects import Mixed, mixed


def linked_of(subject: tuple[nn.Module, torch.Tensor], recomputes: Any) -> Linked:
    model, x = subject
    written = expand(schedule_of(model, (x,), recomputes=recomputes))
    return link(written.graph, written.recomputes)


SUBJECTS: dict[str, Callable[[], Any]] = {
    "mixed": mixed,
    "normed": lambda: (seeded(Normed()), data(4, 3, 6, 6)),
    "tied": lambda: (seeded(Tied()), torch.arange(5)),
}


@pytest.mark.quick("normed-no_recomputes")
@pytest.mark.parametrize("recomputes", [no_recomputes, everything, just_in_time])
@pytest.mark.parametrize("name", SUBJECTS)
def test_a_storage_is_there_when_it_is_read_and_gone_behind_its_last_read(name: str, recomputes: Any) -> None:
    linked = linked_of(SUBJECTS[name](), recomputes)
    graph, held = linked.graph, sources(linked.graph)
    there = set(held)
    forward = pieces(graph, linked.forward, held)
    follow(graph, forward, there)
    assert there == set(held)
    backward_start = linked.events[linked.backward_start]
    assert isinstance(backward_start, BackwardStart)
    there.difference_update(drop(graph, backward_start.frees, held))
    backward = pieces(graph, linked.backward, held)
    follow(graph, backward, there)
    assert [p.event for p in (*forward, *backward)] == [e for e in linked.events if isinstance(e, Run | RecomputeRun)]
    kept = {graph.root[value] for _, value in graph.gradients}
    assert {owner for owner in there if graph.values[owner].kind == "op"} == {
        owner for owner in kept if graph.values[owner].kind == "op"
    }


def follow(graph: Graph, row: list[Piece], there: set[int]) -> None:
    """there: owners of the storages in memory before `row`; updated to those after it."""
    for at, piece in enumerate(row):
        op = graph.operations[piece.event.op]
        assert {graph.root[value] for value in op.reads} <= there
        there |= {value for value in op.writes if value is not None}
        assert set(piece.dead) <= there
        there.difference_update(piece.dead)
        for owner in piece.dead:  # nobody reads it before it is made again
            for later in row[at + 1 :]:
                op = graph.operations[later.event.op]
                assert owner not in {graph.root[value] for value in op.reads}
                if owner in op.writes:
                    break


@pytest.fixture(scope="module")
def blocks() -> tuple[Expanded, list[Segment], dict[str, int]]:
    """A step in blocks, the segments of its backward, and the block that every operation belongs to."""
    written = expand(in_blocks(seeded(Mixed(0.3)), (data(64, 8),)))
    linked = link(written.graph, written.recomputes)
    graph, held = linked.graph, sources(linked.graph)
    leaves = {
        graph.operations[index].id: number
        for number, place in enumerate(written.places)
        if place.leaf
        for index in (*place.forward, *place.backward)
    }
    pieces(graph, linked.forward, held)
    return written, cut(graph, pieces(graph, linked.backward, held), leaves), leaves


@pytest.mark.slow
def test_segments_end_with_their_block_and_around_random_operations(blocks: Any) -> None:
    written, result, leaves = blocks
    graph = written.graph
    assert len(set(leaves.values())) > 3
    assert len(result) > len(set(leaves.values()))  # blocks, and the random operations in them
    for entry in result:
        operations = [graph.operations[piece.event.op] for piece in entry.pieces]
        firsts = [op for op, piece in zip(operations, entry.pieces, strict=True) if isinstance(piece.event, Run)]
        assert len({leaves[op.id] for op in firsts}) <= 1
        assert entry.compiled != any(op.random for op in operations)
        assert all(op.random for op in operations) or entry.compiled
    recomputes = [piece.event.op for entry in result for piece in entry.pieces if isinstance(piece.event, RecomputeRun)]
    assert len(recomputes) == len(written.recomputes) > 0


def test_a_recompute_is_in_the_segment_of_what_follows_it(blocks: Any) -> None:
    """Across the border of a block as well: the forward operation is of the block that it was planned in."""
    written, result, leaves = blocks
    operations = written.graph.operations
    across = 0
    for entry in result:
        runs = {leaves[operations[p.event.op].id] for p in entry.pieces if isinstance(p.event, Run)}
        again = {leaves[operations[p.event.op].id] for p in entry.pieces if isinstance(p.event, RecomputeRun)}
        across += bool(runs and again - runs)
        if entry.compiled and not any(isinstance(piece.event, Run) for piece in entry.pieces):
            after = result[result.index(entry) + 1]
            assert not after.compiled  # only something interpreted comes between
    assert across


def test_equal_blocks_are_equal_functions(blocks: Any) -> None:
    written, result, _ = blocks
    live = operators(written.graph, written.where)
    keys = [
        segment_graph(written.graph, entry, live, {}, (), torch.device("cpu")).key for entry in result if entry.compiled
    ]
    assert len(set(keys)) < len(keys)


def test_only_what_dies_and_nobody_else_holds_is_donated(blocks: Any) -> None:
    written, result, _ = blocks
    graph, live = written.graph, operators(written.graph, written.where)
    outputs = {graph.root[value] for value in graph.outputs}
    donated = set()
    for entry in result:
        for at in segment_graph(graph, entry, live, {}, (), torch.device("cpu")).donated:
            owner = entry.reads[at]
            assert owner in entry.dead
            assert graph.values[owner].kind == "op"
            assert owner not in outputs
            donated.add(owner)
    assert donated
    dying = {owner for entry in result for owner in entry.dead}
    assert dying & outputs  # there is something to refuse
    assert {graph.values[owner].kind for owner in dying} >= {"parameter", "tangent"}


def test_what_a_segment_reads_makes_and_lets_go() -> None:
    """A value that is made, dies and is made again inside is neither read nor dead for the others."""
    linked = linked_of((seeded(Normed()), data(4, 3, 6, 6)), everything)
    graph, held = linked.graph, sources(linked.graph)
    pieces(graph, linked.forward, held)
    before = set(held)
    row = pieces(graph, linked.backward, held)
    whole = segment(graph, row, compiled=True)
    assert set(whole.reads) <= before
    assert set(whole.dead) <= set(whole.reads)
    assert set(whole.makes) == {graph.root[value] for _, value in graph.gradients}
    produced = {v for piece in row for v in graph.operations[piece.event.op].writes if v is not None}
    assert produced - set(whole.makes)


class Strange(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        waves = torch.fft.rfft(x).abs()
        counted = torch.as_strided(x * 2, (4, 4), (8, 1)).sum()
        return (waves.sum() + counted + torch.dropout(x, 0.5, True).sum()) * x.sum()


def test_complex_numbers_strided_counts_and_draws_are_not_compiled() -> None:
    linked = linked_of((Strange(), data(4, 8).requires_grad_()), no_recomputes)
    graph = linked.graph
    runs = {event.op for event in linked.events if isinstance(event, Execution)}
    kept_out = {graph.operations[at].op for at in runs if not compiles(graph, graph.operations[at])}
    assert {"aten._fft_r2c", "aten.abs", "aten.as_strided", "aten.native_dropout"} <= kept_out
    product = next(op for op in graph.operations if op.op == "aten.mul.Tensor")
    assert compiles(graph, product)
    for name in ("aten.as_strided_copy", "mine.mul"):
        assert not compiles(graph, replace(product, op=name))
