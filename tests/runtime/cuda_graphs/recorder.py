"""Recordings without a GPU: operators that torch dispatches on the CPU are noted, and called again on the same memory.

What a GPU does to a careless reader happens here as well. Memory that nothing holds any more when the next part is
recorded is filled with NaN by that part's replay, and nothing keeps alive what a recording reads from outside.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from remate_runtime.engine.experimental.cuda_graphs.gpu import PoolLease
from remate_runtime.engine.experimental.cuda_graphs.statics import Static, alias, static
from remate_runtime.torch_private.execution import ABOVE_KERNELS

CPU = torch.device("cpu")
_ALIGNED = 64  # bytes, as torch aligns memory on the CPU: kernels add up in another order where it is not
_ALLOCATES = ("aten::empty", "aten::new_empty")


KERNELS: list[Callable[..., Any]] = []  # what notes a kernel that torch does not dispatch, while one records


class _Dies(NamedTuple):
    address: int
    nbytes: int

    def replay(self) -> None:
        ctypes.memset(self.address, 0xFF, self.nbytes)


class _Called(NamedTuple):
    func: Any
    args: Any
    kwargs: Any
    made: list[Static | None]
    grad_mode: bool  # which oneDNN's recurrent layers look at

    def replay(self) -> None:
        args, kwargs = tree_map(_tensor, (self.args, self.kwargs), is_leaf=_is_static)
        with torch.set_grad_enabled(self.grad_mode), torch._C._ExcludeDispatchKeyGuard(ABOVE_KERNELS):
            result = self.func(*args, **kwargs)
        for left, to in zip(tree_flatten(result)[0] if self.made else (), self.made, strict=True):
            if to is not None:
                _tensor(to).copy_(left)


def bytes_at(address: int, nbytes: int) -> torch.Tensor:
    return torch.frombuffer((ctypes.c_char * nbytes).from_address(address), dtype=torch.uint8)


def _tensor(where: Any) -> Any:
    return alias(where, bytes_at, CPU) if isinstance(where, Static) else where


def _is_static(value: Any) -> bool:
    return isinstance(value, Static)


def _statics(values: Any) -> Any:
    """Return the same with tensors replaced by their locations."""
    return tree_map(lambda value: static(value) if isinstance(value, torch.Tensor) else value, values)


class OnCpu:
    """A `Recorder`."""

    def __init__(self, device: torch.device) -> None:
        self._lease, self._blocks = PoolLease(), list[Any]()
        self._dead: list[_Dies] = []
        self.recordings = 0
        self.replays = 0

    def records(self) -> bool:
        return False

    @contextmanager
    def recording(self) -> Iterator[None]:
        yield
        for block in self._blocks:
            ctypes.memset(block, 0xFF, ctypes.sizeof(block))
        self.recordings += 1

    def warm(self, run: Callable[[], None]) -> None:
        state = torch.default_generator.get_state()
        run()
        torch.default_generator.set_state(state)

    def begin(self) -> None:
        self._state, self._first = torch.default_generator.get_state(), len(self._blocks)
        self._noting = _Noting([*self._dead], self._block, self._dead)
        self._dead.clear()
        KERNELS.append(self._noting.kernel)
        self._noting.__enter__()

    def end(self) -> Callable[[], None]:
        self.abandon()
        events = self._noting.events

        def replay() -> None:
            self.replays += 1
            with torch._C._DisableAutocast():
                for event in events:
                    event.replay()

        return replay

    def abandon(self) -> None:
        self._noting.__exit__(None, None, None)
        KERNELS.pop()
        torch.default_generator.set_state(self._state)
        for block in self._blocks[self._first :]:  # indices that the next part reads are in range
            ctypes.memset(block, 0, ctypes.sizeof(block))

    def address(self, storage: torch.UntypedStorage) -> int:
        return storage.data_ptr()

    def bytes_at(self, address: int, nbytes: int) -> torch.Tensor:
        return bytes_at(address, nbytes)

    def take(self, owner: object) -> bool:
        return self._lease.take(owner)

    def give(self) -> None:
        self._lease.give()

    def settings(self) -> tuple[Any, ...]:
        return ()

    def reserved(self) -> int:
        return sum(ctypes.sizeof(block) for block in self._blocks)

    def _block(self, nbytes: int) -> torch.Tensor:
        """Memory of the pool, which has an end that is noted."""
        block = (ctypes.c_char * (nbytes + _ALIGNED))()
        self._blocks.append(block)
        address = -(-ctypes.addressof(block) // _ALIGNED) * _ALIGNED
        handle = (ctypes.c_char * nbytes).from_address(address)
        weakref.finalize(handle, self._dead.append, _Dies(address, nbytes))
        return torch.frombuffer(handle, dtype=torch.uint8)


class _Noting(TorchDispatchMode):
    def __init__(self, events: list[Any], block: Callable[[int], torch.Tensor], dead: list[_Dies]) -> None:
        super().__init__()
        self.events, self._block, self._dead = events, block, dead

    def kernel(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._note_dead()
        self.events.append(_Called(run, _statics(args), _statics(kwargs), [], False))
        with _disable_current_modes():
            return run(*args, **kwargs)

    def _note_dead(self) -> None:
        self.events += self._dead
        self._dead.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._note_dead()
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        given = {item.untyped_storage().data_ptr() for item in tree_flatten((args, kwargs))[0] if torch.is_tensor(item)}
        where = _statics(args), _statics(kwargs)
        flat, spec = tree_flatten(func(*args, **kwargs))
        moved: dict[int, torch.Tensor] = {}
        computes = not func._schema.name.startswith(_ALLOCATES)
        collected: list[Static | None] = []
        for at, item in enumerate(flat):
            storage = item.untyped_storage() if torch.is_tensor(item) else None
            if storage is None or storage.data_ptr() in given or not storage.nbytes():
                collected.append(None)
                continue
            memory = moved.get(storage.data_ptr())
            if memory is None:
                memory = moved[storage.data_ptr()] = self._block(storage.nbytes())
            flat[at] = torch.empty(0, dtype=item.dtype).set_(
                memory.untyped_storage(), item.storage_offset(), item.size(), item.stride()
            )
            if computes:
                flat[at].copy_(item)
            collected.append(static(flat[at]))
        if computes and (func._schema.is_mutable or any(item is not None for item in collected)):
            self.events.append(_Called(func, where[0], where[1], collected, torch.is_grad_enabled()))
        return tree_unflatten(flat, spec)
