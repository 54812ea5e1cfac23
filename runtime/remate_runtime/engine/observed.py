"""Runs a step's forward operation by operation and yields the results of each, to locate a difference to the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from ..flat_step.graph import Op
from ..link.contract import StepContract
from ..link.events import Linked
from ..link.inference import forward_alone
from ..operator_calls.constants import Constants
from ..torch_private.operators import OpOverload
from .eager.instructions import InstructionCompiler
from .eager.part import InstructionPart


def observed_forward(
    linked: Linked,
    contract: StepContract,
    operators: Mapping[str, OpOverload],
    device: torch.device,
    sources: Sequence[object],
) -> Iterator[tuple[Op, list[torch.Tensor]]]:
    """Run the forward of a step as engine "eager" does without backward.

    Args:
        linked: The step.
        contract: Its contract.
        operators: The live operator of every name.
        device: Where it runs.
        sources: The contract's sources.

    Yields:
        Each operation that is not a view, with its results.
    """
    graph = linked.graph
    compiler = InstructionCompiler(graph, operators, device, Constants())
    instructions = compiler.instructions(forward_alone(linked))
    slots, fill = compiler.slots(), compiler.filler()
    for slot, tensor in zip(contract.sources, sources, strict=True):
        slots[slot] = tensor
    fill(slots)
    by_id = {op.id: op for op in graph.operations}
    for instruction in instructions:
        alone = [instruction._replace(free=())]
        with torch.no_grad():
            InstructionPart(alone, None).run(slots)
        op = by_id[instruction.id]
        if not op.view:
            yield op, [slots[at] for at in op.writes if at is not None and isinstance(slots[at], torch.Tensor)]
        for slot in instruction.free:
            slots[slot] = None
