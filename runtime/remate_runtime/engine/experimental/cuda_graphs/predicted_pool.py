"""Predicts the memory of a recorded step."""

from __future__ import annotations

from typing import NamedTuple

from ....addresses.buffers import Buffer
from ....addresses.caching_allocator import reserve
from ....link.simulator import Account, simulate
from ...compiled_step import CompiledStep, LinkedStep


class PredictedPool(NamedTuple):
    """Memory in bytes.

    Attributes:
        pool: Device memory of the private pool, by the model of torch's allocator.
        beside: Copies of outputs and gradients, and the gradients of outputs that backward receives.
    """

    pool: int
    beside: int

    @property
    def peak(self) -> int:
        return self.pool + self.beside


def predict_memory(step: LinkedStep, plain: CompiledStep) -> PredictedPool:
    """Predict the memory of a step on CUDA. Delivered gradients leave the pool and count beside it. cuBLAS is not
    counted."""
    graph, contract = step.linked.graph, step.contract
    account = simulate(step.linked, "consumed").device if plain.account is None else plain.account("consumed")
    inputs = [source for source in contract.sources if graph.values[source].kind == "input"]
    borrowed = [Buffer(0, len(account.during), graph.nbytes(source)) for source in inputs]
    delivered = [sum(graph.nbytes_of_copy(contract.gradients[n].value) for n in row) for row in contract.deliveries]
    outputs = sum(graph.nbytes_of_copy(output.value) for output in contract.outputs)
    tangents = sum(graph.nbytes(tangent.value) for tangent in contract.tangents)
    gradients = sum(delivered) if graph.delivered == "retained" else max(delivered, default=0)
    return PredictedPool(reserve([*borrowed, *_buffers(account)]).reserved, outputs + tangents + gradients)


def _buffers(account: Account) -> list[Buffer]:
    """Return the allocations, and for each moment any further memory as a buffer."""
    buffers = [Buffer(buffer.birth, buffer.death, buffer.nbytes) for buffer in account.allocations if buffer.nbytes]
    level = [0] * (len(account.during) + 1)
    for buffer in buffers:
        level[buffer.first] += buffer.nbytes
        level[buffer.end] -= buffer.nbytes
    allocated = 0
    for at, during in enumerate(account.during):
        allocated += level[at]
        if during > allocated:
            buffers.append(Buffer(at, at + 1, during - allocated))
    return buffers
