"""What a schedule notices when the model is no longer the planned one, and what that costs.

    python -m tools.bench.trust [--layers 12] [--steps 5]

First a table *case x answer*: a GPT-2 of two layers is planned, changed in one way, and applied or called. Then files from
strangers: what becomes of each. Then the cost for a GPT-2 of `--layers` layers: `apply`, the check of every call, and a step.
"""

from __future__ import annotations

import argparse
import copy
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import transformers
from torch import nn

from remate import plan
from remate_runtime import BindError, Schedule, ScheduleError, SteppedAsideWarning, apply
from remate_runtime.flat_step import expand
from remate_runtime.operator_calls import operators
from remate_runtime.staleness import Code, Guard, compare_digest
from tests.runtime.hostile_files import files as hostile_files
from tests.runtime.strangers import inputs as small_inputs
from tests.runtime.strangers import model as small_model

from .text import table

Change = Callable[[Any], Any]


def gpt2(layers: int, width: int = 64) -> tuple[Any, dict[str, Any]]:
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=layers, n_embd=width, n_head=4, vocab_size=128, n_positions=64)
    ids = torch.randint(0, 128, (2, 32))
    return transformers.GPT2LMHeadModel(config).train(), {"input_ids": ids, "labels": ids, "use_cache": False}


def _observe(module: nn.Module, *rest: Any) -> None:
    pass


def _eval(model: Any) -> None:
    model.eval()


CASES: dict[str, Change] = {
    "nothing changed": lambda m: None,
    "an attribute that forward does not read": lambda m: setattr(m.transformer.h[0], "name", "first"),
    "a hook on the model itself": lambda m: m.register_forward_hook(_observe),
    "a hook on a parameter": lambda m: m.lm_head.weight.register_hook(lambda grad: grad),
    "dropout.p": lambda m: setattr(m.transformer.h[1].mlp.dropout, "p", 0.0),
    "scaling of attention": lambda m: setattr(m.transformer.h[1].attn, "scaling", 0.5),
    "GELU exchanged": lambda m: setattr(m.transformer.h[0].mlp, "act", nn.SiLU()),
    "config: attention path": lambda m: setattr(m.config, "_attn_implementation", "eager"),
    "forward hook on a layer": lambda m: m.transformer.h[0].register_forward_hook(_observe),
    "pre-hook on the embedding (NEFTune)": lambda m: m.transformer.wte.register_forward_pre_hook(_observe),
    "backward hook on a layer": lambda m: m.transformer.h[0].register_full_backward_hook(_observe),
    "forward of a layer replaced": lambda m: setattr(m.transformer.h[0].mlp, "forward", lambda x: x),
    "forward of the model replaced": lambda m: setattr(m, "forward", lambda **kwargs: None),
    "eval() with gradients": _eval,
}


def answer(schedule: Schedule, change: Change, when: str) -> str:
    """noticed (a warning), refused, or taken; `when` the change is made: before apply, or between two calls."""
    model, inputs = gpt2(2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            if when == "before":
                change(model)
            planned = apply(model, schedule)
            if when == "after":
                change(model)
            planned(**inputs)
        except BindError:
            return "refused"
    return "noticed" if any(issubclass(one.category, SteppedAsideWarning) for one in caught) else "taken"


def cases() -> str:
    model, inputs = gpt2(2)
    schedule = plan(model, (), inputs, budget="90%", cost="cpu", strategy="greedy")
    rows = [("case", "before apply", "after apply")]
    rows += [
        (name, *(answer(schedule, change, when) for when in ("before", "after"))) for name, change in CASES.items()
    ]
    return table(rows)


def stranger(schedule: Schedule) -> str:
    """What becomes of a file whose operators would crash the process, or write out of bounds."""
    try:
        apply(small_model(), schedule)(small_inputs()).sum().backward()
    except ScheduleError as error:
        return f"refused ({error.code})"
    except (RuntimeError, IndexError):
        return "stopped by torch"
    return "harmless"


def strangers() -> str:
    return table([("operators of a stranger's file", ""), *((name, stranger(file)) for name, file in hostile_files())])


def timed(call: Callable[[], Any], repeats: int) -> float:
    """Median seconds of a call."""
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return median(taken)


class Dropouts(nn.Module):
    """As many rates of dropout as it is reported, all different attributes."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.h = nn.ModuleList(nn.Dropout(0.1) for _ in range(layers))
        self.out = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for drop in self.h:
            x = drop(x)
        return self.out(x).mean()


def live_attributes(count: int) -> str:
    """What it takes more of a step's CPU time that so many attributes are read at every call: of two models, in turn."""
    x, found = torch.randn(2, 8), []
    for live in ([], ["h.*.p"]):
        model = Dropouts(count)
        found.append(apply(model, plan(model, (x,), budget="100%", cost="cpu", strategy="greedy", live=live)))
    times: list[list[float]] = [[], []]
    for _ in range(300):
        for planned, taken in zip(found, times, strict=True):
            start = time.thread_time()
            planned(x).backward()
            taken.append(time.thread_time() - start)
    fixed, varying = map(median, times)
    return f"{(varying - fixed) * 1e6:.0f} us, of {varying * 1e6:.0f} us for the step"


def cost(layers: int, steps: int) -> str:
    model, inputs = gpt2(layers, 768)
    schedule = plan(model, (), inputs, budget="100%", cost="cpu", strategy="greedy")
    assert schedule.digest is not None
    code = Code()
    compare_digest(schedule.digest, torch.__version__, model, code)
    guard, planned = Guard(model, schedule.digest, code), apply(model, schedule)
    digest, expanded = schedule.digest, expand(schedule)
    modules = sum(1 for _ in model.modules())
    rows = [
        ("modules", str(modules)),
        ("comparison at apply", f"{timed(lambda: compare_digest(digest, '', model, Code()), 5) * 1e3:.2f} ms"),
        ("operators and types at apply", f"{timed(lambda: operators(expanded.graph, expanded.where), 5) * 1e3:.0f} ms"),
        ("check at every call", f"{timed(guard.check, 200) * 1e6:.0f} us"),
        ("a step, 64 tokens of width 768", f"{timed(lambda: planned(**inputs).loss.backward(), steps) * 1e3:.1f} ms"),
        ("24 live attributes, a call", live_attributes(24)),
        ("deepcopy, applied again", f"{timed(lambda: copy.deepcopy(planned), 2) * 1e3:.0f} ms"),
    ]
    return table([("cost", ""), *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(cases(), strangers(), cost(args.layers, args.steps), sep="\n\n")


if __name__ == "__main__":
    main()
