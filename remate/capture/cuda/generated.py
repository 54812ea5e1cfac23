"""Inductor writes code for a GPU that is not here.

It asks for the properties of the GPU and for Triton, and would compile kernels, run some, and copy data. Within
`code_for` it gets answers, and kernels do nothing. Where Triton is not installed, empty modules stand for it: only
compilation would need it.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator, Mapping
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from ..replaced_attributes import says
from .attention import Capability

# Of all architectures since Volta: NVIDIA, CUDA C++ Programming Guide, table of technical specifications.
_WARP, _REGISTERS, _BLOCK = 32, 65536, 1024
# Threads and KiB of shared memory of a multiprocessor; KiB of L2. The same guide, and data sheets.
_PROCESSOR = {
    (7, 5): (1024, 64, 4096),
    (8, 0): (2048, 164, 40960),
    (8, 6): (1536, 100, 6144),
    (8, 9): (1536, 100, 73728),
}
_LARGEST = (2048, 228, 51200)  # of Hopper and Blackwell


@contextlib.contextmanager
def code_for(capability: Capability, name: str, memory: int, processors: int) -> Generator[None]:
    """Let Inductor write code for such a GPU, within `no_gpu`.

    Args:
        capability: Compute capability.
        name: Name of the device.
        memory: Bytes.
        processors: Number of multiprocessors.
    """
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor import config, scheduler, utils
    from torch._inductor.async_compile import AsyncCompile
    from torch.utils import _triton

    import_module("torch._inductor.runtime.triton_heuristics")  # which looks for Triton
    threads, shared, cache = _PROCESSOR.get(capability, _LARGEST)
    about = SimpleNamespace(
        name=name,
        gcnArchName="",  # of AMD
        major=capability[0],
        minor=capability[1],
        multi_processor_count=processors,
        regs_per_multiprocessor=_REGISTERS,
        max_threads_per_multi_processor=threads,
        max_threads_per_block=_BLOCK,
        warp_size=_WARP,
        total_memory=memory,
        L2_cache_size=cache << 10,
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=(shared - 1) << 10,
        shared_memory_per_multiprocessor=shared << 10,
    )
    static: Any = staticmethod
    nothing = SimpleNamespace(run=says(None))
    settings: Any = config
    with contextlib.ExitStack() as stack:
        replaced: list[tuple[Any, dict[str, Any]]] = [
            (
                CudaInterface,
                {
                    "get_device_properties": static(says(about)),
                    "get_compute_capability": static(says(capability[0] * 10 + capability[1])),
                    "is_available": static(says(True)),
                    "is_triton_capable": static(says(True)),
                    "raise_if_triton_unavailable": static(says(None)),
                    "current_device": static(says(0)),
                },
            ),
            (CudaInterface.Worker, {"get_device_properties": static(says(about))}),
            (
                torch.cuda,
                {
                    "get_device_properties": says(about),
                    "set_device": says(None),
                    "_DeviceGuard": _no_guard,
                    "_exchange_device": says(0),
                    "_maybe_exchange_device": says(0),
                    "_lazy_init": says(None),
                },
            ),
            (torch.accelerator, {"current_device_index": says(0)}),
            (torch._C, {"_cuda_getCurrentRawStream": says(0)}),
            (scheduler, {"has_triton": says(True)}),
            (_triton, {"has_triton": says(True), "triton_hash_with_backend": says("none")}),
            (AsyncCompile, {"triton": says(nothing)}),
        ]
        for owner, answers in replaced:
            stack.enter_context(_replaced(owner, answers))
        stack.enter_context(settings.patch(shape_padding=False))  # it would be tried out
        stack.enter_context(_folding_on_the_cpu())
        stack.enter_context(_copied_without_data())
        if find_spec("triton") is None:
            latest = utils.TritonAttrsDescriptorVersion.V4_DICT
            stack.enter_context(_replaced(utils, {"get_triton_attrs_descriptor_version": says(latest)}))
            stack.enter_context(_empty_triton())
        yield


def _no_guard(index: int) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


@contextlib.contextmanager
def _replaced(owner: Any, answers: dict[str, Any]) -> Generator[None]:
    missing = object()
    held: Mapping[str, Any] = owner.__dict__
    usual = {name: held.get(name, missing) for name in answers}
    for name, answer in answers.items():
        setattr(owner, name, answer)
    try:
        yield
    finally:
        for name, value in usual.items():
            if value is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


@contextlib.contextmanager
def _empty_triton() -> Generator[None]:
    names = ("triton", "triton.language")
    modules = {name: ModuleType(name) for name in names}
    for name, module in modules.items():
        module.__spec__ = ModuleSpec(name, None)
    modules["triton"].__dict__.update(__version__="3.7.0", language=modules["triton.language"])
    sys.modules |= modules
    try:
        yield
    finally:
        for name in names:
            sys.modules.pop(name, None)


@contextlib.contextmanager
def _copied_without_data() -> Generator[None]:
    """CPU builds of torch have no copy between tensors on CUDA, also of tensors without data."""
    from torch._subclasses import fake_impls

    def copied(mode: Any, func: Any, to: Any, source: Any, non_blocking: bool = False) -> Any:
        functions.broadcast_shapes(to.shape, source.shape)
        return to

    implementations: Any = fake_impls
    known = implementations.op_implementations_dict
    functions: Any = torch  # it declares this one without types
    copy = torch.ops.aten.copy_.default
    usual = known.get(copy)
    known[copy] = copied
    try:
        yield
    finally:
        if usual is None:
            known.pop(copy)
        else:
            known[copy] = usual


@contextlib.contextmanager
def _folding_on_the_cpu() -> Generator[None]:
    """Let what Inductor computes while it compiles be computed on the CPU."""
    from torch._inductor.fx_passes.joint_graph import UniformValueConstantFolder

    folder: Any = UniformValueConstantFolder
    usual = folder._deduce_value

    def deduced(self: Any, node: Any) -> Any:
        if "device" in node.kwargs:
            kwargs = {**node.kwargs, "device": "cpu"}
            node = SimpleNamespace(op=node.op, target=node.target, args=node.args, kwargs=kwargs, meta=node.meta)
        return usual(self, node)

    with _replaced(folder, {"_deduce_value": deduced}):
        yield
