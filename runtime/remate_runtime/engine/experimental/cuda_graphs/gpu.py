"""The functions of torch.cuda that recorded steps use."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import torch

from ....torch_private.execution import clear_cublas_workspaces

Replay = Callable[[], None]


class GraphRecorder(Protocol):
    """Records work of a device in a private memory pool that all recordings share."""

    def records(self) -> bool:
        """Return whether the current stream is being recorded."""
        ...

    def recording(self) -> Any:
        """Return a context for `warm`, `begin` and `end`."""
        ...

    def warm(self, run: Callable[[], None]) -> None:
        """Run the work as it will be recorded, so that libraries complete their first-call setup. Draws no random
        number."""
        ...

    def begin(self) -> None:
        """Start recording: work is recorded and not executed."""
        ...

    def end(self) -> Replay:
        """Stop recording and return the replay."""
        ...

    def abandon(self) -> None:
        """Stop recording after an error."""
        ...

    def address(self, storage: torch.UntypedStorage) -> int: ...

    def bytes_at(self, address: int, nbytes: int) -> torch.Tensor: ...

    def take(self, owner: object) -> bool:
        """Reserve the pool's contents for `owner` for its lifetime, or until `give`; False if they are reserved."""
        ...

    def give(self) -> None: ...

    def settings(self) -> tuple[Any, ...]:
        """Return the settings of torch that a recording depends on."""
        ...

    def reserved(self) -> int:
        """Return the bytes of the device that the pool has reserved."""
        ...


class PoolLease:
    """The owner of a pool's contents."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: weakref.ref[Any] | None = None

    def take(self, owner: object) -> bool:
        with self._lock:
            if self._owner is not None and self._owner() is not None:
                return False
            self._owner = weakref.ref(owner)
            return True

    def give(self) -> None:
        self._owner = None


class CudaRecorder:
    """A recorder for a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lease = PoolLease()
        self._pool: Any = None
        # Keeps the pool.
        self._graphs: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()
        self._last: torch.cuda.Stream | None = None  # stream of the last replay
        self._reserved = self._before = 0
        self._open: torch.cuda.CUDAGraph | None = None

    def records(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    @contextmanager
    def recording(self) -> Generator[None]:
        if not self._graphs:  # a pool that lost its last graph cannot be used again
            self._pool, self._reserved = torch.cuda.graph_pool_handle(), 0
        here, side = torch.cuda.current_stream(self._device), torch.cuda.Stream(self._device)
        gc.collect()  # no garbage collection may free CUDA memory during a recording
        torch.cuda.synchronize(self._device)
        side.wait_stream(here)
        with torch.cuda.device(self._device), torch.cuda.stream(side):
            try:
                yield
            finally:
                clear_cublas_workspaces()  # of cuBLAS, which are in the pool
        here.wait_stream(side)

    def warm(self, run: Callable[[], None]) -> None:
        generator = torch.cuda.default_generators[self._device.index or 0]
        state = generator.get_state()
        run()
        torch.cuda.synchronize(self._device)
        generator.set_state(state)
        clear_cublas_workspaces()
        torch.cuda.empty_cache()  # the stream is not used again, so its cached memory would be lost

    def begin(self) -> None:
        self._open, self._before = torch.cuda.CUDAGraph(), torch.cuda.memory_reserved(self._device)
        # Other threads may pin memory or query events meanwhile: data loaders, the watchdog of NCCL.
        self._open.capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def end(self) -> Replay:
        graph, self._open = self._open, None
        assert graph is not None
        with warnings.catch_warnings(action="ignore"):  # about a part that launches nothing
            graph.capture_end()
        self._reserved += torch.cuda.memory_reserved(self._device) - self._before
        self._graphs.add(graph)

        def replay() -> None:
            self._follow()
            graph.replay()

        return replay

    def abandon(self) -> None:
        graph, self._open = self._open, None
        if graph is not None:
            with suppress(RuntimeError):
                graph.capture_end()

    def address(self, storage: torch.UntypedStorage) -> int:
        return storage.data_ptr()

    def bytes_at(self, address: int, nbytes: int) -> torch.Tensor:
        return torch.as_tensor(_Memory(address, nbytes), device=self._device)

    def take(self, owner: object) -> bool:
        if not self._lease.take(owner):
            return False
        self._follow()
        return True

    def give(self) -> None:
        self._lease.give()

    def settings(self) -> tuple[Any, ...]:
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        return (
            torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(),
            matmul.allow_fp16_reduced_precision_reduction,
            matmul.allow_bf16_reduced_precision_reduction,
            cudnn.allow_tf32,
            cudnn.deterministic,
            cudnn.benchmark,
        )

    def reserved(self) -> int:
        return self._reserved

    def _follow(self) -> None:
        """Order a replay after the last one, which may have been on a different stream and has the same addresses."""
        here = torch.cuda.current_stream(self._device)
        if self._last is not None and self._last != here:
            here.wait_stream(self._last)
        self._last = here


class _Memory:
    """Device memory for torch's array interface."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }
