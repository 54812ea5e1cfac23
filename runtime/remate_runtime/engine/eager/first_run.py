"""The first run of an instruction compares its results with the file: type, bytes, and storage.

torch's inference (`operator_calls.inferred`) relies on schemas and meta kernels; this checks what the kernels did. A
later in-place operation could overwrite a result that shares a storage without the file saying so, so it is refused
before anything else runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...errors import ExecutionError
from ...flat_step.graph import Graph, Op, Ref
from ...format.tensor_type import TensorType
from ...link.events import Execution, View
from ...operator_calls.host_states import returned_on_host
from ...operator_calls.overloads import TORCH_DTYPES, described, is_fake, laid_out, storage_address

Slots = list[Any]
SLACK = 1 << 20  # excess bytes of a storage that are accepted, because kernels of some devices pad
_HINT = "\n  plan again with the installed versions of torch and remate, on the device that trains"


def counts_elements(graph: Graph) -> bool:
    """Return whether an operation counts elements in a storage. Otherwise strides that differ from the inference do
    no harm."""
    return any(op.op.startswith("aten.as_strided") for op in graph.operations)


def judged(
    run: Callable[[Slots], None], op: Op, event: Execution, device: torch.device, strides: bool
) -> Callable[[Slots, Graph], None]:
    """Wrap `run` to check the results that it left in the slots against a step. Raises ExecutionError.

    Args:
        run: The instruction.
        op: The operation.
        event: Its execution.
        device: The device.
        strides: Check strides as well (`counts_elements`).
    """
    view = isinstance(event, View)
    over = None if isinstance(event, View) or event.overwrites is None else op.args[event.overwrites]

    def running(slots: Slots, graph: Graph) -> None:
        taken = storage_address(slots[over.value]) if isinstance(over, Ref) else 0
        read = {storage_address(slots[value]): value for value in op.reads}
        run(slots)
        seen: dict[int, int] = {}
        for value in op.writes:
            if value is None:
                continue
            result, declared = slots[value], graph.values[value].type
            _check_type(op, result, declared, device, strides or is_fake(result))
            at = storage_address(result)
            if view:
                _check_view(op, at, read)
            elif at != taken or not at:
                _check_storage(graph, op, result, declared, read.get(at) if at else None)
                if at and seen.setdefault(at, value) != value:
                    raise _refused(op, "two of its outputs share a storage, and the operator tables do not list that")

    return running


def judged_placed(
    run: Callable[[Slots], None], op: Op, device: torch.device, into: Sequence[int]
) -> Callable[[Slots, Graph], None]:
    """Wrap an instruction that writes into existing tensors in the slots of `into`.

    They must have the declared types, and the operator must not have moved them or changed their layout. Raises
    ExecutionError.
    """
    shown = [value for value in op.writes if value is not None]

    def running(slots: Slots, graph: Graph) -> None:
        before = [_place(slots[at]) for at in into]
        run(slots)
        for value, at, lay in zip(shown, into, before, strict=True):
            _check_type(op, slots[value], graph.values[value].type, device, strides=True)
            if slots[value] is not slots[at] or _place(slots[at]) != lay:
                raise _refused(op, "it allocated its result instead of writing into the given tensor")

    return running


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.untyped_storage().nbytes()


def _check_type(op: Op, result: object, declared: TensorType, device: torch.device, strides: bool) -> None:
    where = ("cpu",) if declared.cpu else (device.type,)
    if returned_on_host(op.op, declared):
        where = (device.type, "cpu")
    if (
        not isinstance(result, torch.Tensor)
        or result.dtype is not TORCH_DTYPES[declared.dtype]
        or tuple(result.shape) != declared.shape
        or result.device.type not in where
        or (strides and not laid_out(result, declared))
    ):
        actual = described(result) if isinstance(result, torch.Tensor) else type(result).__name__
        raise _refused(op, f"it returned {actual}, the file declares {declared}")


def _check_view(op: Op, at: int, read: dict[int, int]) -> None:
    if at and at not in read:
        raise _refused(op, "it returned a copy, and the operator tables list it as a view of its argument")


def _check_storage(graph: Graph, op: Op, result: torch.Tensor, declared: TensorType, shared: int | None) -> None:
    if shared is not None:
        whose = graph.values[shared]
        kind = "value" if whose.kind == "op" else whose.kind
        raise _refused(
            op, f"its result is in the storage of the {kind} {whose.name!r}, and the operator tables do not list that"
        )
    nbytes = result.untyped_storage().nbytes()
    if nbytes > declared.nbytes + SLACK:
        raise _refused(op, f"its result takes {nbytes:,} bytes, and {declared} takes {declared.nbytes:,}")


def _refused(op: Op, what: str) -> ExecutionError:
    return ExecutionError(f"operation {op.id!r}, {op.op}: {what}{_HINT}")
