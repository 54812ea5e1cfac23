"""The first run of an instruction holds its results against the file: type, bytes, and whose storage they lie in.

What torch infers (`kernels.inferred`) is a promise of its schemas and meta kernels; this is what the kernels did. A
result that shares a storage without the file knowing could be written over by a later operation that runs in place, so
it is refused before anything else runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...errors import ExecutionError
from ...flat_step.graph import Graph, Op, Ref
from ...format.tensor_type import TensorType
from ...link.events import Execution, View
from ...operator_calls.overloads import TORCH_DTYPES, described, is_fake, laid_out, storage_address

Slots = list[Any]
SLACK = 1 << 20  # bytes that a storage may have beyond the declared ones: kernels of some devices pad
_HINT = "\n  plan again with the installed versions of torch and remate, on the device that trains"


def counts_elements(graph: Graph) -> bool:
    """Whether some operation counts elements in a storage. Only there do strides change a result that kernels choose
    otherwise than torch infers."""
    return any(op.op.startswith("aten.as_strided") for op in graph.operations)


def judged(
    run: Callable[[Slots], None], graph: Graph, event: Execution, device: torch.device, strides: bool
) -> Callable[..., None]:
    """`run`, and then a look at what it left in the slots; at strides, too, where they matter (`counts_elements`).
    Raises ExecutionError."""
    op = graph.operations[event.op]
    view = isinstance(event, View)
    over = None if isinstance(event, View) or event.overwrites is None else op.args[event.overwrites]

    def running(slots: Slots) -> None:
        taken = storage_address(slots[over.value]) if isinstance(over, Ref) else 0
        read = {storage_address(slots[value]): value for value in op.reads}
        run(slots)
        seen: dict[int, int] = {}
        for value in op.writes:
            if value is None:
                continue
            made, declared = slots[value], graph.values[value].type
            _check_type(op, made, declared, device, strides or is_fake(made))
            at = storage_address(made)
            if view:
                _check_view(op, at, read)
            elif at != taken or not at:
                _check_storage(graph, op, made, declared, read.get(at) if at else None)
                if at and seen.setdefault(at, value) != value:
                    raise _refused(op, "two of its outputs share one storage, which the operator tables do not say")

    return running


def judged_placed(
    run: Callable[[Slots], None], graph: Graph, event: Execution, device: torch.device, into: Sequence[int]
) -> Callable[[Slots], None]:
    """The same of an instruction that writes into tensors that are there, in the slots of `into`: they are of the
    declared types, and the operator has neither moved them nor laid them out otherwise. Raises ExecutionError."""
    op = graph.operations[event.op]
    shown = [value for value in op.writes if value is not None]

    def running(slots: Slots) -> None:
        before = [_lies(slots[at]) for at in into]
        run(slots)
        for value, at, lay in zip(shown, into, before, strict=True):
            _check_type(op, slots[value], graph.values[value].type, device, strides=True)
            if slots[value] is not slots[at] or _lies(slots[at]) != lay:
                raise _refused(op, "it made memory of its own instead of writing into what it was given")

    return running


def _lies(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.untyped_storage().nbytes()


def _check_type(op: Op, made: Any, declared: TensorType, device: torch.device, strides: bool) -> None:
    where = "cpu" if declared.cpu else device.type
    if (
        not isinstance(made, torch.Tensor)
        or made.dtype is not TORCH_DTYPES[declared.dtype]
        or tuple(made.shape) != declared.shape
        or made.device.type != where
        or (strides and not laid_out(made, declared))
    ):
        found = described(made) if isinstance(made, torch.Tensor) else type(made).__name__
        raise _refused(op, f"it gave {found}, the file declares {declared}")


def _check_view(op: Op, at: int, read: dict[int, int]) -> None:
    if at and at not in read:
        raise _refused(op, "it gave a copy, where the operator tables say a view of its argument")


def _check_storage(graph: Graph, op: Op, made: torch.Tensor, declared: TensorType, shared: int | None) -> None:
    if shared is not None:
        whose = graph.values[shared]
        kind = "value" if whose.kind == "op" else whose.kind
        raise _refused(
            op, f"its result lies in the storage of the {kind} {whose.name!r}, which the operator tables do not say"
        )
    held = made.untyped_storage().nbytes()
    if held > declared.nbytes + SLACK:
        raise _refused(op, f"its result holds {held:,} bytes, {declared} has {declared.nbytes:,}")


def _refused(op: Op, what: str) -> ExecutionError:
    return ExecutionError(f"operation {op.id!r}, {op.op}: {what}{_HINT}")
