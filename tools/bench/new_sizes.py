"""Measures what the first call of a new size costs, on models of 48 layers.

    python -m tools.bench.new_sizes -o tools/bench/results/new_sizes.txt
    python -m tools.bench.new_sizes --plans FOLDER  # keeps plans there, which take minutes

Small widths, costs of the roofline model of a CPU, a file for a range of sizes. `keep`: sizes that need no
recomputation; `some`: sizes between; `full`: sizes that need the whole plan, or exceed the budget. ms: CPU time of
`prepare` for a size that was not seen before, which is what its first call takes more than later ones: the median, and
the largest. `first of all`: the first size that is called. `some, again`: of the last third of the sizes, when most
plans between have been needed before. `types`: what of the median the comparison of the file's types with torch's takes. The self-check is not in it.
"""

from __future__ import annotations

import argparse
import random
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import msgspec
from torch import nn

import remate
from remate_runtime import Schedule, apply, load, prepare
from remate_runtime.format import checked_text
from remate_runtime.link import SizedLinks, fitted
from remate_runtime.operator_calls import live

from .sized_models import TEXT, Call, tokens
from .text import environment, table

LAYERS = 48
_SIZES = 180
_RANGE = {name: {0: "b=2..8", 1: "t=16..128"} for name in TEXT}


class Subject(msgspec.Struct, frozen=True):
    """make: the model. budget: of the peak without recomputation at the largest size."""

    make: Callable[[], nn.Module]
    budget: str


def gpt2() -> nn.Module:
    import transformers

    small = {"n_layer": LAYERS, "n_embd": 64, "n_head": 4, "vocab_size": 64, "n_positions": 128, "use_cache": False}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(bos_token_id=0, eos_token_id=0, **small))
    model.loss_type = "ForCausalLM"
    return model


def llama() -> nn.Module:
    import transformers

    small: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 64}
    few = {"num_hidden_layers": LAYERS, "num_key_value_heads": 2, "max_position_embeddings": 128, "use_cache": False}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**small, **few))


SUBJECTS = {"GPT-2": Subject(gpt2, "50%"), "Llama": Subject(llama, "50%")}


def call(b: int, t: int) -> Call:
    return (), {"input_ids": tokens(b, t), "labels": tokens(b, t)}


def planned(name: str, folder: Path | None) -> tuple[nn.Module, Schedule]:
    """Return a model and its schedule, from a file of the folder if it is there."""
    subject = SUBJECTS[name]
    model, path = subject.make().train(), None if folder is None else folder / f"{name}.json"
    if path is not None and path.exists():
        return model, load(path)
    schedule = remate.plan(model, *call(8, 128), subject.budget, dims=_RANGE, cost="cpu")
    assert isinstance(schedule, Schedule)
    if path is not None:
        path.write_bytes(checked_text(schedule))
    return model, schedule


def chosen(count: int) -> list[dict[str, int]]:
    """Return sizes by chance, the same each time."""
    chance = random.Random(0)
    sizes = dict.fromkeys((chance.randint(2, 8), chance.randint(16, 128)) for _ in range(count))
    return [{"b": b, "t": t} for b, t in sizes]


def kind(schedule: Schedule, dims: dict[str, int], links: SizedLinks) -> str:
    at = fitted(schedule, dims, links)
    return "full" if at.dropped == 0 else "keep" if at.dropped == at.planned else "some"


def _rows(name: str, folder: Path | None) -> list[tuple[str, ...]]:
    model, schedule = planned(name, folder)
    applied, sizes = apply(model, schedule, verify=False), chosen(_SIZES)
    spent: dict[str, list[tuple[float, float]]] = {}
    types: list[float] = []
    usual, links = live.check_types, SizedLinks()

    def timed(*args: Any) -> Any:
        begun = time.process_time()
        faults = usual(*args)
        types.append(time.process_time() - begun)
        return faults

    with mock.patch.object(live, "check_types", timed):
        for at, dims in enumerate(sizes):
            begun = time.process_time()
            prepare(applied, [dims])
            seconds = time.process_time() - begun
            plan = kind(schedule, dims, links)
            again = ", again" if plan == "some" and at >= 2 * len(sizes) // 3 else ""
            spent.setdefault(f"{plan}{again}" if at else "first of all", []).append((1e3 * seconds, 1e3 * types[-1]))
    rows: list[tuple[str, ...]] = []
    for plan, figures in sorted(spent.items()):
        every, inferring = zip(*figures, strict=True)
        rows.append(
            (name, plan, str(len(every)), *(f"{ms:.0f}" for ms in (median(every), max(every), median(inferring))))
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="also write the table to this file")
    parser.add_argument("--models", nargs="+", choices=sorted(SUBJECTS), default=list(SUBJECTS))
    parser.add_argument("--plans", type=Path, help="a folder for plans")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    rows: list[tuple[str, ...]] = [("", "plan", "sizes", "median ms", "most ms", "types")]
    for name in args.models:
        rows += _rows(name, args.plans)
    text = f"python -m tools.bench.new_sizes; {environment()}\n\n{table(rows)}\n"
    print(text)
    if args.output:
        args.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
