"""A GPU for Inductor where there is none: it writes the code that it would write there, as in a dry run. Unlike there,
tensors have memory, and the code can run if Triton is installed: its interpreter executes kernels on the CPU. For a
process of its own: torch remembers much of this."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy
import torch

from remate.capture.cuda.generated import code_for
from remate.profile.devices import DEVICES
from remate_runtime.devices.cpu_memory import peak_on_cpu
from remate_runtime.engine.compiled import artefacts, compiled_engine, memory, workspaces

from ..cuda_graphs.recorder import KERNELS

GPU = torch.device("cuda", 0)


@contextmanager
def code_for_an_h200(runs: bool) -> Iterator[list[str]]:
    """Let Inductor write code for an H200. Yield the list to which the sources of its kernels are added.

    Args:
        runs: Triton executes kernels on the CPU; without it they do nothing.
    """
    from torch._inductor.async_compile import AsyncCompile

    h200 = DEVICES["h200"]
    assert h200.gpu is not None
    usual, sources = AsyncCompile.triton, list[str]()
    with code_for(h200.gpu.capability, h200.gpu.name, h200.gpu.memory, h200.processors):
        torch.cuda.get_device_capability = _says(h200.gpu.capability)
        torch.cuda.current_device = _says(0)
        _instead_of_measuring()
        without_kernels = AsyncCompile.triton

        def noted(self: Any, name: str, source: str, device_str: str = "cuda") -> Any:
            sources.append(source)
            return _Noted(usual(self, name, source, device_str)) if runs else without_kernels(self, name, source)

        compiling: Any = AsyncCompile
        compiling.triton = noted
        if runs:
            from torch._inductor.runtime import triton_helpers

            helpers: Any = triton_helpers
            helpers.set_driver_to_gpu, helpers.libdevice = _says(None), _Libdevice()
        yield sources


def _says(answer: Any) -> Callable[..., Any]:
    return lambda *given, **named: answer


def _instead_of_measuring() -> None:
    """Predict and measure with tensors of the CPU, whose allocator does not round. Nothing is warmed up."""
    held: Any = artefacts.held
    memory.allocated = lambda nbytes, device: nbytes
    artefacts.held = lambda *given: held(*given[:-1], torch.device("cpu"))
    workspaces.peak_on_cuda = lambda fn, device: peak_on_cpu(fn)
    fork = torch.random.fork_rng
    torch.random.fork_rng = lambda devices=(), **options: fork([], **options)
    artefacts.Artefacts._warm = _says(None)  # pyright: ignore[reportPrivateUsage]


class _Noted:
    """A kernel, whose calls are noted where a step is recorded."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def run(self, *args: Any, **kwargs: Any) -> Any:
        if KERNELS:
            return KERNELS[-1](self._kernel.run, args, kwargs)
        return self._kernel.run(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)


class _Libdevice:
    """CUDA's library of functions, which Triton's interpreter has not, by torch's functions of the same names."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        core, interpreter = (import_module(f"triton.{item}") for item in ("language.core", "runtime.interpreter"))
        function = getattr(torch, name, None) or getattr(torch.special, name)

        def run(*given: Any) -> Any:
            arrays = [item.handle.data for item in given]
            result = numpy.empty_like(arrays[0])  # torch is seen to allocate nothing
            function(*map(torch.as_tensor, arrays), out=torch.as_tensor(result))
            return core.tensor(interpreter.TensorHandle(result, given[0].dtype), given[0].type)

        return run


def _zeros(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype).zero_()  # numbers of elements, too, where kernels do nothing


def compile_for_gpu() -> None:
    """The engine "compiled", for models on the CPU: what it compiles is for the GPU, and runs on the CPU's tensors."""
    result = artefacts.compiled

    def compiled(*given: Any) -> Any:
        function: Any = result(*given)
        runner = getattr(function, "compiled_fn_runner", None)
        if runner is not None:
            names = type(runner).call.__globals__
            names["empty_strided_cuda"] = _zeros
            names["copy_if_misaligned"] = lambda tensor: tensor
        return function

    known: dict[torch.device, Any] = {}

    def of(_: Any, device: torch.device) -> Any:
        return known.setdefault(GPU, artefacts.Artefacts(GPU))

    artefacts.compiled = compiled
    compiled_engine._of = of  # pyright: ignore[reportPrivateUsage]
