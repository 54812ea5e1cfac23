"""Records the steps of CUDA graphs on tensors without memory, and checks what their replays would read.

A storage that is allocated during a recording gets a block of a pool. When nothing holds it any more, its block is free
for the next storage of this size, as in the private pool of a GPU. A replay then checks for each recorded operation
that the blocks it reads still contain what they contained during the recording, and that the memory outside of the pool
still exists. Copies into and out of the pool between replays are checked the same way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from remate_runtime.addresses import Buffer, reserve
from remate_runtime.engine import PoolLease
from remate_runtime.errors import ExecutionError
from remate_runtime.operators import DEVICES

from ..torch_api import TorchDispatchMode, _pytree

_APART = 1 << 50  # distance of the addresses of two storages: an address names the storage, and not its block
_UNIT = DEVICES["cuda"].allocation


class _RecordedStorage:
    """A storage during the recording. block: in the pool; None outside of it. end: None while something holds it."""

    def __init__(self, number: int, storage: torch.UntypedStorage, block: int | None, first: int) -> None:
        self.number, self.block, self.first, self.end = number, block, first, first if block is None else None
        self.nbytes, self.held = storage.nbytes(), StorageWeakRef(storage)


class DryRecorder(TorchDispatchMode):
    """A `GraphRecorder`, and a mode for the whole dry run.

    Attributes:
        replays: Number of replayed graphs.
    """

    def __init__(self, device: torch.device, leave_out: Callable[[torch.Tensor], None]) -> None:
        """Record on a device.

        Args:
            device: The device.
            leave_out: Receives the tensors that stand for memory of the pool, which is counted here.
        """
        super().__init__()  # pyright: ignore[reportUnknownMemberType] (torch declares no types)
        self.replays = 0
        self._device, self._leave_out, self._lease = device, leave_out, PoolLease()
        self._memories: list[_RecordedStorage] = []
        self._known: dict[int, _RecordedStorage] = {}  # by address of the storage object
        self._free: dict[int, list[int]] = {}  # blocks by size
        self._contents: dict[int, int] = {}  # by block, between and during replays: number of the storage
        self._events: list[tuple[str, set[int], set[int]]] | None = None  # operation; storages that it reads, writes
        self._aliases: dict[int, tuple[StorageWeakRef, int]] = {}  # of `bytes_at`, by address of the storage object
        self._blocks = self._clock = 0

    def records(self) -> bool:
        return False

    @contextlib.contextmanager
    def recording(self) -> Generator[None]:
        yield

    def warm(self, run: Callable[[], None]) -> None:
        run()

    def begin(self) -> None:
        self._events = []

    def end(self) -> Callable[[], None]:
        events, self._events = self._events or [], None

        def replay() -> None:
            self.replays += 1
            for name, read, written in events:
                for number in read:
                    self._check(number, f"{name} in a replay")
                self._write(written)

        return replay

    def abandon(self) -> None:
        self._events = None

    def address(self, storage: torch.UntypedStorage) -> int:
        """Return an address that no other storage of the recordings has."""
        return (self._of(storage).number + 1) * _APART

    def bytes_at(self, address: int, nbytes: int) -> torch.Tensor:
        tensor = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        self._leave_out(tensor)
        storage = tensor.untyped_storage()
        self._aliases[_key(storage)] = StorageWeakRef(storage), address // _APART - 1
        return tensor

    def take(self, owner: object) -> bool:
        return self._lease.take(owner)

    def give(self) -> None:
        self._lease.give()

    def settings(self) -> tuple[Any, ...]:
        return ()

    def reserved(self) -> int:
        """Return what the pool reserves, by the model of PyTorch's allocator."""
        self._sweep()
        pool = [memory for memory in self._memories if memory.block is not None]
        ends = [self._clock + 1 if memory.end is None else memory.end for memory in pool]
        sizes = [-(-memory.nbytes // _UNIT) * _UNIT for memory in pool]
        return reserve([Buffer(m.first, end, n) for m, end, n in zip(pool, ends, sizes, strict=True)]).reserved

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = function._schema
        if function.namespace == "prim" or any(r.alias_info and not r.alias_info.is_write for r in schema.returns):
            return function(*args, **kwargs)  # a view reads nothing
        given = _storages((args, kwargs))
        target = _storages([arg for arg, about in zip(args, schema.arguments, strict=False) if _is_written(about)])
        target += _storages([kwargs.get(about.name) for about in schema.arguments[len(args) :] if _is_written(about)])
        if self._events is not None:
            return self._recorded(function, args, kwargs, given, target)
        for storage in given:
            if (number := self._aliased(storage)) is None:
                continue
            if any(_key(storage) == _key(other) for other in target):
                self._write({number})
            else:
                self._check(number, f"{function} after a replay")
        return function(*args, **kwargs)

    def _recorded(self, function: Any, args: Any, kwargs: Any, given: list[torch.UntypedStorage], target: Any) -> Any:
        self._clock += 1
        self._sweep()
        read = {self._of(storage).number for storage in given}
        result = function(*args, **kwargs)
        numbers = {self._of(storage, in_pool=True).number for storage in _storages(result)}
        assert self._events is not None
        written = (numbers - read) | {self._of(storage).number for storage in target}
        self._events.append((str(function), read, written))
        return result

    def _of(self, storage: torch.UntypedStorage, in_pool: bool = False) -> _RecordedStorage:
        """Return the memory of a storage; one that was never seen is new. in_pool: that is then in the pool."""
        known = self._known.get(_key(storage))
        if known is not None and not known.held.expired():
            return known
        block = None
        if in_pool and storage.nbytes():
            free = self._free.get(-(-storage.nbytes() // _UNIT))
            block = free.pop() if free else self._blocks
            self._blocks = max(self._blocks, block + 1)
        memory = _RecordedStorage(len(self._memories), storage, block, self._clock)
        self._memories.append(memory)
        self._known[_key(storage)] = memory
        return memory

    def _sweep(self) -> None:
        """Free the blocks of storages that nothing holds."""
        for key, memory in list(self._known.items()):
            if memory.held.expired():
                del self._known[key]
                if memory.block is not None:
                    memory.end = max(self._clock, memory.first + 1)
                    self._free.setdefault(-(-memory.nbytes // _UNIT), []).append(memory.block)

    def _aliased(self, storage: torch.UntypedStorage) -> int | None:
        known = self._aliases.get(_key(storage))
        return None if known is None or known[0].expired() else known[1]

    def _check(self, number: int, reader: str) -> None:
        memory = self._memories[number]
        if memory.block is None:
            if memory.nbytes and memory.held.expired():
                raise ExecutionError(f"{reader} reads memory outside of the pool of the CUDA graphs that was freed")
        elif self._contents.get(memory.block) != number:
            raise ExecutionError(f"{reader} reads memory that the pool of the CUDA graphs has used for another value")

    def _write(self, numbers: set[int]) -> None:
        for number in numbers:
            block = self._memories[number].block
            if block is not None:
                self._contents[block] = number


def _storages(values: Any) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in _pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _key(storage: Any) -> int:
    """The address of a storage object."""
    return storage._cdata


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write
