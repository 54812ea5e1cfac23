"""Paging on an H200 that is not there: overhead against budget, by recomputation, by pages, and by both.

    python -m tools.bench.paging [NAME[:BUDGET] ...]     # gpt2-xl, llama, resnet101, unet; 80%, 60% and 40%

The step is that of CUDA on an H200, captured without one. Costs: roofline model of an H200; lanes of 50 GB/s each way,
counted on in full. No GPU ran any of it. Each cell that is run replaces its row in `results/paging.jsonl`; the table is
written again each time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec.structs import replace

from remate.errors import InfeasibleError
from remate.strategy import Request, StepInstance, solve
from remate.strategy.effort import QUICK
from remate.strategy.paging import PagingLimits, paged_solution
from remate.strategy.paging.goal import EnergyGoal
from remate.strategy.paging.paged_cut import best_choice
from remate.strategy.paging.poet import greedy_choice, placed
from remate_runtime.format import Lane
from remate_runtime.link import link, simulate

from .absent_gpu import step_on
from .models import LARGE, Built, on_meta
from .text import environment, table

RESULTS = Path(__file__).parent / "results"
STORE = RESULTS / "paging.jsonl"
SPEED = 50_000_000_000
LIMITS = {"host": 1 << 40}
BUDGETS = (80, 60, 40)
NOTE = """Extra time in % of the step that keeps everything. recompute: by `auto`; page: strategy offload-only; both: mixed;
bound: proven for both, by the program at one cut; removed: share of the extra time of recomputation that `both` does without;
all by quick effort. greedy: keep, recompute or offload each tensor, the
cheapest for its bytes first, where what leaves in forward costs nothing: pages for the bytes that the lane moves while
forward runs. none: does not fit. Lane: bytes that leave while forward runs, as a share of the baseline's peak. CPU: seconds."""


class Cell(msgspec.Struct, frozen=True):
    """A model at a budget. Times: shares of extra time, None where nothing fits."""

    model: str
    budget: int
    operations: int
    lane: float
    recompute: float | None
    page: float | None
    both: float | None
    greedy: float | None
    bound: float
    cpu: float


def _llama() -> Built:
    import transformers

    config: Any = transformers.LlamaConfig(
        hidden_size=4096,
        intermediate_size=11008,
        num_hidden_layers=32,
        num_attention_heads=32,
        vocab_size=32000,
        use_cache=False,
    )
    model: Any = transformers.LlamaForCausalLM(config)
    model = model.to(torch.bfloat16)
    ids = torch.zeros(8, 2048, dtype=torch.int64)
    return model, (), {"input_ids": ids, "labels": ids}


def models() -> dict[str, Callable[[], Built]]:
    """Return the models by name."""
    return {**{name: LARGE[name].build for name in ("resnet101", "unet", "gpt2-xl")}, "llama": on_meta(_llama)}


def step_of(build: Callable[[], Built]) -> StepInstance:
    """Capture a model for an H200, with lanes to the host."""
    step = step_on("h200", build())
    graph = step.captured.graph
    lanes = {**graph.lanes, "host": Lane(out=SPEED, back=SPEED, latency=10_000)}
    return StepInstance(replace(graph, lanes=lanes), step.parts)


def measured(name: str, instance: StepInstance, percent: int) -> Cell:
    """Plan a budget in all ways."""
    started, base, graph = time.process_time(), instance.baseline, instance.graph
    request = Request(base.peak * percent // 100, effort=QUICK)

    def extra(plan: Callable[[], Any]) -> float | None:
        try:
            return plan().time / base.time - 1.0
        except InfeasibleError:
            return None

    forward = sum(op.ns for op in graph.operations[: graph.backward_start])
    moved = int(SPEED * forward / 1e9)
    limits: Any = LIMITS
    choice = best_choice(instance, request.budget, limits, QUICK)
    return Cell(
        name,
        percent,
        len(graph.operations),
        moved / base.peak,
        extra(lambda: solve(instance, request)),
        extra(lambda: paged_solution(instance, request, PagingLimits(limits, only=True))),
        extra(lambda: paged_solution(instance, request, PagingLimits(limits, only=False))),
        _greedy(instance, request.budget, moved),
        0.0 if choice is None else choice.bound / base.time - 1.0,
        time.process_time() - started,
    )


def _greedy(instance: StepInstance, budget: int, room: int) -> float | None:
    chosen = greedy_choice(instance, budget, EnergyGoal("energy", None, None, "host", room))
    if chosen is None:
        return None
    recomputes, stretches = chosen
    pages = placed(instance.graph, recomputes, stretches, "host", budget)
    timeline = simulate(link(instance.graph, recomputes, pages))
    return timeline.time / instance.baseline.time - 1.0 if timeline.peak <= budget * 1.005 else None


def stored() -> list[Cell]:
    """Return the cells, the latest of each model and budget."""
    lines = STORE.read_bytes().splitlines() if STORE.exists() else []
    cells = (msgspec.json.decode(line, type=Cell) for line in lines)
    return sorted({(c.model, c.budget): c for c in cells}.values(), key=lambda c: (c.model, -c.budget))


def write_table() -> None:
    """Write the table of all cells."""
    head = ("model", "operations", "lane", "budget", "recompute", "page", "greedy", "both", "bound", "removed", "CPU")
    rows: list[tuple[str, ...]] = [head]
    for c in stored():
        times = ["none" if x is None else f"{100 * x:.2f}" for x in (c.recompute, c.page, c.greedy, c.both, c.bound)]
        removed = f"{1 - c.both / c.recompute:.0%}" if c.both is not None and c.recompute else "-"
        rows.append((c.model, f"{c.operations:,}", f"{c.lane:.1%}", f"{c.budget}%", *times, removed, f"{c.cpu:.0f}"))
    text = f"python -m tools.bench.paging; step and costs: cuda:h200; {environment()}\n{NOTE}\n\n{table(rows)}\n"
    (RESULTS / "paging.txt").write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", help="NAME or NAME:BUDGET; default: all")
    args = parser.parse_args()
    wanted = args.cells or list(models())
    for name, build in models().items():
        budgets = [b for b in BUDGETS if any(cell in (name, f"{name}:{b}") for cell in wanted)]
        if not budgets:
            continue
        instance = step_of(build)
        for budget in budgets:
            cell = measured(name, instance, budget)
            with STORE.open("ab") as store:
                store.write(msgspec.json.encode(cell) + b"\n")
            print(cell, flush=True)
            write_table()


if __name__ == "__main__":
    main()
