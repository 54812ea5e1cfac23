"""The unstable interfaces of PyTorch that the compiled engine uses; `kernel_units` and `wrapper` have the others.

Tested with torch 2.11 to 2.15. Code for CUDA was run on an H100 with torch 2.11.
"""

from __future__ import annotations

import logging
import os
import pickle
import warnings
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx

from ...format.tensor_type import TensorType
from ...operator_calls.cache_folder import NAME
from ...operator_calls.overloads import TORCH_DTYPES, described, empty, laid_out
from ...torch_private.execution import DisableAutocast, DisableTorchFunction, without_dispatch_modes
from ...torch_private.operators import OpOverload
from .kernel_units import in_units

if TYPE_CHECKING:
    from torch._inductor.compile_worker.subproc_pool import SubprocPool

OLDEST, NEWEST = (2, 11), (2, 15)
_ENDED = "the process that compiles ended"
_FEW_READS = 2  # Inductor's default is 4
_KERNELS = 2  # changes when the same graph gets other kernels: those on disk are not used then

Compiled = Callable[[list[Any]], Sequence[torch.Tensor]]  # empties the list of its arguments


class DoesNotCompileError(Exception):
    """Inductor cannot compile a segment to what the file declares.

    Attributes:
        operator: Name of the operator that fails; "" if it is not known.
    """

    def __init__(self, message: str, operator: str = "") -> None:
        super().__init__(message)
        self.operator = operator


def unavailable(kind: str = "") -> str:
    """Return why nothing can be compiled for a class of device; "" if compilation works.

    Args:
        kind: The class of device. "": any device of this machine.
    """
    release = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if not OLDEST <= release <= NEWEST:
        known = " to ".join(sorted({f"{a}.{b}" for a, b in (OLDEST, NEWEST)}))
        return f"compiled steps were tried with torch {known}, not with {torch.__version__}"
    if not kind:
        reasons = [
            unavailable(device_kind) for device_kind in ("cpu", *(("cuda",) if torch.cuda.is_available() else ()))
        ]
        return min(reasons, key=len)
    return _without_triton() if kind == "cuda" else _without_compiler()


def _without_triton() -> str:
    from torch.utils._triton import has_triton

    if not torch.cuda.is_available():
        return "there is no CUDA device"
    return "" if has_triton() else "torch finds no Triton for this GPU (pip install triton)"


def _without_compiler() -> str:
    try:
        from torch._inductor.cpp_builder import get_cpp_compiler

        get_cpp_compiler()
    except Exception:  # torch has no stable exception for this
        return "torch finds no C++ compiler (g++ or clang++; the variable CXX names another)"
    return ""


def numbered(device: torch.device) -> torch.device:
    """Return the device with its index, because compiled code contains the index."""
    of_device: Any = device  # torch declares that the index is never None
    if device.type == "cuda" and of_device.index is None and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return device


def folder() -> str:
    """Return Inductor's cache folder without creating it. (Other functions of torch create it, and fail if they
    cannot.)"""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    return os.environ.get(NAME) or default_cache_dir()


def forget() -> None:
    """Clear what Inductor remembers about its cache folder."""
    from torch._inductor.utils import clear_caches

    clear_caches()


def compiled(
    module: fx.GraphModule,
    input_types: Sequence[TensorType],
    output_types: Sequence[TensorType],
    donated: Sequence[int],
    free: Collection[int],
    device: torch.device,
    tag: str,
) -> Compiled:
    """Compile a graph with Inductor.

    Args:
        module: The graph.
        input_types: Types of the inputs.
        output_types: Types of the outputs.
        donated: Indices of the inputs that the function may overwrite.
        free: Indices of the outputs whose memory layout Inductor may choose.
        device: The device.
        tag: Key of Inductor's cache on disk. Must differ if any other argument differs.

    Raises:
        DoesNotCompileError: The graph cannot be compiled to what the types declare. Inductor may raise any other error.
    """
    from torch._functorch import config as functorch_config
    from torch._guards import TracingContext, tracing
    from torch._inductor import config as inductor_config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    from ...torch_private.fake_tensors import FakeTensorMode

    config: Any = torch.compiler.config
    functorch: Any = functorch_config
    inductor: Any = inductor_config
    mode = FakeTensorMode(shape_env=ShapeEnv())  # Inductor's cache on disk requires one
    with DisableTorchFunction(), without_dispatch_modes(), torch.no_grad(), DisableAutocast():
        with mode:
            examples = [empty(kind, device) for kind in input_types]
            traced = _retraced(module, examples, output_types, free)
        _check(traced, output_types, free)
        context: Any = TracingContext(mode)
        context.fw_metadata = SimpleNamespace(bw_donated_idxs=list(donated), static_input_indices=[])
        with (
            tracing(context),
            config.patch(cache_key_tag=f"remate {_KERNELS} {tag}"),
            inductor.patch(_settings(traced, device)),
            functorch.patch(bundled_autograd_cache=False),  # it would disable the cache on disk
            warnings.catch_warnings(action="ignore"),
            in_units(),
            _without_shared_rows(),
        ):
            # Only backward graphs have donated inputs.
            run: Any = compile_fx_inner(traced, examples, is_backward=True, static_input_idxs=())
    with suppress(OSError):
        _mark(tag).parent.mkdir(parents=True, exist_ok=True)
        _mark(tag).touch()
    return run


@contextmanager
def _without_shared_rows() -> Generator[None]:
    """Keep Inductor from C++ kernels that mix up rows (https://github.com/pytorch/pytorch/issues/185702).

    A kernel of several loops over the same rows may keep results of a row in a buffer of its own. Torch up to 2.13 does
    that too where the outer loop takes several rows at once: they have one buffer, in which the last row remains.
    """
    from torch._dynamo.convert_frame import compile_lock
    from torch._inductor.codegen.cpp import OuterLoopFusedSchedulerNode
    from torch._inductor.virtualized import V

    node: Any = OuterLoopFusedSchedulerNode
    variables: Any = V
    own = node.check_outer_fusion_loop_level_attr

    def may_be_one(self: object, kernels: Sequence[Any], depth: int) -> bool:
        if not own(self, kernels, depth):
            return False
        keeps_rows = bool(getattr(variables.local_buffer_context, "local_buffers", None))
        return not keeps_rows or all(loop.steps == 1 for kernel in kernels for loop in kernel.loop_nest.loops[:depth])

    with compile_lock:
        node.check_outer_fusion_loop_level_attr = may_be_one
        try:
            yield
        finally:
            node.check_outer_fusion_loop_level_attr = own


def _settings(traced: fx.GraphModule, device: torch.device) -> dict[str, Any]:
    """Return Inductor's settings for a graph.

    The wrapper is Python code, from which `wrapper` predicts memory. CUDA graphs would keep memory of their own. For
    gradients of convolutions on the CPU,

    - images are channels-last as in forward; Inductor decides by the convolutions in a graph, and a segment of backward
      has none;
    - a sum of several gradients of an image is stored before the norm that reads it twice; by default Inductor computes
      the sum twice, from tensors in mixed layouts.
    """
    plain = {"cpp_wrapper": False, "triton.cudagraphs": False}
    convolves = traced.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution_backward.default)
    if not convolves or device.type != "cpu":
        return plain
    last = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
    return {**plain, "realize_reads_threshold": _FEW_READS, "force_layout_optimization": last}


class Pooling(NamedTuple):
    """Operators of Inductor for pooling by maxima.

    Attributes:
        with_offsets: Like max_pool2d_with_indices (and 3d), but with positions in windows, as i8.
        to_indices: Converts positions in windows to positions in the image.
    """

    with_offsets: OpOverload
    to_indices: OpOverload


def pooling() -> Pooling:
    """Return Inductor's operators for pooling by maxima."""
    from torch._inductor import inductor_prims

    prims: Any = inductor_prims
    return Pooling(prims._low_memory_max_pool_with_offsets, prims._low_memory_max_pool_offsets_to_indices)


def has_been_compiled(tag: str) -> bool:
    """Return whether this version of torch has compiled a graph with this tag on this machine. Its cache may have been
    emptied since; then the graph is compiled again."""
    return _mark(tag).exists()


def file_beside(tag: str, name: str) -> Path:
    """Return the path of a file about a compiled graph, beside Inductor's cache on disk."""
    return _mark(f"{tag}-{name}")


def _mark(tag: str) -> Path:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir()) / "remate" / f"{torch.__version__}-{_KERNELS}-{tag}"


def processes() -> int:
    """Return how many processes Inductor may use to compile; 1 if this process must not start others."""
    from torch._inductor import config
    from torch._inductor.compile_worker.utils import in_toplevel_process

    settings: Any = config
    return (settings.compile_threads or 1) if in_toplevel_process() else 1


def compile_side_by_side(jobs: Sequence[tuple[object, ...]], count: int) -> Iterator[str]:
    """Compile graphs in other processes. A graph that fails there is compiled in this process when it is needed.

    Args:
        jobs: Arguments of `compiled`.
        count: Number of processes.

    Yields:
        For each finished job the reason why it failed, or "".
    """
    from torch._inductor import config
    from torch._inductor.compile_worker.subproc_pool import SubprocKind, SubprocPool

    settings: Any = config
    each = max(1, (settings.compile_threads or 1) // count)
    about = torch.get_num_threads(), {**settings.save_config_portable(), "compile_threads": each}
    pool = SubprocPool(count, kind=SubprocKind.FORK)
    _notice_its_end(pool)
    with _without_messages(SubprocPool.__module__):
        try:
            waited = [pool.submit(_compile_here, about, pickle.dumps(job)) for job in jobs]
            for future in as_completed(waited):
                error = RuntimeError(_ENDED) if future.cancelled() else future.exception()
                yield "" if error is None else str(error).strip().splitlines()[-1]
        except (OSError, RuntimeError):
            yield _ENDED
        finally:
            pool.shutdown()
            with suppress(OSError):  # what it still had to write
                pool.write_pipe.close()
            pool.process.poll()


def _notice_its_end(pool: SubprocPool) -> None:
    """Close this process's copies of the ends of the pipes that a child uses.

    Up to torch 2.13, the pool keeps them open, and would wait forever for a child that ends early: for example because
    a file beside the script, such as `types.py`, replaces a module of the standard library there. From 2.14 on, the
    numbers in the child's options may be those of other files.
    """
    arguments: Any = pool.process.args  # a list here, of the types that the class takes
    options = {name: value for name, _, value in (str(argument).partition("=") for argument in arguments)}
    for option, other_end in (("--read-fd", pool.write_pipe), ("--write-fd", pool.read_pipe)):
        end = int(options[option])
        with suppress(OSError):  # there is no such file
            if os.path.samestat(os.fstat(end), os.fstat(other_end.fileno())):
                os.close(end)


@contextmanager
def _without_messages(logger: str) -> Generator[None]:
    """Let no messages of a logger through: the reason of a failure is returned."""
    log = logging.getLogger(logger)
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _compile_here(about: tuple[int, dict[str, Any]], job: bytes) -> None:
    """Compile a job in a process of `compile_side_by_side`.

    Args:
        about: Number of threads and Inductor's settings in the parent process.
        job: Pickled arguments of `compiled`. Its operators must be registered before it is unpickled.
    """
    from torch._inductor import config

    pooling()
    settings: Any = config
    torch.set_num_threads(about[0])
    with settings.patch(about[1]):
        compiled(*pickle.loads(job))


def _retraced(
    module: fx.GraphModule, examples: list[Any], output_types: Sequence[TensorType], free: Collection[int]
) -> fx.GraphModule:
    """Decompose the graph to operators that Inductor lowers, and apply the passes that torch.compile applies to a joint
    graph: for example, a scattered gradient of a loss becomes a comparison. Outputs that are not free get the declared
    strides."""
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch.fx.experimental.proxy_tensor import make_fx

    class Blaming(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            try:
                return super().run_node(n)
            except Exception as error:
                raise DoesNotCompileError(str(error), named(n.target)) from error

    interpreter = Blaming(module)

    def run(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pairs = enumerate(zip(interpreter.run(*given), output_types, strict=True))
        return tuple(result if at in free else with_strides_of(result, kind) for at, (result, kind) in pairs)

    traced = make_fx(run, decomposition_table=select_decomp_table())(*examples)
    before, after = (traced_module.graph.find_nodes(op="placeholder") for traced_module in (module, traced))
    for old, new in zip(before, after, strict=True):
        new.target = new.name = old.name
    traced.graph.eliminate_dead_code()
    traced = joint_graph_passes(traced)
    traced.recompile()
    output = traced.graph.output_node()
    output.meta["user_visible_output_idxs"] = [at for at in range(len(output_types)) if at not in free]
    return traced


def named(operator: object) -> str:
    """Return the operator's name in schedule files."""
    return str(operator).removesuffix(".default")


def with_strides_of(tensor: torch.Tensor, kind: TensorType) -> torch.Tensor:
    """Return a tensor with the strides of its type, as a copy if its strides differ."""
    if tuple(tensor.shape) != kind.shape or laid_out(tensor, kind):
        return tensor
    strides = kind.strides or tuple(range(tensor.dim()))[::-1]
    order = sorted(range(tensor.dim()), key=lambda at: -strides[at])
    back = [order.index(at) for at in range(tensor.dim())]
    return tensor.permute(order).clone(memory_format=torch.contiguous_format).permute(back)


def _check(traced: fx.GraphModule, output_types: Sequence[TensorType], free: Collection[int]) -> None:
    if any(node.op == "get_attr" for node in traced.graph.nodes):
        raise DoesNotCompileError("it has a constant, whose storage is not the step's")
    nodes: Any = traced.graph.output_node().args[0]
    for at, (node, kind) in enumerate(zip(nodes, output_types, strict=True)):
        result = node.meta["val"]
        fits = at in free or laid_out(result, kind)
        if result.dtype is not TORCH_DTYPES[kind.dtype] or tuple(result.shape) != kind.shape or not fits:
            raise DoesNotCompileError(f"a result is {described(result)}, the file declares {kind}")
