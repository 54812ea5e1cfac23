"""The contract between the step that autograd sees and the engines that execute it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from ..bind.fsdp2 import Fsdp2
from ..format.vocabulary import Gradients
from ..link.contract import StepContract
from ..link.events import Linked
from ..link.simulator import Account


class Forwarded(NamedTuple):
    """What a forward made. outputs, updates: tensors in the order of the contract's. residue: what backward will need,
    in whatever form the engine likes but None; it holds no tensor with autograd history, and is dropped if no backward
    comes."""

    outputs: list[torch.Tensor]
    updates: list[torch.Tensor]
    residue: Any


class CompiledStep(NamedTuple):
    """A step that an engine has made ready for one device. Calls can overlap, so none may change it, but for noting
    that results were found as the file declares them.

    All run without gradient mode, and must neither record history nor count versions.

    forward(sources): takes the contract's sources, writes to none of them, and keeps copies of the contract's preserved
    buffers; they are written to before backward comes.
    inference(sources): the same where no backward follows; its residue is None.
    begin(residue, tangents): before the first segment. `tangents` are those of the contract, in its order and of its
    types. The list is handed over: the engine empties it, so that a tangent dies at its last read.
    segments: the parts of backward, one per delivery of the contract, run in order; each takes the residue and returns
    the gradients of its delivery, in its order, and holds on to none that nothing reads any more. What happens between
    two segments (hooks, optimizers) may write to the parameters whose gradients have been delivered.
    peak: bytes that the step will hold at its worst moment, counted as a budget counts them; None: what the simulator
    says. account(gradients): what it will hold at each of its moments, if this becomes of gradients that are delivered;
    None: the same.
    """

    forward: Callable[[Sequence[Any]], Forwarded]
    inference: Callable[[Sequence[Any]], Forwarded]
    begin: Callable[[Any, list[torch.Tensor]], None]
    segments: tuple[Callable[[Any], list[torch.Tensor]], ...]
    peak: int | None = None
    account: Callable[[Gradients], Account] | None = None


class LinkedStep(NamedTuple):
    """What an engine executes. operators: the live operator of every name in the graph. leaves: by id of an operation,
    the number of the block instance that it belongs to. budget: bytes that the step must not exceed. sharded:
    parts of the model whose parameters are gathered at the borders that `link.borders` tells, None for a whole model.
    ranges: each operation is to be a range of torch's profiler, with this before its id; None: none is."""

    linked: Linked
    contract: StepContract
    operators: Mapping[str, OpOverload]
    leaves: Mapping[str, int]
    budget: int
    sharded: Fsdp2 | None = None
    ranges: str | None = None


Compile = Callable[[LinkedStep, torch.device], CompiledStep]


class Engine(NamedTuple):
    """A way to execute steps. name: as `apply(..., engine=name)` asks for it. about: what it does, in a few words.

    start(): what makes steps ready, for all forms of one step: it may remember what they have in common. Raises
    EngineError if the engine does not work here. What it returns raises BindError for a device that the step cannot run
    on, EngineError for a step that the engine cannot execute. shared: it may be one for all steps of a model. keeps:
    memory that a step has used stays allocated for the next one. graphs: steps are replayed as CUDA graphs. exact:
    results are eager's to the bit; else they differ by rounding.
    """

    name: str
    about: str
    start: Callable[[], Compile]
    shared: bool = False
    keeps: bool = False
    graphs: bool = False
    exact: bool = True

    def for_a_model(self) -> Engine:
        """The engine as all schedules of one model use it, at all sizes. Raises EngineError if it does not work
        here."""
        if not self.shared:
            return self
        compile_ = self.start()
        return self._replace(start=lambda: compile_)
