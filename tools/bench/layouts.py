"""Predicts how clusters of H100s train Llama 3, beside what torchtitan published.

    python -m tools.bench.layouts                           # all rows
    python -m tools.bench.layouts 8b-8
    python -m tools.bench.layouts -o tools/bench/results/layouts.txt

`tests/docs/test_layouts.py` fails if a prediction in that file is not what the code gives. Predictions are those of
`remate.fit_layouts` for the published layout, within the published memory: bf16, with shards of parameters, of float32
copies and of Adam's state. They have no optimizer, no loading of data, no compilation and no float8, and recompute where
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
    """A published run. local: samples of a rank of `dp` for a batch. rate: tokens per second and GPU. reserved: GiB."""

    model: str
    layout: str
    local: int
    microbatch: int
    how: str
    rate: float
    reserved: float
    table: int
    pipeline: str = "1F1B"


ROWS = {
    "8b-8": Row("8b", "dp=8", 2, 2, "selective checkpointing", 5762, 82.4, 1),
    "8b-128": Row("8b", "dp=128", 2, 2, "selective checkpointing", 5605, 67.0, 3),
    "70b-256": Row("70b", "dp=32,tp=8", 16, 16, "float8, compiled, full checkpointing", 829, 71.9, 4),
    "405b-512": Row("405b", "dp=8,tp=8,pp=8", 32, 1, "float8, compiled, async TP, full checkpointing", 100, 82.5, 5),
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


def predicted(row: Row) -> LayoutFit:
    """Return the prediction for the layout of a row."""
    from torch.distributed.tensor.parallel import loss_parallel

    batch = row.local * int(row.layout.partition("dp=")[2].partition(",")[0])
    options: dict[str, Any] = {"device": "cuda:h100", "fsdp": "layers.*", "effort": "quick", "progress": None}
    parallel = loss_parallel() if "tp" in row.layout else contextlib.nullcontext()
    with parallel, sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # which torch ran on an H100 then
        found = fit_layouts(
            builder(row.model),
            [row.layout],
            batch,
            device_memory=f"{row.reserved}GiB",
            cuda_context=0,  # what the allocator reserved was published
            optimizer=Master,
            microbatch=row.microbatch,
            pipeline=row.pipeline,
            **options,
        )
    return found.layouts[0]


HEAD = ["model", "GPUs", "layout", "published with", "published", "predicted", "published memory", "predicted memory"]


def shown(row: Row, fit: LayoutFit) -> list[str]:
    """Return the cells of a row."""
    step, layout = fit.step, fit.layout
    cells = [f"Llama 3.1 {row.model.upper()}", str(layout.ranks), row.layout, f"{row.how} (table {row.table})"]
    published = [f"{row.rate:,.0f} tokens/s", f"{row.reserved} GiB"]
    if step is None:
        return [*cells, published[0], fit.refused, published[1], "-"]
    tokens = row.local * layout.dp * LENGTH / layout.ranks / (step.time / 1e9)
    more = step.recomputation / (step.time - step.recomputation)
    return [
        *cells,
        published[0],
        f"{tokens:,.0f} tokens/s (+{more:.0%} runs again)",
        published[1],
        size(max(step.memory)),
    ]


def main() -> None:
    chosen, output = selection(__doc__, ROWS, "row")
    torch.set_num_threads(1)
    rows = [HEAD]
    with contextlib.suppress(KeyboardInterrupt):
        for name in chosen:
            rows.append(shown(ROWS[name], predicted(ROWS[name])))
            print("  ".join(rows[-1]), flush=True)
    text = f"python -m tools.bench.layouts; {environment()}; published: {_SOURCE}\n\n{table(rows)}\n"
    if output:
        output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
