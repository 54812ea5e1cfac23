"""The input of the self-check for a call: the model's own forward, the scheduled one, and what both may change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from ..flat_step.graph import Graph, Op

PLANNED_LAYOUT = (
    "the schedule copies to the planned layout: pass such inputs (x.contiguous()), or plan with inputs like these"
)
Observed = Iterator[tuple[Op, list[torch.Tensor]]]


class Program(NamedTuple):
    """A call of an applied model.

    Attributes:
        name: Name of the schedule, for messages.
        model: The live model.
        args: Positional arguments of its forward.
        kwargs: Keyword arguments of its forward.
        run: Runs the scheduled forward; may be called several times.
        observe: Runs it operation by operation and yields each with its results.
        graph: The operations of the schedule.
        updated: Returns the tensors that the step writes to, by name. Forward may replace them.
        plain: Returns the values of the attributes that the step sets to numbers, texts or None, by path.
        trained: Tensors that the step computes gradients for, by name.
        differentiated: For each output tensor, whether the step was planned with its gradient. None: all were.
        device: Device of the model.
        exact: The engine reproduces eager bitwise; otherwise results differ by rounding.
        eager_bytes: Planned peak of the model's own step, in bytes.
        budget: Budget of a step of the schedule, in bytes.
        fsdp2: Whether torch shards parts of the model.
        communicates: Whether the step has collectives: a rank that runs it alone waits for the others.
        chosen_for: What the operators were chosen for, as text, if that was without the device; "" otherwise.
        copied_inputs: Inputs that were copied to the planned memory layout.
    """

    name: str
    model: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    run: Callable[[], Any]
    observe: Callable[[], Observed]
    graph: Graph
    updated: Callable[[], Mapping[str, torch.Tensor]]
    plain: Callable[[], Mapping[str, object]]
    trained: Mapping[str, torch.Tensor]
    differentiated: Sequence[bool] | None
    device: torch.device
    exact: bool
    eager_bytes: int
    budget: int
    fsdp2: bool = False
    communicates: bool = False
    chosen_for: str = ""
    copied_inputs: Sequence[str] = ()

    @property
    def other_layout(self) -> str:
        """Which inputs do not have the planned memory layout, as text; "" if all have it."""
        if not self.copied_inputs:
            return ""
        names = ", ".join(map(repr, self.copied_inputs))
        has = "input {} has" if len(self.copied_inputs) == 1 else "inputs {} have"
        return f"the {has.format(names)} a different memory layout than planned"
