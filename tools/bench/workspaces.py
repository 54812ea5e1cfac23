"""How the reserve that the model of PyTorch's allocator predicts follows the sizes of cuDNN's workspaces.

    python -m tools.bench.workspaces -o tools/bench/results/workspaces.txt

ResNet-50 as in `tools/cuda`, planned for an H100 without one, so workspaces are estimates. Cells: bytes that the step
reserves, and by how much they differ from those with the estimates. Remainders: what the allocator does not split from
blocks at the peak.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from remate.strategy import Request, StepInstance, solve
from remate_runtime.addresses import Reservation, buffers_of, reserve
from remate_runtime.flat_step import FlatRecompute, Graph
from remate_runtime.link import link, simulate
from remate_runtime.support.quantities import size

from .absent_gpu import step_on
from .cuda.subjects import FULL
from .models import on_meta
from .text import report

SHARES = (100, 60, 40)
SCALES = (0.0, 0.5, 1.0, 1.5)
HEAD = ["budget", "remainders", *(f"workspaces × {scale:g}" for scale in SCALES)]


def reserved(graph: Graph, recomputes: Sequence[FlatRecompute], scale: float) -> Reservation:
    """Return what a schedule reserves if all workspaces are this many times as large."""
    scaled = tuple(replace(op, workspace=int(scale * op.workspace) // 512 * 512) for op in graph.operations)
    return reserve(buffers_of(link(replace(graph, operations=scaled), recomputes)))


def rows() -> list[list[str]]:
    """Return the rows of the table."""
    step = step_on("h100", on_meta(lambda: FULL["resnet50"].build("meta"))())
    instance = StepInstance(step.captured.graph, step.parts)
    found: list[list[str]] = []
    for share in SHARES:
        recomputes = () if share == 100 else solve(instance, Request(instance.baseline.peak * share // 100)).recomputes
        peak = simulate(link(instance.graph, recomputes)).peak
        ours = {scale: reserved(instance.graph, recomputes, scale) for scale in SCALES}
        cells = (
            f"{size(each.reserved)} ({each.reserved / ours[1.0].reserved - 1:+.0%})"
            if scale != 1
            else size(each.reserved)
            for scale, each in ours.items()
        )
        found.append([f"{share}%", f"{ours[1.0].allocated / peak - 1:.2%} of the peak", *cells])
    return found


if __name__ == "__main__":
    report("workspaces", __doc__, lambda: [HEAD, *rows()])
