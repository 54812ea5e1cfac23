"""A plan of a single block, with its retained bytes, peaks and time."""

from __future__ import annotations

import msgspec

from remate_runtime.flat_step import FlatRecompute
from remate_runtime.link import link, simulate

from ...partition.leaf_graph import LeafGraph


class BlockPlan(msgspec.Struct, frozen=True):
    """A plan of one block, simulated alone.

    Attributes:
        recomputes: Over the leaf's own operations.
        retained: Bytes in memory between forward and backward, outputs included.
        forward_peak: Bytes.
        backward_peak: Bytes.
        time: ns of forward and backward, recomputations included.
    """

    recomputes: tuple[FlatRecompute, ...]
    retained: int
    forward_peak: int
    backward_peak: int
    time: int

    @property
    def figures(self) -> tuple[int, int, int, int]:
        """Return the figures by which plans are compared; less is better."""
        return self.retained, self.forward_peak, self.backward_peak, self.time


def simulated_plan(leaf: LeafGraph, recomputes: tuple[FlatRecompute, ...]) -> BlockPlan:
    """Return a plan of a block with the simulator's figures."""
    timeline = simulate(link(leaf.graph, recomputes))
    backward_start = timeline.backward_start
    return BlockPlan(
        tuple(recomputes),
        timeline.after[backward_start],
        max(timeline.during[: backward_start + 1]),
        max(timeline.during[backward_start + 1 :], default=0),
        timeline.time,
    )
