"""A CUDA device that has no memory and runs nothing: enough for torch's own dispatch to choose every operator that it
would choose for tensors on CUDA.

Autograd's threads ask the device for streams and events; a build of torch for the CPU has nobody to answer.
`no_gpu.cpp` does, compiled against the headers of this torch (two seconds, once for a process). What torch's Python
asks of `torch.cuda` is answered for one device of the requested capability. Both are put back afterwards.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ...errors import CaptureError
from .attention import Capability, choice, cudnn_version, read

_ONE_AT_A_TIME = threading.RLock()
# facts of the tensors; dropout, causal, grouped, grad mode
_CHOOSE = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.POINTER(ctypes.c_int64), ctypes.c_double, ctypes.c_bool, ctypes.c_bool, ctypes.c_bool
)


@contextlib.contextmanager
def no_gpu(capability: Capability, name: str, memory: int) -> Iterator[None]:
    """Meanwhile torch has one CUDA device of this capability, of which only fake tensors can be made. memory: bytes.

    Raises CaptureError where there is a GPU, or no compiler.
    """
    with _ONE_AT_A_TIME:
        if torch.cuda.is_available():
            raise CaptureError(
                "a step for a named GPU is captured where there is none, and this machine has one",
                hint='device="cuda" plans for the GPU that is here',
            )
        library = _library()
        with contextlib.ExitStack() as stack:
            choose = _CHOOSE(lambda facts, *how: choice(read(facts, capability, *how)))
            library.remate_no_gpu_enter(choose, ctypes.c_long(cudnn_version()))
            stack.callback(library.remate_no_gpu_leave)
            stack.enter_context(_answers(capability, name, memory))
            # Backward in a thread of the device would drop Python objects of the step late, and abort an interpreter
            # that ends.
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            yield


@functools.cache
def _library() -> Any:
    """The compiled `no_gpu.cpp`; it stays loaded."""
    root = Path(torch.__file__).parent
    source = Path(__file__).with_name("no_gpu.cpp")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "no_gpu.so"
        command = [_compiler(), "-std=c++20", "-O1", "-shared", "-fPIC", "-I", str(root / "include"), str(source)]
        command += ["-o", str(made), "-L", str(root / "lib"), "-lc10", "-ltorch_cpu"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["it says nothing"])[0]
            raise CaptureError(f"the C++ compiler fails on the stand-in for a GPU: {said}", hint=_COMPILER)
        return ctypes.CDLL(str(made))


_COMPILER = "install g++ or clang++ (the variable CXX names another), or plan on a machine with a GPU"


def _compiler() -> str:
    try:
        from torch._inductor.cpp_builder import get_cpp_compiler

        return get_cpp_compiler()
    except Exception:  # what torch raises where it finds none has no stable type
        raise CaptureError(
            'device="cuda:..." needs a C++ compiler where there is no GPU, and torch finds none', hint=_COMPILER
        ) from None


@contextlib.contextmanager
def _answers(capability: Capability, name: str, memory: int) -> Iterator[None]:
    """What Python code asks of `torch.cuda`, and the way tensors on CUDA are made."""
    state = torch.zeros(16, dtype=torch.uint8)  # as much as a generator of CUDA has
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_bf16_supported": lambda including_emulation=True: including_emulation or capability >= (8, 0),
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_capability": lambda device=None: capability,
        "get_device_name": lambda device=None: name,
        "get_device_properties": lambda device=None: _properties(capability, name, memory),
        "get_rng_state": lambda device="cuda": state.clone(),
        "set_rng_state": lambda new_state, device="cuda": None,
        "synchronize": lambda device=None: None,
        "default_generators": (torch.Generator(),),
    }
    usual = {key: getattr(torch.cuda, key) for key in answers}
    lifted: Any = FakeTensorMode.avoid_device_init
    fake_mode: Any = FakeTensorMode
    binding: Any = torch._C
    reserve = binding._get_cudnn_batch_norm_reserve_space_size
    try:
        for key, answer in answers.items():
            setattr(torch.cuda, key, answer)
        fake_mode.avoid_device_init = property(lambda mode: True)  # torch.tensor(0, device="cuda") begins on the CPU
        # Known to cuDNN on a GPU only. Another size there is noticed at the first step.
        binding._get_cudnn_batch_norm_reserve_space_size = lambda source, training: 0
        yield
    finally:
        fake_mode.avoid_device_init = lifted
        binding._get_cudnn_batch_norm_reserve_space_size = reserve
        for key, function in usual.items():
            setattr(torch.cuda, key, function)


def _properties(capability: Capability, name: str, memory: int) -> Any:
    from types import SimpleNamespace

    major, minor = capability
    return SimpleNamespace(name=name, major=major, minor=minor, total_memory=memory)
