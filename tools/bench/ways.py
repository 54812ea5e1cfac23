"""The ways to train in less memory that are compared: eager, PyTorch's own means, and remate."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

import remate
import remate_runtime
from remate_runtime.format import Schedule

from .subjects import SUBJECTS, Subject

Prepare = Callable[[nn.Module, Subject, tuple[Any, ...], dict[str, Any]], nn.Module]


class Way(NamedTuple):
    """family: what belongs to one curve. prepare: what makes a model ready; work that is left to the first steps, too."""

    label: str
    family: str
    prepare: Prepare


def eager(model: nn.Module, subject: Subject, args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module:
    return model


def checkpointed(model: nn.Module, subject: Subject, args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module:
    return checkpointed_blocks(model, subject.blocks(model))


def selective(model: nn.Module, subject: Subject, args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module:
    """Per block, but the results of products, convolutions and fused attention are kept."""
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    ops = torch.ops.aten
    kept = [
        ops.mm.default,
        ops.addmm.default,
        ops.bmm.default,
        ops.convolution.default,
        ops._scaled_dot_product_flash_attention_for_cpu.default,
    ]
    return checkpointed_blocks(
        model, subject.blocks(model), context_fn=lambda: create_selective_checkpoint_contexts(kept)
    )


def checkpointed_blocks(model: nn.Module, blocks: Sequence[nn.Module], **options: Any) -> nn.Module:
    """The model, whose `blocks` are checkpointed one by one. options: of torch.utils.checkpoint."""
    from torch.utils.checkpoint import checkpoint

    def wrapped(forward: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: checkpoint(forward, *args, use_reentrant=False, **options, **kwargs)

    for block in blocks:
        block.forward = wrapped(block.forward)
    return model


def compiled(budget: float | None, blocks: bool = False) -> Prepare:
    """torch.compile. budget: activation_memory_budget. blocks: over checkpointing of the blocks."""

    def prepare(model: nn.Module, subject: Subject, args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module:
        from torch._inductor.compile_fx import compile_fx

        def inductor(graph: Any, inputs: Any) -> Any:
            with _configured(budget):
                return compile_fx(graph, inputs)

        # A backend of its own: otherwise models of one class would share what the first was compiled to.
        made: Any = torch.compile(checkpointed(model, subject, args, kwargs) if blocks else model, backend=inductor)
        return made

    return prepare


@contextlib.contextmanager
def _configured(budget: float | None) -> Iterator[None]:
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor

    with inductor.patch(force_disable_caches=True), functorch.patch(activation_memory_budget=budget or 1.0):
        yield


def planned(budget: str, engine: str = "eager", cost: str = "measured") -> Prepare:
    def prepare(model: nn.Module, subject: Subject, args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module:
        return remate_runtime.apply(model, _schedule(subject.name, budget, cost), engine=engine)

    return prepare


@functools.cache
def _schedule(name: str, budget: str, cost: str) -> Schedule:
    """One file for both engines."""
    model, args, kwargs = SUBJECTS[name].build()
    return remate.plan(model, args, kwargs, budget=budget, cost=cost)


_INTERPRETED = (100, 80, 60, 40)  # % of the peak without reruns
_COMPILED = (80, 60, 40, 25)  # where 100 would be the same plan
WAYS: dict[str, Way] = {
    "eager": Way("eager", "eager", eager),
    "checkpoint": Way("checkpoint per block", "checkpoint", checkpointed),
    "selective": Way("selective checkpointing", "selective", selective),
    "compile": Way("torch.compile", "torch.compile", compiled(None)),
    **{
        f"compile-{share}": Way(f"compile, memory budget .{share // 10}", "torch.compile", compiled(share / 100))
        for share in (50, 30, 10)
    },
    "compile-checkpoint": Way("compile over checkpoint", "compile over checkpoint", compiled(None, blocks=True)),
    **{f"remate-{share}": Way(f"remate, {share}%", "remate", planned(f"{share}%")) for share in _INTERPRETED},
    "remate-100-compiled": Way("remate compiled, 100%", "remate compiled", planned("100%", "compiled")),
    **{
        f"remate-{share}-compiled": Way(
            f"remate compiled, {share}%", "remate compiled", planned(f"{share}%", "compiled", "compiled")
        )
        for share in _COMPILED
    },
}
