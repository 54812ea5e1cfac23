"""One way to run a block alone: what it retains, what it peaks at, how long it takes."""

from __future__ import annotations

import msgspec

from remate_runtime.flat_step import FlatRecompute
from remate_runtime.link import link, simulate

from ...partition.leaf_graph import LeafGraph


class BlockPlan(msgspec.Struct, frozen=True):
    """A plan of one block. recomputations: over the leaf's own operations. In bytes: retained between forward and
    backward (outputs included), forward_peak and backward_peak of the block alone. time: ns of forward and backward,
    recomputations included."""

    recomputes: tuple[FlatRecompute, ...]
    retained: int
    forward_peak: int
    backward_peak: int
    time: int

    @property
    def figures(self) -> tuple[int, int, int, int]:
        return self.retained, self.forward_peak, self.backward_peak, self.time


def simulated_plan(leaf: LeafGraph, recomputes: tuple[FlatRecompute, ...]) -> BlockPlan:
    """A plan of a block with the simulator's figures."""
    timeline = simulate(link(leaf.graph, recomputes))
    backward_start = timeline.backward_start
    return BlockPlan(
        tuple(recomputes),
        timeline.after[backward_start],
        max(timeline.during[: backward_start + 1]),
        max(timeline.during[backward_start + 1 :], default=0),
        timeline.time,
    )
