"""Schedules of small models without a solver, and steps compared with eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn

from remate.block_templates.folding import Folded, fold, fold_flat
from remate.capture.capture_step import capture
from remate.capture.captured import Captured
from remate.partition.partitioning import partition
from remate_runtime.flat_step.expansion import expand
from remate_runtime.flat_step.graph import FlatRecompute, Graph
from remate_runtime.format.fingerprints import fingerprint
from remate_runtime.format.schedule import FORMAT, VERSION, Schedule, Solve
from remate_runtime.link.linker import link
from remate_runtime.link.simulator import simulate

Recomputes = Callable[[Graph], Sequence[FlatRecompute]]
ROUNDING = (
    0.0  # of the engine that the tests run with, relative to the largest gradient: eager's steps are equal to the bit
)


def no_recomputes(graph: Graph) -> list[FlatRecompute]:
    return []


def everything(graph: Graph) -> list[FlatRecompute]:
    """All of forward again when backward starts."""
    if graph.backward_start == len(graph.operations):
        return []
    return [
        FlatRecompute(i, graph.backward_start)
        for i, op in enumerate(graph.operations[: graph.backward_start])
        if not op.view
    ]


def just_in_time(graph: Graph) -> list[FlatRecompute]:
    """Before every backward operation, whatever forward operations it reads from, in order."""
    recomputes = []
    for at in range(graph.backward_start, len(graph.operations)):
        owners = {graph.values[graph.root[v]].producer for v in graph.operations[at].reads}
        recomputes += [FlatRecompute(i, at) for i in sorted(owners) if 0 <= i < graph.backward_start]
    return recomputes


def schedule_of(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    recomputes: Recomputes = everything,
    differentiate: Sequence[str] | None = None,
) -> Schedule:
    """A schedule of one block, with these recomputations."""
    differentiate = differentiate or planned_outputs(model)
    return with_recomputes(capture(model, tuple(args), dict(kwargs or {}), differentiate=differentiate), recomputes)


def planned_outputs(model: nn.Module) -> Sequence[str] | None:
    """The outputs that a model of the tests wants planned, if it says so; otherwise what capture chooses."""
    return getattr(model, "differentiate", None)


def with_recomputes(captured: Captured, recomputes: Recomputes) -> Schedule:
    return schedule_from(fold_flat(captured, recomputes(captured.graph)), captured)


def in_blocks(
    model: nn.Module,
    args: Sequence[Any],
    recomputes: Recomputes = just_in_time,
    kwargs: Mapping[str, Any] | None = None,
) -> Schedule:
    """A schedule with the blocks that planning finds, and with these recomputations."""
    hierarchy = partition(capture(model, tuple(args), dict(kwargs or {}), differentiate=planned_outputs(model)))
    captured = hierarchy.captured
    return schedule_from(fold(captured, recomputes(captured.graph), hierarchy), captured)


def schedule_from(folded: Folded, captured: Captured) -> Schedule:
    no_cost: dict[str, Any] = {"budget": 1 << 60, "peak": 0, "time": 0, "baseline_peak": 0, "baseline_time": 0}
    solve = Solve(strategy="hand", solver="none", stopped_by="edited", cost="cpu", **no_cost)
    schedule = Schedule(
        format=FORMAT,
        version=VERSION,
        name="test",
        model=folded.model,
        solve=solve,
        blocks=folded.blocks,
        program=folded.program,
        statements=folded.statements,
        costs=folded.costs,
        digest=captured.digest,
    )
    return replace(schedule, model=replace(schedule.model, fingerprint=fingerprint(schedule)))


def predicted_peak(schedule: Schedule) -> int:
    written = expand(schedule)
    return simulate(link(written.graph, written.recomputes, written.pages)).peak


def loss_of(output: Any) -> torch.Tensor:
    """The loss that a model returns, or one made of its first tensor."""
    if hasattr(output, "loss") and output.loss is not None:
        return output.loss
    first = (
        output
        if isinstance(output, torch.Tensor)
        else next(iter(output.values() if isinstance(output, Mapping) else output))
    )
    return first if first.dim() == 0 else first.float().pow(2).mean()


def step(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, seed: int = 0
) -> dict[str, Any]:
    """One forward and backward. Returns loss, gradients, buffers and where the generator ends."""
    torch.manual_seed(seed)
    model.zero_grad()
    loss = loss_of(model(*args, **(kwargs or {})))
    loss.backward()
    return {
        "loss": loss.detach(),
        **{f"grad {n}": None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()},
        **{f"buffer {n}": b.clone() for n, b in model.named_buffers()},
        "generator": torch.get_rng_state(),
    }


def assert_same(actual: Mapping[str, Any], wanted: Mapping[str, Any], tolerance: float = 0.0) -> None:
    assert actual.keys() == wanted.keys()
    gradients = [want for name, want in wanted.items() if name.startswith("grad ")] or list(wanted.values())
    scale = max(map(_largest, gradients), default=0.0)
    for name, want in wanted.items():
        have = actual[name]
        if want is None:
            assert have is None, name
        elif (tolerance or ROUNDING) and (want.is_floating_point() or want.is_complex()):
            far = _largest(have - want)
            assert far <= max(tolerance * max(_largest(want), 1e-30), ROUNDING * max(_largest(want), scale)), name
        else:
            assert torch.equal(have, want), f"{name}: {(have.double() - want.double()).abs().max()}"


def assert_as_near(actual: Mapping[str, Any], eager: Mapping[str, Any], exact: Mapping[str, Any]) -> None:
    """That gradients are no farther from those in float64 than twice what eager's are at most, for low precision."""
    assert actual.keys() == eager.keys() == exact.keys()
    far = [max(_largest(item[name].double() - want) for name, want in exact.items()) for item in (actual, eager)]
    assert far[0] <= 2 * far[1]


def same_in_low_precision(planned: nn.Module, eager: nn.Module, loss: Callable[[Any], torch.Tensor]) -> None:
    """The gradients that both have: the bits of eager, or where the engine rounds otherwise, what is as near to
    float64. loss: of a model in float64."""
    actual, wanted = ({n: p.grad for n, p in model.named_parameters()} for model in (planned, eager))
    if not ROUNDING:
        return assert_same(actual, wanted)
    double = copy.deepcopy(eager).double()
    double.zero_grad()
    loss(double).backward()
    return assert_as_near(actual, wanted, {n: p.grad for n, p in double.named_parameters()})


def _largest(tensor: torch.Tensor | None) -> float:
    return (
        0.0
        if tensor is None or not tensor.numel() or not (tensor.is_floating_point() or tensor.is_complex())
        else float(tensor.detach().abs().max())
    )
