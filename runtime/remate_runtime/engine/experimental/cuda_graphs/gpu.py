"""All that recorded steps ask of torch.cuda."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import torch

Replay = Callable[[], None]


class GraphRecorder(Protocol):
    """Records what a device is asked to do, in a private pool of its memory that all recordings share."""

    def records(self) -> bool:
        """Whether somebody records the current stream at this moment."""
        ...

    def recording(self) -> Any:
        """A context for `warm`, `begin` and `end`."""
        ...

    def warm(self, run: Callable[[], None]) -> None:
        """Run it as it will be recorded, so that what libraries prepare when they are called first is prepared. No
        random number is drawn."""
        ...

    def begin(self) -> None:
        """From now on what the device is asked to do is recorded, and does not happen."""
        ...

    def end(self) -> Replay:
        """What makes it happen."""
        ...

    def abandon(self) -> None:
        """Leave off after an error."""
        ...

    def bytes_at(self, address: int, nbytes: int) -> torch.Tensor: ...

    def take(self, owner: object) -> bool:
        """Let `owner` have the contents of the pool as long as it lives, or until `give`; not while another has
        them."""
        ...

    def give(self) -> None: ...

    def settings(self) -> tuple[Any, ...]:
        """What a recording takes over from the settings of torch."""
        ...

    def reserved(self) -> int:
        """Bytes of the device that the pool has taken."""
        ...


class PoolLease:
    """Who has the contents of a pool."""

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


class Gpu:
    """A recorder for a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lease = PoolLease()
        self._pool: Any = None
        # As long as there is one the pool stays.
        self._graphs: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()
        self._last: torch.cuda.Stream | None = None  # where the last replay was
        self._reserved = self._before = 0
        self._open: torch.cuda.CUDAGraph | None = None

    def records(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    @contextmanager
    def recording(self) -> Iterator[None]:
        if not self._graphs:  # a pool that lost its last graph cannot be used again
            self._pool, self._reserved = torch.cuda.graph_pool_handle(), 0
        here, side = torch.cuda.current_stream(self._device), torch.cuda.Stream(self._device)
        gc.collect()  # nothing of CUDA may be freed by chance while a recording is made
        torch.cuda.synchronize(self._device)
        side.wait_stream(here)
        with torch.cuda.device(self._device), torch.cuda.stream(side):
            try:
                yield
            finally:
                _forget_workspaces()  # those of cuBLAS, which lie in the pool
        here.wait_stream(side)

    def warm(self, run: Callable[[], None]) -> None:
        generator = torch.cuda.default_generators[self._device.index or 0]
        state = generator.get_state()
        run()
        torch.cuda.synchronize(self._device)
        generator.set_state(state)
        _forget_workspaces()
        torch.cuda.empty_cache()  # the stream is not used again: what lies ready for it would be lost

    def begin(self) -> None:
        self._open, self._before = torch.cuda.CUDAGraph(), torch.cuda.memory_reserved(self._device)
        # Other threads may pin memory or look at events meanwhile: loaders of data, the watchdog of NCCL.
        self._open.capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def end(self) -> Replay:
        graph, self._open = self._open, None
        assert graph is not None
        with warnings.catch_warnings(action="ignore"):  # of a part that launches nothing
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
        """A replay writes where the last one read, and that may have been on another stream."""
        here = torch.cuda.current_stream(self._device)
        if self._last is not None and self._last != here:
            here.wait_stream(self._last)
        self._last = here


class _Memory:
    """Memory of the device, by the protocol that torch reads it by."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


def _forget_workspaces() -> None:
    """torch keeps a workspace of cuBLAS for each stream; one of a recording would stay in the pool."""
    forget = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if forget is not None:
        forget()
