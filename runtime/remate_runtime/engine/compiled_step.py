"""The contract between the step that autograd sees and the engines that execute it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch

from ..bind.fsdp2 import Fsdp2
from ..format.vocabulary import Gradients
from ..link.contract import StepContract
from ..link.events import Linked
from ..link.simulator import Account
from ..torch_private.operators import OpOverload


class Forwarded(NamedTuple):
    """The results of a forward.

    Attributes:
        outputs: Tensors in the order of the contract.
        updates: New values of buffers in the order of the contract.
        residue: What backward needs, in any form but None. It contains no tensor with autograd history, and is dropped
            if no backward follows.
    """

    outputs: list[torch.Tensor]
    updates: list[torch.Tensor]
    residue: Any


class MeasuredLane(NamedTuple):
    """What a lane has done in a step. direction: of the copies. nbytes: that it moved, in so many copies. waited: ns
    that the step waited for it."""

    direction: Literal["out", "back"]
    nbytes: int
    copies: int
    waited: int


class CompiledStep(NamedTuple):
    """A step that an engine has prepared for a device.

    Calls can overlap, so none may change it, except to record that results matched the file. All functions run without
    gradient mode, and must neither record history nor count versions.

    Attributes:
        forward: Takes the contract's sources, writes to none of them, and keeps copies of the contract's preserved
            buffers, which are written to before backward.
        inference: The same without backward; its residue is None.
        begin: Takes the residue and the contract's tangents, in its order and types, before the first segment. The
            engine empties the list, so that a tangent is freed at its last read.
        segments: The parts of backward, one per delivery of the contract, in order. Each takes the residue and returns
            the gradients of its delivery in order, and keeps no unused one. Hooks and optimizers between two segments
            may write to parameters whose gradients have been delivered.
        peak: Predicted peak in bytes, counted as in budgets. None: the simulator's.
        account: Returns the predicted memory at each moment, given what happens to delivered gradients. None: the
            simulator's.
        paged: Returns what was moved in the step that began last. None: nothing is paged.
    """

    forward: Callable[[Sequence[Any]], Forwarded]
    inference: Callable[[Sequence[Any]], Forwarded]
    begin: Callable[[Any, list[torch.Tensor]], None]
    segments: tuple[Callable[[Any], list[torch.Tensor]], ...]
    peak: int | None = None
    account: Callable[[Gradients], Account] | None = None
    paged: Callable[[], tuple[MeasuredLane, ...]] | None = None


class LinkedStep(NamedTuple):
    """The input of an engine.

    Attributes:
        operators: The live operator of every name in the graph.
        leaves: Number of the block instance of each operation, by id.
        budget: Bytes that the step must not exceed.
        sharded: Parts whose parameters are gathered at the borders of `link.borders`; None for a whole model.
        ranges: Each operation becomes a range of torch's profiler, with this prefix to its id. None: no ranges.
        lines: JSON pointer of the line of each operation: those of a line have equal literals. Empty: unknown.
    """

    linked: Linked
    contract: StepContract
    operators: Mapping[str, OpOverload]
    leaves: Mapping[str, int]
    budget: int
    sharded: Fsdp2 | None = None
    ranges: str | None = None
    lines: Sequence[str] = ()


Compile = Callable[[LinkedStep, torch.device], CompiledStep]


class Engine(NamedTuple):
    """A way to execute steps.

    Attributes:
        name: Its name in `apply(..., engine=name)`.
        about: A short description.
        start: Returns a function that prepares all forms of a step and may share data between them. Raises EngineError
            if the engine does not work here. The function raises BindError for a device that the step cannot run on,
            EngineError for a step that the engine cannot execute.
        shared: All steps of a model may share one.
        keeps: Memory of a step stays allocated for the next one.
        graphs: Steps are replayed as CUDA graphs.
        exact: Results are bitwise equal to eager; otherwise they differ by rounding.
    """

    name: str
    about: str
    start: Callable[[], Compile]
    shared: bool = False
    keeps: bool = False
    graphs: bool = False
    exact: bool = True

    def for_a_model(self) -> Engine:
        """Return the engine for all schedules of a model at all sizes. Raises EngineError if it does not work here."""
        if not self.shared:
            return self
        compile_ = self.start()
        return self._replace(start=lambda: compile_)
