"""What a recorded step will hold, before it is recorded."""

from __future__ import annotations

from typing import NamedTuple

from ....addresses.buffers import Buffer
from ....addresses.caching_allocator import reserve
from ....link.simulator import Account, simulate
from ...compiled_step import CompiledStep, LinkedStep


class PredictedPool(NamedTuple):
    """Bytes. pool: what the private pool takes of the device, by the model of torch's allocator. beside: copies of
    outputs and gradients, and the gradients of outputs that backward is called with."""

    pool: int
    beside: int

    @property
    def peak(self) -> int:
        return self.pool + self.beside


def predict_memory(step: LinkedStep, plain: CompiledStep) -> PredictedPool:
    """Of a step on CUDA. Gradients are gone from the pool when they are delivered, and lie beside it then. What cuBLAS
    takes for itself is not counted."""
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
    """Its allocations, and at each moment what is held beyond them as one more."""
    found = [Buffer(one.birth, one.death, one.nbytes) for one in account.allocations if one.nbytes]
    level = [0] * (len(account.during) + 1)
    for one in found:
        level[one.first] += one.nbytes
        level[one.end] -= one.nbytes
    held = 0
    for at, during in enumerate(account.during):
        held += level[at]
        if during > held:
            found.append(Buffer(at, at + 1, during - held))
    return found
