"""The rules for the types of a step, which hold at every size."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import ScheduleError
from ..format.tensor_type import MAX_BYTES, TensorType
from .graph import Value


def too_large(nbytes: int, ns: int) -> ScheduleError | None:
    """Return the fault of a step whose bytes or times are beyond 64 bits in total.

    Args:
        nbytes: The bytes of all values and workspaces.
        ns: The times of all operations.
    """
    if nbytes > MAX_BYTES or ns > MAX_BYTES:
        return ScheduleError("R074", "the tensors or times of the step are impossibly large in total")
    return None


def not_as_declared(value: Value, declared: TensorType) -> ScheduleError | None:
    """Return the fault of a value that is bound to an input, parameter or buffer of a block."""
    if _alike(value.type, declared):
        return None
    return ScheduleError("R038", f"{value.name[:120]!r} is {value.type}, the block declares {declared}")


def no_gradient_of(target: Value, gradient: Value, shapes: Mapping[str, tuple[int, ...]]) -> ScheduleError | None:
    """Return the fault of a gradient whose type is not its parameter's or input's.

    Args:
        target: The parameter or input.
        gradient: Its gradient.
        shapes: The result of `gradient_shapes`.
    """
    wanted = TensorType(target.type.dtype, shapes.get(target.name, target.type.shape))
    if _alike(wanted, gradient.type):
        return None
    return ScheduleError("R062", f"gradient {gradient.name[:120]!r} is {gradient.type}, not {wanted}")


def no_update_of(target: Value, new: Value) -> ScheduleError | None:
    """Return the fault of a buffer's new value of another type."""
    if _alike(target.type, new.type):
        return None
    return ScheduleError("R062", f"{new.name[:120]!r} is {new.type}, not {target.type}")


def _alike(first: TensorType, second: TensorType) -> bool:
    return first is second or (first.dtype == second.dtype and first.shape == second.shape)
