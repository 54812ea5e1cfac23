"""A CUDA device without memory that runs nothing, with which torch's own dispatch selects the operators for CUDA.

Autograd's threads need streams and events of the device, which a CPU build of torch does not have. `no_gpu.cpp`
provides them; it is compiled against the headers of this torch (two seconds, once per process). Functions of
`torch.cuda` report one device of the requested capability. Both are restored afterwards.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import contextlib
import ctypes
import functools
import subprocess
import tempfile
import threading
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import torch
from torch._subclasses import fake_tensor
from torch.fx.experimental import proxy_tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ...errors import CaptureError
from ..replaced_attributes import replaced_attributes, says
from .attention import Capability, choice, read
from .versions import cudnn_of_build

_ONE_AT_A_TIME = threading.RLock()
# facts of the tensors; dropout, causal, grouped, grad mode
_CHOOSE = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.POINTER(ctypes.c_int64), ctypes.c_double, ctypes.c_bool, ctypes.c_bool, ctypes.c_bool
)


@contextlib.contextmanager
def no_gpu(capability: Capability, name: str, memory: int) -> Generator[None]:
    """Give torch one CUDA device for fake tensors in the `with` block.

    Args:
        capability: Compute capability.
        name: Name of the device.
        memory: Bytes.

    Raises:
        CaptureError: There is a GPU, or no compiler.
    """
    with _ONE_AT_A_TIME:
        if torch.cuda.is_available():
            raise CaptureError(
                "a step for a named GPU is captured on machines without a GPU, and this machine has one",
                hint='device="cuda" plans for the GPU of this machine',
            )
        library = _library()
        with contextlib.ExitStack() as stack:

            def chosen(facts: Any, *how: Any) -> int:
                return choice(read(facts, capability, *how))

            choose = _CHOOSE(chosen)
            library.remate_no_gpu_enter(choose, ctypes.c_long(cudnn_of_build()))
            stack.callback(library.remate_no_gpu_leave)
            stack.enter_context(_answers(capability, name, memory))
            # Backward in a thread of the device would drop Python objects of the step late, and abort an interpreter
            # that ends.
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            yield


@functools.cache
def _library() -> Any:
    """Compile and load `no_gpu.cpp`. It stays loaded."""
    root = Path(torch.__file__).parent
    source = Path(__file__).with_name("no_gpu.cpp")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "no_gpu.so"
        command = [_compiler(), "-std=c++20", "-O1", "-shared", "-fPIC", "-I", str(root / "include"), str(source)]
        command += ["-o", str(library), "-L", str(root / "lib"), "-lc10", "-ltorch_cpu"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["it says nothing"])[0]
            raise CaptureError(f"the C++ compiler fails on the stand-in for a GPU: {said}", hint=_COMPILER)
        return ctypes.CDLL(str(library))


_COMPILER = "install g++ or clang++ (the variable CXX names another), or plan on a machine with a GPU"


def _compiler() -> str:
    try:
        from torch._inductor.cpp_builder import get_cpp_compiler

        return get_cpp_compiler()
    except Exception:  # what torch raises where it finds none has no stable type
        raise CaptureError(
            'device="cuda:..." needs a C++ compiler on a machine without a GPU, and torch finds none', hint=_COMPILER
        ) from None


@contextlib.contextmanager
def _answers(capability: Capability, name: str, memory: int) -> Generator[None]:
    """Replacements for functions of `torch.cuda`, and for the creation of tensors on CUDA."""
    state = torch.zeros(16, dtype=torch.uint8)  # as much as a generator of CUDA has
    answers: dict[str, Any] = {
        "is_available": says(True),
        "is_bf16_supported": lambda including_emulation=True: including_emulation or capability >= (8, 0),
        "device_count": says(1),
        "current_device": says(0),
        "get_device_capability": says(capability),
        "get_device_name": says(name),
        "get_device_properties": says(Absent(name, *capability, memory)),
        "get_rng_state": lambda device="cuda": state.clone(),
        "set_rng_state": says(None),
        "current_stream": says(SimpleNamespace(cuda_stream=0)),
        "synchronize": says(None),
        "default_generators": (torch.Generator(),),
    }
    fake: Any = fake_tensor
    fake_mode: Any = fake.FakeTensorMode
    lifted, initialize = fake_mode.avoid_device_init, fake.init_gpu_context
    binding: Any = torch._C
    reserve = binding._get_cudnn_batch_norm_reserve_space_size
    tracer: Any = proxy_tensor
    unset = tracer.unset_fake_temporarily
    try:
        fake_mode.avoid_device_init = property(lambda mode: True)  # torch.tensor(0, device="cuda") begins on the CPU
        fake.init_gpu_context = says(None)  # torch 2.12 and older would make a tensor there
        # Only cuDNN on a GPU knows it. The first step there detects another size.
        binding._get_cudnn_batch_norm_reserve_space_size = says(0)
        tracer.unset_fake_temporarily = functools.partial(_constants_on_host, unset)
        with replaced_attributes(torch.cuda, answers):
            yield
    finally:
        fake_mode.avoid_device_init, fake.init_gpu_context = lifted, initialize
        binding._get_cudnn_batch_norm_reserve_space_size = reserve
        tracer.unset_fake_temporarily = unset


@contextlib.contextmanager
def _constants_on_host(unset: Any) -> Generator[Any]:
    """Let the tracer compute constants of the device on the host: `torch.tensor([], device="cuda")` in forward, as in
    caches of transformers. unset: The tracer's own context."""
    with unset() as mode, _OnHost():
        yield mode


class _OnHost(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        return func(*args, **kwargs)


class Absent(msgspec.Struct, frozen=True):
    """The properties of a GPU that is not here, with torch's names."""

    name: str
    major: int
    minor: int
    total_memory: int
