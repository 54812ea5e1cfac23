"""Predicts the memory of a compiled function: runs Inductor's wrapper, the Python code around its kernels, on tensors
without data and without kernels.

Uses unstable interfaces of PyTorch, as `inductor` does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from types import FunctionType, SimpleNamespace
from typing import Any, NamedTuple

import torch

from ...format.json_values import is_array
from ...format.tensor_type import TensorType
from ...operator_calls.overloads import empty, laid_out, storage_identity
from ...operators import DEVICES
from ...torch_private.execution import (
    DisableAutocast,
    DisableTorchFunction,
    TorchDispatchMode,
    without_dispatch_modes,
)
from .inductor import Compiled, DoesNotCompileError, named

_NOTHING = frozenset({torch.ops.aten.empty_strided.default, torch.ops.aten.empty.memory_format})
_KERNELS = ("cpp_fused", "triton_", "assert_")  # prefixes of the names of kernels and of size checks
_CHECK = "assert_size_stride"


class WrapperMemory(NamedTuple):
    """The memory of a compiled function while it runs.

    Attributes:
        peak: Peak in bytes, including the inputs that the function owns, without other inputs.
        result_bytes: Bytes of the storage of each result.
        shared: Indices of the results that do not have a storage of their own, or not all of it.
        output_types: Types of the results with their actual memory layout.
    """

    peak: int
    result_bytes: tuple[int, ...]
    shared: tuple[int, ...]
    output_types: tuple[TensorType, ...]


class Ran(NamedTuple):
    """A measured run of an operator on artificial data.

    Attributes:
        workspace: Bytes of its workspace.
        strides: Strides of each returned tensor.
    """

    workspace: int
    strides: tuple[tuple[int, ...], ...]


Run = Callable[[Any, Any, Any], Ran]  # operator, args, kwargs; their tensors have no data


def held(
    function: Compiled,
    input_types: Sequence[TensorType],
    output_types: Sequence[TensorType],
    donated: Sequence[int],
    owned: Collection[int],
    run: Run,
    device: torch.device,
) -> WrapperMemory:
    """Predict the memory of a compiled function without running its kernels.

    Args:
        function: The function.
        input_types: As in `compiled`.
        output_types: As in `compiled`.
        donated: As in `compiled`.
        owned: Indices of the inputs that only the function holds, donated or not.
        run: Measures an operator on artificial data.
        device: The device.

    Raises:
        DoesNotCompileError: An operator fails on artificial data, or its results have a different memory layout than
            torch predicts. With an untested version of torch, the wrapper may raise any other error.
    """
    from ...torch_private.fake_tensors import FakeTensorMode

    storages = _LiveStorages(device)

    class AllocationWatch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            results = func(*args, **(kwargs or {}))
            tensors = list(_tensors(results))
            storages.note(tensors)
            if func not in _NOTHING and not func.is_view:
                storages.note(tensors, needed(func, args, kwargs or {}, tensors))
            return results

    def needed(func: object, args: object, kwargs: object, tensors: list[torch.Tensor]) -> int:
        with without_dispatch_modes():
            try:
                ran = run(func, args, kwargs)
            except Exception as error:
                raise DoesNotCompileError(f"on artificial data it raises {error}", named(func)) from error
        if not all(map(_as_predicted, tensors, ran.strides)):
            raise DoesNotCompileError("torch predicts a different memory layout of its result", named(func))
        return ran.workspace

    with (
        DisableTorchFunction(),
        without_dispatch_modes(),
        torch.no_grad(),
        DisableAutocast(),
        FakeTensorMode(),
    ):
        given = [empty(kind, device) for kind in input_types]
        kept = [tensor for at, tensor in enumerate(given) if at not in owned]
        storages.others.update(storage_identity(tensor) for tensor in kept)
        storages.note([tensor for at, tensor in enumerate(given) if at in owned])
        taken = {storage_identity(tensor) for at, tensor in enumerate(given) if at not in donated}
        with AllocationWatch():
            results = list(without_kernels(function, device)(given))
    shared: list[int] = []
    for at in sorted(range(len(results)), key=lambda at: -results[at].nbytes):
        key, storage = storage_identity(results[at]), results[at].untyped_storage()
        if storage.nbytes() and (key in taken or storage.nbytes() > results[at].nbytes):
            shared.append(at)
        taken.add(key)
    bytes_of = [t.nbytes if at in shared else t.untyped_storage().nbytes() for at, t in enumerate(results)]
    sizes = [allocated(nbytes, device) for nbytes in bytes_of]
    copies = sum(sizes[at] for at in shared)
    types = tuple(_type(*pair) for pair in zip(results, output_types, strict=True))
    return WrapperMemory(max(storages.peak, storages.level() + copies), tuple(sizes), tuple(sorted(shared)), types)


def allocated(nbytes: int, device: torch.device) -> int:
    """Return the bytes that the allocator of a device assigns to a storage."""
    unit = DEVICES[device.type].allocation
    return -(-nbytes // unit) * unit


def _as_predicted(result: torch.Tensor, strides: tuple[int, ...]) -> bool:
    """Return whether a tensor without data has the strides that the operator itself produced. Inductor's code asserts
    that they are equal."""
    pairs = zip(result.shape, result.stride(), strides, strict=True)
    return not result.numel() or all(size <= 1 or left == right for size, left, right in pairs)


def _type(tensor: torch.Tensor, kind: TensorType) -> TensorType:
    return kind if laid_out(tensor, kind) else TensorType(kind.dtype, kind.shape, tuple(tensor.stride()), kind.cpu)


class _LiveStorages:
    """Counts the bytes of recorded storages that still exist."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.peak = 0
        self.others: set[int] = set()  # storages that the function does not own
        self._known: dict[int, tuple[Any, int]] = {}

    def level(self) -> int:
        self._known = {key: entry for key, entry in self._known.items() if not entry[0].expired()}
        return sum(nbytes for _, nbytes in self._known.values())

    def note(self, tensors: Iterable[torch.Tensor], workspace: int = 0) -> None:
        from torch.multiprocessing.reductions import StorageWeakRef

        for tensor in tensors:
            key, storage = storage_identity(tensor), tensor.untyped_storage()
            known = self._known.get(key)
            if key not in self.others and (known is None or known[0].expired()):
                self._known[key] = StorageWeakRef(storage), allocated(storage.nbytes(), self._device)
        self.peak = max(self.peak, self.level() + workspace)


def _tensors(given: object) -> Iterator[torch.Tensor]:
    if isinstance(given, torch.Tensor):
        yield given
    elif is_array(given):
        for item in given:
            yield from _tensors(item)


def without_kernels(function: Any, device: torch.device, checks: bool = False) -> Compiled:
    """Return Inductor's wrapper with kernels that do nothing.

    Args:
        function: The function.
        device: The device of its tensors.
        checks: Whether it checks shapes and strides, as Inductor's code does.
    """
    runner = getattr(function, "compiled_fn_runner", None)
    if runner is None:  # a graph without operations has no wrapper
        return function
    call: FunctionType = runner.__class__.call
    names = dict(call.__globals__)
    for name in names:
        if name.startswith(_KERNELS) and not (checks and name == _CHECK):
            names[name] = SimpleNamespace(run=_nothing) if name.startswith("triton_") else _nothing
    names["empty_strided_cpu"] = partial(_empty_strided, torch.device("cpu"))
    names["empty_strided_cuda"] = partial(_empty_strided, device)
    names["copy_if_misaligned"] = _aligned
    names["reinterpret_tensor"] = _reinterpreted
    copy = FunctionType(call.__code__, names)
    return lambda given: copy(runner, given)


def _nothing(*given: object, **named: object) -> None:
    """Run no kernel, and check nothing."""


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor  # tensors of a step are aligned


def _reinterpreted(tensor: torch.Tensor, size: Any, stride: Any, offset: int) -> torch.Tensor:
    return tensor.as_strided(size, stride, tensor.storage_offset() + offset)


def _empty_strided(device: torch.device, size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device=device)
