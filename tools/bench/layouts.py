"""Predicts how clusters of H100s train Llama 3, beside what torchtitan published.

    python -m tools.bench.layouts                           # all rows: a quarter of an hour on one core
    python -m tools.bench.layouts 8b-8
    python -m tools.bench.layouts -o tools/bench/results/layouts.txt

`tests/docs/test_layouts.py` fails if a prediction in that file is not what the code gives. Predictions are those of
`remate.fit_layouts` for the published layout and for others, of the same batch and GPUs within the published memory: bf16,
with shards of parameters, of float32 copies and of Adam's state. They have no optimizer, no loading of data, no compilation and no float8, and recompute where
memory requires it. Published runs checkpointed all layers, some with float8 products.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import msgspec
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from remate.api.fit_layouts import LayoutFit, fit_layouts
from remate.api.layouts import RankLayout
from remate_runtime.support.quantities import size

from .llama_stages import LLAMA, Stage, parallelized
from .text import environment, selection, table

LENGTH = 8192
_SOURCE = "torchtitan 31a17bfd, benchmarks/llama3_h100_202412_torchtitan.md"


class Row(msgspec.Struct, frozen=True):
    """A published run. batch: samples of all ranks. layouts: with the samples of a call; the first one was published.
    rate: tokens per second and GPU. reserved: GiB."""

    model: str
    batch: int
    layouts: tuple[tuple[str, int], ...]
    how: str
    rate: float
    reserved: float
    table: int


_SELECTIVE = "selective checkpointing"
_FULL = "float8, compiled, full checkpointing"
_1F1B = "float8, compiled, async TP, full checkpointing"
ROWS = {
    "8b-8": Row("8b", 16, (("dp=8", 2), ("dp=8", 1), ("dp=4,tp=2", 2), ("dp=4,pp=2", 1)), _SELECTIVE, 5762, 82.4, 1),
    "8b-128": Row("8b", 256, (("dp=128", 2), ("dp=128", 1), ("dp=64,tp=2", 2)), _SELECTIVE, 5605, 67.0, 3),
    "70b-256": Row("70b", 512, (("dp=32,tp=8", 16), ("dp=64,tp=4", 4), ("dp=256", 2)), _FULL, 829, 71.9, 4),
    "405b-512": Row(
        "405b", 256, (("dp=8,tp=8,pp=8", 1), ("dp=4,tp=8,pp=16", 1), ("dp=64,tp=8", 2)), _1F1B, 100, 82.5, 5
    ),
}


class Master(torch.optim.Optimizer):
    """The state of AdamW over float32 copies of the parameters."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                for name in ("copy", "exp_avg", "exp_avg_sq"):
                    self.state[parameter][name] = parameter.float()


def builder(model: str) -> Any:
    """Return the function that builds a layout of a Llama."""
    sizes = LLAMA[model]

    def build(layout: RankLayout) -> Any:
        with torch.device("meta"):
            tokens = torch.zeros(layout.microbatch, LENGTH, dtype=torch.long)
            hidden = torch.zeros(layout.microbatch, LENGTH // layout.tp, sizes.width, dtype=torch.bfloat16)
            ends = [round(sizes.layers * at / layout.pp) for at in range(layout.pp + 1)]
            counts = [after - before for before, after in itertools.pairwise(ends)]
            made: dict[tuple[int, bool, bool], Stage] = {}
            for at, count in enumerate(counts):
                kind = count, at == 0, at == layout.pp - 1
                if kind not in made:
                    made[kind] = Stage(sizes, *kind)
        for stage in made.values():
            stage.bfloat16()
            if layout.tp > 1:
                parallelized(stage, layout.mesh["tp"])
        stages = [made[count, at == 0, at == layout.pp - 1] for at, count in enumerate(counts)]
        if layout.pp == 1:
            return stages[0], (tokens, tokens)
        given = [(tokens,), *[(hidden,)] * (layout.pp - 2), (hidden, tokens)]  # the last stage computes the loss
        return list(zip(stages, given, strict=True)), lambda loss, target: loss.clone(), tokens

    return build


def predicted(row: Row, layout: str, microbatch: int) -> LayoutFit:
    """Return the prediction for a layout of a row."""
    from torch.distributed.tensor.parallel import loss_parallel

    options: dict[str, Any] = {"device": "cuda:h100", "fsdp": "layers.*", "effort": "quick", "progress": None}
    parallel = loss_parallel() if "tp" in layout else contextlib.nullcontext()
    with parallel, sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # which torch ran on an H100 then
        found = fit_layouts(
            builder(row.model),
            [layout],
            row.batch,
            device_memory=f"{row.reserved}GiB",
            cuda_context=0,  # what the allocator reserved was published
            optimizer=Master,
            microbatch=microbatch,
            **options,
        )
    return found.layouts[0]


HEAD = ["model", "GPUs", "layout", "samples of a call", "published with", "published", "predicted", "runs again"]
HEAD += ["published memory", "predicted memory"]


def published(row: Row) -> tuple[str, str, str]:
    """Return how the run of a row was published, its rate, and its memory."""
    return f"{row.how} (table {row.table})", f"{row.rate:,.0f} tokens/s", f"{row.reserved} GiB"


def shown(row: Row, at: int, fit: LayoutFit) -> list[str]:
    """Return the cells of a layout of a row. at: its index."""
    step, layout = fit.step, fit.layout
    how, rate, reserved = published(row) if at == 0 else ("-", "-", "-")
    cells = [f"Llama 3.1 {row.model.upper()}", str(layout.ranks), *map(str, row.layouts[at]), how, rate]
    if step is None:
        return [*cells, fit.refused, "-", reserved, "-"]
    tokens = row.batch * LENGTH / layout.ranks / (step.time / 1e9)
    more = step.recomputation / (step.time - step.recomputation)
    return [*cells, f"{tokens:,.0f} tokens/s", f"+{more:.0%}", reserved, size(max(step.memory))]


def main() -> None:
    chosen, output = selection(__doc__, ROWS, "row")
    torch.set_num_threads(1)
    rows = [HEAD]
    with contextlib.suppress(KeyboardInterrupt):
        for row in (ROWS[name] for name in chosen):
            for at, (layout, microbatch) in enumerate(row.layouts):
                rows.append(shown(row, at, predicted(row, layout, microbatch)))
                print("  ".join(rows[-1]), flush=True)
    text = f"python -m tools.bench.layouts; {environment()}; published: {_SOURCE}\n\n{table(rows)}\n"
    if output:
        output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
