"""What the two memories that values are paged to have in common: places, layouts, and a count of what is moved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Literal, NamedTuple

import torch

from ...errors import ExecutionError
from ..compiled_step import MeasuredLane

Direction = Literal["out", "back"]


class Place(NamedTuple):
    """The place of a trip in the other memory: name of its value, offset in bytes, and size in bytes."""

    value: str
    offset: int
    nbytes: int


def placed(sizes: Mapping[int, tuple[str, int]], unit: int) -> dict[int, Place]:
    """Return the places of trips, one after the other.

    Args:
        sizes: Name and bytes of the value, by trip.
        unit: Offsets and sizes are multiples of it, in bytes.
    """
    rounded = [-(-nbytes // unit) * unit for _, nbytes in sizes.values()]
    offsets = accumulate(rounded, initial=0)
    return {
        trip: Place(name, at, size)
        for (trip, (name, _)), at, size in zip(sizes.items(), offsets, rounded, strict=False)
    }


def end_of(places: Iterable[Place]) -> int:
    """Return the bytes that places take."""
    return max((place.offset + place.nbytes for place in places), default=0)


class Away(NamedTuple):
    """The type of a tensor that has been paged out."""

    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(tensor: torch.Tensor) -> Away:
        return Away(tensor.size(), tensor.stride(), tensor.dtype, tensor.device)

    def empty(self) -> torch.Tensor:
        """Return a new tensor of this type."""
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)


def copied_bytes(tensor: torch.Tensor, place: Place) -> int:
    """Return the `span` of a tensor. Raises ExecutionError if it is not what the place is for."""
    nbytes = span(tensor)
    beyond = tensor.storage_offset() * tensor.element_size() + nbytes > tensor.untyped_storage().nbytes()
    if nbytes > place.nbytes or beyond or tensor.is_conj() or tensor.is_neg():
        raise ExecutionError(
            f"{place.value} does not have the memory layout that the file declares, and cannot be paged"
            "\n  plan again with the installed versions of torch and remate, on the device that trains"
        )
    return nbytes


def span(tensor: torch.Tensor) -> int:
    """Return the bytes from the first element of a tensor to the last one, inclusive."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


class Moved:
    """Counts the bytes that a step has moved, and the time that it has waited for them."""

    def __init__(self) -> None:
        self._lanes: dict[Direction, MeasuredLane] = {}
        self._waits: list[tuple[Direction, Callable[[], int]]] = []

    def add(self, direction: Direction, nbytes: int, copies: int, waited: int) -> None:
        old = self._lanes.get(direction, MeasuredLane(direction, 0, 0, 0))
        self._lanes[direction] = MeasuredLane(direction, old.nbytes + nbytes, old.copies + copies, old.waited + waited)

    def add_wait(self, direction: Direction, waited: Callable[[], int]) -> None:
        """Add the ns of a wait that is measured when somebody asks for the lanes."""
        self._waits.append((direction, waited))

    def lanes(self) -> tuple[MeasuredLane, ...]:
        """Return the lanes. It may synchronize with the device."""
        while self._waits:
            direction, waited = self._waits.pop()
            self.add(direction, 0, 0, waited())
        return tuple(self._lanes.values())
