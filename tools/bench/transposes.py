"""What cuDNN's copies between layouts would add to the roofline model's times of ResNet-50 in TF32.

    python -m tools.bench.transposes -o tools/bench/results/transposes.txt

Tensor cores take images with channels last (NVIDIA, "Convolutional Layers User's Guide", section "Tensor Layouts"). For
others cuDNN copies what a convolution reads and writes, in forward and for both gradients. The roofline model does not
count these copies. Here each reads and writes its bytes once, at the bandwidth of the model.
"""

from __future__ import annotations

import statistics
from itertools import chain

from remate.profile.devices import DEVICES
from remate_runtime.flat_step import Graph
from tools.documentation.results import records_of

from .absent_gpu import step_on
from .cuda.subjects import FULL
from .models import on_meta
from .published import PUBLISHED
from .text import report

_CONVOLUTIONS = 3  # forward, gradient of the input, gradient of the weight
HEAD = ["step", "GPU", "measured", "predicted", "error", "with copies", "error"]


def copies(graph: Graph, gpu: str) -> float:
    """Return the milliseconds of the copies of all convolutions."""
    device = DEVICES[gpu]
    moved = 0
    for op in graph.operations:
        if op.op == "aten.convolution" and (result := op.writes[0]) is not None:
            moved += sum(graph.values[value].type.dense.nbytes for value in (op.reads[0], result))
    return 1e3 * 2 * _CONVOLUTIONS * moved / (device.bandwidth * device.efficiency[2])


def steps() -> dict[str, tuple[str, float, Graph]]:
    """Return GPU, measured milliseconds, and the captured step by name."""
    eager = next(
        r for r in records_of("cuda/outcomes.jsonl") if (r["model"], r["configuration"]) == ("resnet50", "eager")
    )
    row = PUBLISHED["resnet50-a100"]
    built = on_meta(lambda: FULL["resnet50"].build("meta"))()
    return {
        FULL["resnet50"].describe: (
            "h100",
            statistics.median(chain(*eager["ms"])),
            step_on("h100", built).captured.graph,
        ),
        row.describe: (row.gpu, row.measured, step_on(row.gpu, on_meta(lambda: row.build(0))()).captured.graph),
    }


def rows() -> list[list[str]]:
    """Return the rows of the table."""
    found: list[list[str]] = []
    for name, (gpu, measured, graph) in steps().items():
        predicted = sum(op.ns for op in graph.operations) / 1e6
        both = predicted, predicted + copies(graph, gpu)
        cells = chain(*((f"{each:.0f} ms", f"{each / measured - 1:+.0%}") for each in both))
        found.append([name, gpu, f"{measured:.0f} ms", *cells])
    return found


if __name__ == "__main__":
    report("transposes", __doc__, lambda: [HEAD, *rows()])
