"""Prints what operators CUDA runs for the cases, as JSON: `python -m tests.planner.cuda_build.observe SM stub|rules`.

`stub` needs a CUDA build of torch: its dispatch chooses. `rules` needs any build of the same version that sees no GPU.
A process of its own, because a stub changes torch for good.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# What `crt/host_defines.h` defines for a C compiler. Wheels of CUDA builds do not contain it.
_EMPTY = """CUDARTAPI CUDARTAPI_CDECL __host__ __device__ __device_builtin__ __cudart_builtin__
__device_builtin_texture_type__ __device_builtin_surface_type__ CUDA_DEPRECATED(x)""".split()
_HOST_DEFINES = "".join(f"#define {name}\n" for name in _EMPTY) + "#define __specialization_static static\n"
_HOST_DEFINES += "".join(
    f"#define {name}(n) __attribute__((aligned(n)))\n" for name in ("__align__", "__builtin_align__")
)


def load_stub(capability: tuple[int, int]) -> None:
    """Compile the stub against the headers of the CUDA build, and load it before torch."""
    assert "torch" not in sys.modules, "torch has loaded its CUDA libraries"
    os.environ["REMATE_STUB_CAPABILITY"] = "{}.{}".format(*capability)
    package = importlib.util.find_spec("nvidia")
    assert package is not None
    assert package.submodule_search_locations
    headers = next(Path(package.submodule_search_locations[0]).glob("*/include/cuda_runtime_api.h")).parent
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "crt").mkdir()
        (Path(folder) / "crt" / "host_defines.h").write_text(_HOST_DEFINES)
        library, source = Path(folder) / "stub.so", Path(__file__).with_name("runtime_stub.c")
        command = ["gcc", "-shared", "-fPIC", "-O1", "-Wl,-soname,libcuda.so.1", "-I", folder, "-I", str(headers)]
        subprocess.run([*command, "-o", str(library), str(source)], check=True)
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


@contextlib.contextmanager
def _device(capability: tuple[int, int], stub: bool) -> Iterator[None]:
    import torch
    from torch._subclasses import fake_tensor

    if not stub:
        from remate.capture.cuda.no_gpu import no_gpu
        from remate.capture.cuda.rules import rules

        with no_gpu(capability, "", 80 << 30), rules():
            yield
        return
    fake: Any = fake_tensor
    mode = fake.FakeTensorMode
    mode.avoid_device_init = property(lambda self: True)
    torch.nn.RNNBase.flatten_parameters = lambda self: None  # type: ignore[method-assign]
    binding: Any = torch._C
    binding._get_cudnn_batch_norm_reserve_space_size = lambda source, training: 0
    fake.init_gpu_context = lambda device: None  # of torch 2.12 and older, which make a tensor on the device here
    # It makes a tensor on the device: every one with CUDA 11 or later can, and the stub has no memory.
    torch.cuda._check_bf16_tensor_supported = lambda device: True
    with torch.autograd.set_multithreading_enabled(False):
        yield


def attention() -> dict[str, str]:
    """Return the operators of each attention call, forward and backward, with the types of their results."""
    import torch
    import torch.nn.functional as F
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    from .cases import attention_cases

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            if function.namespace != "prim":
                noted.append(f"{function} -> {described(result)}")
            return result

    found = {}
    for case in attention_cases():
        noted: list[str] = []
        with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cuda"):
            tensors = case.tensors()
            options = {"dropout_p": case.dropout, "is_causal": case.causal}
            try:
                with Noted(), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    result = F.scaled_dot_product_attention(
                        **tensors, **options, enable_gqa=case.heads != case.key_heads
                    )
                    if case.trains:
                        result.sum().backward()
            except (RuntimeError, ValueError) as error:
                noted = [f"refused: {type(error).__name__}"]
        found[str(case)] = "; ".join(noted)
    return found


def described(value: Any) -> str:
    """Return types, shapes, strides and devices of results."""
    import torch

    if isinstance(value, tuple | list):
        return f"({', '.join(map(described, value))})"
    if not isinstance(value, torch.Tensor):
        return str(value)
    return f"{value.dtype}{list(value.shape)}{list(value.stride())}@{value.device.type}"


def models() -> dict[str, str]:
    """Return the captured step of each model, or why it is refused."""
    from remate.capture.capture_step import capture
    from remate.capture.fake_call import fake_call
    from remate.capture.recorded import RecordedCall
    from remate.errors import CaptureError

    from .cases import MODELS

    found = {}
    for name, build in MODELS.items():
        model, source = build()
        with fake_call(RecordedCall.of(model, (source,), {}), "cuda") as call, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                graph = capture(call.model, call.args).graph
            except CaptureError as error:
                found[name] = f"refused: {error}"
                continue
        values = graph.values
        lines = [
            f"{op.op} {op.args} {op.kwargs} -> {[str(values[w].type) if w is not None else None for w in op.writes]}"
            for op in graph.operations
        ]
        found[name] = "\n".join(lines)
    return found


def main() -> None:
    sm, source = int(sys.argv[1]), sys.argv[2]
    capability = divmod(sm, 10)
    if source == "stub":
        load_stub(capability)
    with _device(capability, source == "stub"):
        print(json.dumps({"attention": attention(), "models": models()}))


if __name__ == "__main__":
    main()
