"""Compares steps with different assumptions about gradients: measured and predicted baseline peak, eager's peak, floor.

    python -m tools.bench.gradients           # ResNet-18 as in `subjects`; others by name

Allocator events measure peaks, on the CPU with one thread. Depending on the assumption, `.grad` is None, exists before
the step, or is freed by a hook at once.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn

import remate
import remate_runtime
from remate.profile.costing import costed
from remate.step_measurement.allocator import peak_bytes
from remate.strategy import StepInstance
from remate_runtime.flat_step import expand
from remate_runtime.format import GRADIENTS, Gradients, Schedule
from remate_runtime.staleness import default_loss, tensors_of
from remate_runtime.support.quantities import size

from .subjects import SUBJECTS, Subject
from .text import environment, table


def measured(model: nn.Module, step: Callable[[], object], kind: Gradients) -> int:
    """Return the peak of a step in bytes, after a warm-up step."""
    trained = [p for p in model.parameters() if p.requires_grad]
    hooks = [p.register_post_accumulate_grad_hook(_free) for p in trained if kind == "consumed"]
    peak = 0
    for _ in range(2):
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter) if kind == "accumulated" else None
        torch.manual_seed(0)
        peak = peak_bytes(step)
    for hook in hooks:
        hook.remove()
    return peak


def _free(parameter: torch.Tensor) -> None:
    parameter.grad = None


def _step(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
    """The outputs stay in memory during backward."""
    outputs = model(*args, **kwargs)
    default_loss(list(tensors_of(outputs))).backward()
    return outputs


def rows(subject: Subject) -> list[tuple[str, ...]]:
    """Return one row per assumption."""
    model, args, kwargs = subject.build()
    schedule: Schedule = remate.plan(model, args, kwargs, budget="100%", cost="cpu")
    graph = costed(expand(schedule).graph, "measured")
    eager, ours = copy.deepcopy(model), copy.deepcopy(model)
    applied = remate_runtime.apply(ours, schedule)
    table: list[tuple[str, ...]] = [("gradients", "eager", "schedule", "predicted", "proven floor")]
    for kind in GRADIENTS:
        instance = StepInstance(replace(graph, delivered=kind))
        peaks = [
            measured(owner, lambda called=called: _step(called, args, kwargs), kind)
            for owner, called in ((eager, eager), (ours, applied))
        ]
        table.append((kind, *(size(n) for n in (*peaks, instance.baseline.peak, instance.floor))))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=", ".join(SUBJECTS))
    torch.set_num_threads(1)
    print(environment())
    for name in parser.parse_args().subjects or ["resnet18"]:
        print(f"\n{SUBJECTS[name].describe}")
        print(table(rows(SUBJECTS[name])))


if __name__ == "__main__":
    main()
