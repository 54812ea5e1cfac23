"""What Inductor asks of a GPU, where there is none: it then writes the code that it would write there. What it writes
can run here if Triton is installed: its interpreter executes kernels on the CPU. For a process of its own: much of this
is remembered by torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy
import torch

from remate_runtime.devices.cpu_memory import peak_on_cpu
from remate_runtime.engine.compiled import artefacts, compiled_engine, memory, workspaces

from ..cuda_graphs.recorder import KERNELS

GPU = torch.device("cuda", 0)
_ABOUT = SimpleNamespace(  # an H200
    name="NVIDIA H200",
    gcnArchName="",  # of AMD
    major=9,
    minor=0,
    multi_processor_count=132,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
    total_memory=141 << 30,
    L2_cache_size=50 << 20,
    shared_memory_per_block=48 << 10,
    shared_memory_per_block_optin=227 << 10,
    shared_memory_per_multiprocessor=228 << 10,
)


def install(runs: bool) -> list[str]:
    """Sources of the kernels, as they are written. runs: Triton executes them on the CPU; without it they do
    nothing."""
    from torch._dynamo.device_interface import CudaInterface

    interface: Any = CudaInterface
    for cuda, said in (
        ("get_device_properties", _ABOUT),
        ("get_compute_capability", 90),
        ("is_available", True),
        ("is_triton_capable", True),
        ("raise_if_triton_unavailable", None),
        ("current_device", 0),
    ):
        setattr(interface, cuda, staticmethod(_says(said)))
    interface.Worker.get_device_properties = staticmethod(_says(_ABOUT))
    torch.cuda.get_device_properties = _says(_ABOUT)
    torch.cuda.get_device_capability = _says((9, 0))
    torch.cuda.current_device = _says(0)
    torch.cuda.set_device = _says(None)
    module: Any = torch.cuda
    module._DeviceGuard = lambda index: nullcontext()
    private: Any = torch._C
    private._cuda_getCurrentRawStream = _says(0)
    _instead_of_measuring()
    return _kernels(runs)


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
    _copied_without_data()
    _folding_on_the_cpu()


def _copied_without_data() -> None:
    """Where torch has no code for CUDA, tensors without data that would be there cannot be copied into each other."""
    from torch._subclasses.fake_impls import op_implementations_dict

    def copied(mode: Any, func: Any, to: Any, source: Any, non_blocking: bool = False) -> Any:
        torch.broadcast_shapes(to.shape, source.shape)
        return to

    known: Any = op_implementations_dict
    known[torch.ops.aten.copy_.default] = copied


def _folding_on_the_cpu() -> None:
    """What Inductor computes while it compiles."""
    from torch._inductor import config
    from torch._inductor.fx_passes.joint_graph import UniformValueConstantFolder

    settings: Any = config
    settings.shape_padding = False  # it would be tried out
    folder: Any = UniformValueConstantFolder
    usual = folder._deduce_value

    def deduced(self: Any, node: Any) -> Any:
        if "device" in node.kwargs:
            kwargs = {**node.kwargs, "device": "cpu"}
            node = SimpleNamespace(op=node.op, target=node.target, args=node.args, kwargs=kwargs, meta=node.meta)
        return usual(self, node)

    folder._deduce_value = deduced


def _kernels(runs: bool) -> list[str]:
    from torch._inductor import scheduler, utils
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.runtime import triton_heuristics  # noqa: F401 (it looks for Triton when it is imported)
    from torch.utils import _triton

    sources: list[str] = []
    private: Any = scheduler
    private.has_triton = _says(True)
    _triton.triton_hash_with_backend = _says("none")
    usual = AsyncCompile.triton

    def noted(self: Any, name: str, source: str, device_str: str = "cuda") -> Any:
        sources.append(source)
        return _Noted(usual(self, name, source, device_str)) if runs else SimpleNamespace(run=_says(None))

    compiling: Any = AsyncCompile
    compiling.triton = noted
    if runs:
        from torch._inductor.runtime import triton_helpers

        helpers: Any = triton_helpers
        helpers.set_driver_to_gpu, helpers.libdevice = _says(None), _Libdevice()
    elif find_spec("triton") is None:
        stubs = {name: ModuleType(name) for name in ("triton", "triton.language")}
        for name, stub in stubs.items():
            stub.__spec__ = ModuleSpec(name, None)
        stubs["triton"].__dict__.update(__version__="3.7.0", language=stubs["triton.language"])
        sys.modules |= stubs
        latest = utils.TritonAttrsDescriptorVersion.V4_DICT
        utils.get_triton_attrs_descriptor_version = _says(latest)
    return sources


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
