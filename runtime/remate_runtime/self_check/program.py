"""What the self-check is given of one call: the model's own forward, the scheduled one, and what both may change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from ..flat_step.graph import Graph, Op

Observed = Iterator[tuple[Op, list[torch.Tensor]]]


class Program(NamedTuple):
    """One call of an applied model.

    Attributes:
        name: Of the schedule, for messages.
        model: The live model.
        args: Positional arguments of its forward.
        kwargs: Named arguments of its forward.
        run: Runs the scheduled forward on them; may be called several times.
        observe: The same operation by operation: each with its results.
        graph: The operations of the schedule.
        updated: Gives the tensors that the step writes to, by name; forward may put others in their place.
        trained: Tensors that the step has gradients for, by name.
        differentiated: For each tensor among the outputs, whether the step was planned with a gradient of it; None: all
        were.
        device: Where the model is.
        exact: Whether the engine computes eager's bits; else results differ by rounding.
        eager_bytes: What a step of the model itself holds at its peak, as planned.
        budget: Bytes that a step of the schedule may hold.
        fsdp2: Whether torch shards parts of the model.
    """

    name: str
    model: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    run: Callable[[], Any]
    observe: Callable[[], Observed]
    graph: Graph
    updated: Callable[[], Mapping[str, torch.Tensor]]
    trained: Mapping[str, torch.Tensor]
    differentiated: Sequence[bool] | None
    device: torch.device
    exact: bool
    eager_bytes: int
    budget: int
    fsdp2: bool = False
