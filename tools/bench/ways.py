"""The compared ways to train in less memory: eager, PyTorch's own means, and remate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

import remate
import remate_runtime

from .subjects import Subject

Prepare = Callable[..., nn.Module]  # model, subject, args, kwargs; and budget=, in bytes, of ways that have an `at`


class Way(NamedTuple):
    """family: the curve in a plot. prepare: prepares a model; some work may remain for the first steps. at: the way whose
    measured peak is the budget."""

    label: str
    family: str
    prepare: Prepare
    at: str = ""


def eager(model: nn.Module, subject: Subject, args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module:
    return model


def checkpointed(model: nn.Module, subject: Subject, args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module:
    return checkpointed_blocks(model, subject.blocks(model))


def selective(model: nn.Module, subject: Subject, args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module:
    """Checkpoint each block, but keep the results of products, convolutions and fused attention."""
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
    """Return the model with each of `blocks` checkpointed. `options` are those of torch.utils.checkpoint."""
    from torch.utils.checkpoint import checkpoint

    def wrapped(forward: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: checkpoint(forward, *args, use_reentrant=False, **options, **kwargs)

    for block in blocks:
        block.forward = wrapped(block.forward)
    return model


def compiled(budget: float | None, over: Prepare = eager) -> Prepare:
    """Compile the model. `budget` is activation_memory_budget; `over` prepares the model, for example checkpoints."""

    def prepare(model: nn.Module, subject: Subject, args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module:
        import torch._functorch.config as functorch
        from torch._inductor.compile_fx import compile_fx

        def inductor(graph: Any, inputs: Any) -> Any:
            with functorch.patch(activation_memory_budget=budget or 1.0):
                return compile_fx(graph, inputs)

        # Each model needs its own backend; otherwise models of one class would share compiled code.
        compiled: Any = torch.compile(over(model, subject, args, kwargs), backend=inductor)
        return compiled

    return prepare


def planned(engine: str = "eager", cost: str = "measured", share: int | None = None) -> Prepare:
    """share: the budget in % of the peak without recomputation; None: what `prepare` is reported, in bytes."""

    def prepare(
        model: nn.Module, subject: Subject, args: tuple[Any, ...], kwargs: dict[str, Any], budget: int | None = None
    ) -> nn.Module:
        requested = f"{share}%" if budget is None else budget
        return remate_runtime.apply(model, remate.plan(model, args, kwargs, budget=requested, cost=cost), engine=engine)

    return prepare


WAYS: dict[str, Way] = {
    "eager": Way("eager", "eager", eager),
    "checkpoint": Way("checkpoint per block", "checkpoint", checkpointed),
    "selective": Way("selective checkpointing", "selective", selective),
    "compile": Way("torch.compile", "torch.compile", compiled(None)),
    **{
        f"compile-{share}": Way(f"compile, memory budget .{share // 10}", "torch.compile", compiled(share / 100))
        for share in (50, 10)
    },
    "compile-checkpoint": Way("compile over checkpoint", "compile over checkpoint", compiled(None, checkpointed)),
    "compile-selective": Way("compile over selective", "compile over selective", compiled(None, selective)),
    **{
        f"remate-{share}": Way(
            f"remate, {share}%", "remate", planned(share=share)
        )  # % of the peak without recomputation
        for share in (100, 80, 60, 40)
    },
    "remate-100-compiled": Way("remate compiled, 100%", "remate compiled", planned("compiled", share=100)),
    **{
        f"remate-for-{other}": Way(
            f"remate compiled, at {what}'s peak", "remate compiled", planned("compiled", "compiled"), other
        )
        for other, what in (
            ("compile", "torch.compile"),
            ("compile-50", "budget .5"),
            ("compile-10", "budget .1"),
            ("compile-checkpoint", "compile over checkpoint"),
            ("compile-selective", "compile over selective"),
            ("checkpoint", "checkpoint"),
        )
    },
}
