"""Loss heads in chunks: split by a plan, beside two ways to write the chunks by hand, in one rotation.

    python -m tools.bench.split_heads
    python -m tools.bench.split_heads llama
    python -m tools.bench.split_heads -o tools/bench/results/split_heads.txt

`fused` computes the gradients of each chunk in forward, with the number of chunks of Liger Kernel's fused linear
cross-entropy (Hsu et al. 2024, arXiv:2410.10989, section 3.2). It is written with PyTorch's operators, because Liger's
kernels need a GPU. `checkpoint` recomputes each chunk in backward with `torch.utils.checkpoint`. The plans have the
peaks of these ways as their budgets, and the model as it is.

Peaks are read from the allocator's own events. Step times are CPU time with one thread: the ratio to eager in each
round, median and quartiles. Errors are norms of the difference from the gradient of a step in float64, relative to the
norm there: a mean over all elements, which the seed hardly changes. Figures depend on the machine.
"""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import remate_runtime
from remate.step_measurement.allocator import compare_times, peak_bytes
from remate_runtime.format import Schedule
from remate_runtime.support.quantities import size

from .splits import planned, tiles
from .text import environment, ratio, selection, table

WORDS, WIDTH, BATCH, LENGTH = 8192, 256, 4, 256
HEAD = ("model", "way", "chunks", "peak", "time / eager", "error of the head", "error of the layers")
_ROUNDS = 9
Loss = Callable[[torch.Tensor, nn.Linear, torch.Tensor], torch.Tensor]


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2Model

    shape: Any = {"vocab_size": WORDS, "n_positions": LENGTH, "n_embd": WIDTH, "n_layer": 2, "n_head": 4}
    return GPT2Model(GPT2Config(**shape, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))


def _llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaModel

    shape: Any = {"vocab_size": WORDS, "hidden_size": WIDTH, "intermediate_size": 4 * WIDTH}
    return LlamaModel(LlamaConfig(**shape, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2))


MODELS: dict[str, Callable[[], nn.Module]] = {"gpt2": _gpt2, "llama": _llama}


class Language(nn.Module):
    """Layers, a head, and a loss of both."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.head = layers, nn.Linear(WIDTH, WORDS, bias=False)
        self.loss: Loss = whole

    def forward(self, words: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        hidden = self.layers(words, use_cache=False).last_hidden_state
        return self.loss(hidden.flatten(0, 1), self.head, targets.flatten())


def whole(hidden: torch.Tensor, head: nn.Linear, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(head(hidden), targets)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = hidden.new_zeros(())
        ctx.hidden, ctx.weight = torch.empty_like(hidden), torch.zeros_like(weight)
        parts = (t.split(rows_of_chunk(len(hidden))) for t in (hidden, targets, ctx.hidden))
        for part, target, gradient in zip(*parts, strict=True):
            with torch.enable_grad():
                scores = (part @ weight.t()).detach().requires_grad_()
                term = F.cross_entropy(scores, target, reduction="sum") / len(hidden)
            (slope,) = torch.autograd.grad(term, scores)
            loss += term.detach()
            torch.mm(slope, weight, out=gradient)
            ctx.weight.addmm_(slope.t(), part)
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        return ctx.hidden.mul_(gradients[0]), ctx.weight.mul_(gradients[0]), None


def fused(hidden: torch.Tensor, head: nn.Linear, targets: torch.Tensor) -> torch.Tensor:
    loss = _Fused.apply(hidden, head.weight, targets)
    assert isinstance(loss, torch.Tensor)
    return loss


def checkpointed(hidden: torch.Tensor, head: nn.Linear, targets: torch.Tensor) -> torch.Tensor:
    def term(part: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(head(part), target, reduction="sum")

    parts = zip(*(t.split(rows_of_chunk(len(hidden))) for t in (hidden, targets)), strict=True)
    terms = [checkpoint(term, *part, use_reentrant=False) for part in parts]
    return torch.stack(terms).sum() / len(hidden)  # type: ignore[arg-type]


def rows_of_chunk(rows: int) -> int:
    """Return Liger Kernel's size of a chunk: its scores have about as many elements as the hidden states."""
    at_least = -(-rows // -(-WORDS // WIDTH))
    return 1 << (at_least - 1).bit_length()


class Way(msgspec.Struct, frozen=True):
    """A way to train.

    Attributes:
        chunks: Number of chunks, as text.
        loss: The loss that the model computes.
        schedule: The schedule that is applied; None without one.
    """

    chunks: str
    loss: Loss
    schedule: Schedule | None = None


def rows(name: str) -> list[tuple[str, ...]]:
    """Return the rows of a model."""
    torch.manual_seed(0)
    model = Language(MODELS[name]())
    args = (torch.randint(WORDS, (BATCH, LENGTH)), torch.randint(WORDS, (BATCH, LENGTH)))
    chunks = str(-(-BATCH * LENGTH // rows_of_chunk(BATCH * LENGTH)))
    ways = {"eager": Way("1", whole), "fused": Way(chunks, fused), "checkpoint": Way(chunks, checkpointed)}
    runs = {way: _run(model, about) for way, about in ways.items()}
    peaks = {way: _peak(run, args) for way, run in runs.items()}
    for other in ("fused", "checkpoint"):
        schedule = planned(model, args, {}, budget=peaks[other], cost="measured", split="head")
        if schedule is None:
            continue
        way = f"plan, peak of {other}"
        ways[way] = Way(tiles(schedule) or "1", whole, schedule)
        runs[way] = _run(model, ways[way])
        peaks[way] = _peak(runs[way], args)
    steps = {way: lambda run=run: _step(run, args) for way, run in runs.items()}
    times = compare_times(steps, _ROUNDS, clock=time.process_time_ns)
    exact = _gradients(copy.deepcopy(model).double(), args)
    lines: list[tuple[str, ...]] = []
    for way, run in runs.items():
        errors = _errors(_gradients(run, args), exact)
        lines.append(
            (name, way, ways[way].chunks, size(peaks[way]), ratio(times, way), *(f"{error:.1e}" for error in errors))
        )
    return lines


def _run(model: Language, way: Way) -> nn.Module:
    ours = copy.deepcopy(model)
    ours.loss = way.loss
    return ours if way.schedule is None else remate_runtime.apply(ours, way.schedule, verify="never")


def _step(run: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
    run.zero_grad(set_to_none=True)
    run(*args).backward()


def _peak(run: nn.Module, args: tuple[torch.Tensor, ...]) -> int:
    _step(run, args)
    run.zero_grad(set_to_none=True)
    return peak_bytes(lambda: run(*args).backward())


def _gradients(run: nn.Module, args: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    _step(run, args)
    return {name: p.grad.double() for name, p in run.named_parameters() if p.grad is not None}


def _errors(ours: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> tuple[float, float]:
    """Return the relative error of the head's gradient, and the largest of the others'."""
    relative = {name: float((ours[name] - gradient).norm() / gradient.norm()) for name, gradient in exact.items()}
    return relative.pop("head.weight"), max(relative.values())


def main() -> None:
    names, output = selection(__doc__, MODELS, "model")
    torch.set_num_threads(1)
    lines = list(itertools.chain([HEAD], *(rows(name) for name in names)))
    about = f"{BATCH}×{LENGTH} tokens, {WORDS:,} words, width {WIDTH}, 2 layers, float32"
    text = f"python -m tools.bench.split_heads; {environment()}; {about}\n\n{table(lines)}\n"
    print(text, end="")
    if output:
        Path(output).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
