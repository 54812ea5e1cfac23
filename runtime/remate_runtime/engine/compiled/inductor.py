"""Every unstable interface of PyTorch that the compiled engine uses (with `kernel_units`), and nothing else. Tried with torch 2.13 alone."""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import suppress
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._ops import OpOverload

from ...format.tensor_type import TensorType
from ...kernels.cache_folder import NAME
from ...kernels.overloads import TORCH_DTYPES, described, empty, laid_out
from .kernel_units import in_units

OLDEST, NEWEST = (2, 13), (2, 13)
_CPU = torch.device("cpu")
_FEW_READS = 2  # Inductor's own: 4
_NOTHING = frozenset({torch.ops.aten.empty_strided.default, torch.ops.aten.empty.memory_format})

Compiled = Callable[[list[Any]], Sequence[torch.Tensor]]  # empties the list of its arguments


class DoesNotCompileError(Exception):
    """A segment that Inductor would not give as the file declares it. operator: the name in files of the one that is to blame, ""
    if that is not known."""

    def __init__(self, message: str, operator: str = "") -> None:
        super().__init__(message)
        self.operator = operator


def unavailable() -> str:
    """Why nothing can be compiled here, as a sentence; "" if it can."""
    release = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if not OLDEST <= release <= NEWEST:
        known = " to ".join(sorted({f"{a}.{b}" for a, b in (OLDEST, NEWEST)}))
        return f"compiled steps were tried with torch {known}, not with {torch.__version__}"
    try:
        from torch._inductor.cpp_builder import get_cpp_compiler

        get_cpp_compiler()
    except Exception:  # what torch raises where it finds none has no stable type
        return "torch finds no C++ compiler (g++ or clang++; the variable CXX names another)"
    return ""


def folder() -> str:
    """Where Inductor keeps what it compiles. (What else there is to ask for it makes it, and fails where that cannot be.)"""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    return os.environ.get(NAME) or default_cache_dir()


def forget() -> None:
    """What Inductor has read from its folder, or failed to."""
    from torch._inductor.utils import clear_caches

    clear_caches()


def compiled(
    module: fx.GraphModule,
    takes: Sequence[TensorType],
    gives: Sequence[TensorType],
    donated: Sequence[int],
    free: Collection[int],
    tag: str,
) -> Compiled:
    """`module` as Inductor compiles it, on the CPU. takes, gives: types of its inputs and outputs. donated: numbers of the
    inputs that it may write over. free: numbers of the outputs that it may lay out as it likes. tag: equal only for equal
    arguments; it keys what Inductor keeps on disk.

    Raises DoesNotCompileError, and whatever Inductor raises.
    """
    from torch._functorch import config as functorch_config
    from torch._guards import TracingContext, tracing
    from torch._inductor import config as inductor_config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
    from torch.utils._python_dispatch import _disable_current_modes

    config: Any = torch.compiler.config
    functorch: Any = functorch_config
    inductor: Any = inductor_config
    mode = FakeTensorMode(shape_env=ShapeEnv())  # without one, functions are not kept on disk
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad(), torch._C._DisableAutocast():
        with mode:
            examples = [empty(kind, _CPU) for kind in takes]
            traced = _retraced(module, examples, gives, free)
        _check(traced, gives, free)
        context: Any = TracingContext(mode)
        context.fw_metadata = SimpleNamespace(bw_donated_idxs=list(donated), static_input_indices=[])
        with (
            tracing(context),
            config.patch(cache_key_tag=f"remate {tag}"),
            inductor.patch(_settings(traced)),
            functorch.patch(bundled_autograd_cache=False),  # nor with that
            warnings.catch_warnings(action="ignore"),
            in_units(),
        ):
            # Only what is compiled as a backward graph has inputs that it may write over.
            found: Any = compile_fx_inner(traced, examples, is_backward=True, static_input_idxs=())
    with suppress(OSError):
        _mark(tag).parent.mkdir(parents=True, exist_ok=True)
        _mark(tag).touch()
    return found


def _settings(traced: fx.GraphModule) -> dict[str, Any]:
    """Of Inductor, for this graph. Where several gradients of an image meet, their sum is made once for the norm before it, which
    reads it twice; otherwise it is added up twice, from what a pooling and a concatenation leave in other layouts."""
    convolves = traced.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution_backward.default)
    return {"realize_reads_threshold": _FEW_READS} if convolves else {}


class Pooling(NamedTuple):
    """with_offsets: as max_pool2d_with_indices (and 3d), with places in windows instead of places in the image, as i8.
    to_indices: those from these."""

    with_offsets: OpOverload
    to_indices: OpOverload


def pooling() -> Pooling:
    """The operators in which Inductor pools."""
    from torch._inductor.inductor_prims import (
        _low_memory_max_pool_offsets_to_indices,
        _low_memory_max_pool_with_offsets,
    )

    return Pooling(_low_memory_max_pool_with_offsets, _low_memory_max_pool_offsets_to_indices)


def has_been_compiled(tag: str) -> bool:
    """Whether `compiled` has been called with this tag on this machine, by this torch, so that Inductor's cache has it. Where
    that has been emptied since, it is compiled again."""
    return _mark(tag).exists()


def _mark(tag: str) -> Path:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir()) / "remate" / f"{torch.__version__}-{tag}"


def processes() -> int:
    """How many Inductor may start to compile; 1 in a process that must start none."""
    from torch._inductor import config
    from torch._inductor.compile_worker.utils import in_toplevel_process

    settings: Any = config
    return (settings.compile_threads or 1) if in_toplevel_process() else 1


def compile_side_by_side(jobs: Sequence[tuple[Any, ...]], count: int) -> Iterator[str]:
    """jobs: arguments of `compiled`, which other processes call, so many at a time. Yields, for each that is done, why it
    failed, or "". What failed is left to the call of `compiled` in this process."""
    from torch._inductor import config
    from torch._inductor.compile_worker.subproc_pool import SubprocKind, SubprocPool

    settings: Any = config
    each = max(1, (settings.compile_threads or 1) // count)
    about = torch.get_num_threads(), {**settings.save_config_portable(readonly_values=True), "compile_threads": each}
    pool = SubprocPool(count, kind=SubprocKind.FORK)
    try:
        waited = [pool.submit(_compile_here, about, pickle.dumps(job)) for job in jobs]
        for one in as_completed(waited):
            error = RuntimeError("the process ended") if one.cancelled() else one.exception()
            yield "" if error is None else str(error).strip().splitlines()[-1]
    finally:
        pool.shutdown()


def _compile_here(about: tuple[int, dict[str, Any]], job: bytes) -> None:
    """about: threads of kernels, and Inductor's settings, as they are in the process that asks. job: as pickled there; it can be
    read when the operators that it names are known."""
    from torch._inductor import config

    pooling()
    settings: Any = config
    torch.set_num_threads(about[0])
    with settings.patch(about[1]):
        compiled(*pickle.loads(job))


def _retraced(
    module: fx.GraphModule, examples: list[Any], gives: Sequence[TensorType], free: Collection[int]
) -> fx.GraphModule:
    """The graph in the operators that Inductor lowers, as torch.compile simplifies a forward and its backward before it cuts them
    apart: a scattered gradient of a loss becomes a comparison. What is not free is laid out as declared."""
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch.fx.experimental.proxy_tensor import make_fx

    class Blaming(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            try:
                return super().run_node(n)
            except Exception as error:
                raise DoesNotCompileError(str(error), _named(n.target)) from error

    interpreter = Blaming(module)

    def run(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pairs = enumerate(zip(interpreter.run(*given), gives, strict=True))
        return tuple(made if at in free else relaid(made, kind) for at, (made, kind) in pairs)

    traced = make_fx(run, decomposition_table=select_decomp_table())(*examples)
    before, after = (one.graph.find_nodes(op="placeholder") for one in (module, traced))
    for old, new in zip(before, after, strict=True):
        new.target = new.name = old.name
    traced.graph.eliminate_dead_code()
    traced = joint_graph_passes(traced)
    traced.recompile()
    output = traced.graph.output_node()
    output.meta["user_visible_output_idxs"] = [at for at in range(len(gives)) if at not in free]
    return traced


def _named(operator: Any) -> str:
    """As files name it."""
    return str(operator).removesuffix(".default")


def relaid(made: torch.Tensor, kind: TensorType) -> torch.Tensor:
    """A result with the strides of its type, as a copy where it has others."""
    if tuple(made.shape) != kind.shape or laid_out(made, kind):
        return made
    strides = kind.strides or tuple(range(made.dim()))[::-1]
    order = sorted(range(made.dim()), key=lambda at: -strides[at])
    back = [order.index(at) for at in range(made.dim())]
    return made.permute(order).clone(memory_format=torch.contiguous_format).permute(back)


def _check(traced: fx.GraphModule, gives: Sequence[TensorType], free: Collection[int]) -> None:
    if any(node.op == "get_attr" for node in traced.graph.nodes):
        raise DoesNotCompileError("it has a constant, whose storage is not the step's")
    nodes: Any = traced.graph.output_node().args[0]
    for at, (node, kind) in enumerate(zip(nodes, gives, strict=True)):
        made = node.meta["val"]
        lies = at in free or laid_out(made, kind)
        if made.dtype is not TORCH_DTYPES[kind.dtype] or tuple(made.shape) != kind.shape or not lies:
            raise DoesNotCompileError(f"a result is {described(made)}, the file declares {kind}")


class Held(NamedTuple):
    """What a compiled function holds while it runs, beyond what others hold. peak: bytes at the worst moment; what it is given
    to own counts. made: bytes of the storage of every result. shared: results that do not have a storage of their own, or not
    all of it. gives: types of the results as they lie."""

    peak: int
    made: tuple[int, ...]
    shared: tuple[int, ...]
    gives: tuple[TensorType, ...]


class Ran(NamedTuple):
    """What an operator did on made-up data. workspace: bytes that it took while it ran. strides: of the tensors that it returned."""

    workspace: int
    strides: tuple[tuple[int, ...], ...]


Run = Callable[[Any, Any, Any], Ran]  # operator, args, kwargs, with tensors without data among them


def held(
    function: Compiled,
    takes: Sequence[TensorType],
    gives: Sequence[TensorType],
    donated: Sequence[int],
    owned: Collection[int],
    run: Run,
) -> Held:
    """What `function` will hold, without running it: Inductor's own wrapper, on tensors without data and without kernels.

    takes, gives, donated: as of `compiled`. owned: numbers of the inputs that nobody else holds, donated or not. Raises
    DoesNotCompileError for an operator that fails on made-up data or lays its results out otherwise than torch foresaw, and
    whatever the wrapper does where it is not what it was in the versions that this was tried with.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

    storages = _Storages()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            found = list(_tensors(made))
            storages.note(found)
            if func not in _NOTHING and not func.is_view:
                storages.note(found, needed(func, args, kwargs or {}, found))
            return made

    def needed(func: Any, args: Any, kwargs: Any, found: list[torch.Tensor]) -> int:
        with _disable_current_modes():
            try:
                ran = run(func, args, kwargs)
            except Exception as error:
                raise DoesNotCompileError(f"on made-up data it raises {error}", _named(func)) from error
        if not all(map(_as_foreseen, found, ran.strides)):
            raise DoesNotCompileError("torch foresees another layout of its result", _named(func))
        return ran.workspace

    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad(), FakeTensorMode():
        given = [empty(kind, _CPU) for kind in takes]
        kept = [tensor for at, tensor in enumerate(given) if at not in owned]
        storages.others.update(_key(tensor) for tensor in kept)
        storages.note([tensor for at, tensor in enumerate(given) if at in owned])
        taken = {_key(tensor) for at, tensor in enumerate(given) if at not in donated}
        with Watch():
            made = list(_without_kernels(function)(given))
    shared: list[int] = []
    for at in sorted(range(len(made)), key=lambda at: -made[at].nbytes):
        key, storage = _key(made[at]), made[at].untyped_storage()
        if storage.nbytes() and (key in taken or storage.nbytes() > made[at].nbytes):
            shared.append(at)
        taken.add(key)
    sizes = [t.nbytes if at in shared else t.untyped_storage().nbytes() for at, t in enumerate(made)]
    copies = sum(made[at].nbytes for at in shared)
    lie = tuple(_type(*pair) for pair in zip(made, gives, strict=True))
    return Held(max(storages.peak, storages.level() + copies), tuple(sizes), tuple(sorted(shared)), lie)


def _as_foreseen(made: torch.Tensor, strides: tuple[int, ...]) -> bool:
    """made: without data. strides: of the same tensor from the operator itself. Inductor's code asserts that they are equal."""
    pairs = zip(made.shape, made.stride(), strides, strict=True)
    return not made.numel() or all(size <= 1 or one == other for size, one, other in pairs)


def _type(made: torch.Tensor, kind: TensorType) -> TensorType:
    return kind if laid_out(made, kind) else TensorType(kind.dtype, kind.shape, tuple(made.stride()), kind.cpu)


class _Storages:
    """Bytes of the storages that have been noted and still exist."""

    def __init__(self) -> None:
        self.peak = 0
        self.others: set[int] = set()  # held outside
        self._known: dict[int, tuple[Any, int]] = {}

    def level(self) -> int:
        self._known = {key: one for key, one in self._known.items() if not one[0].expired()}
        return sum(nbytes for _, nbytes in self._known.values())

    def note(self, tensors: Iterable[torch.Tensor], workspace: int = 0) -> None:
        from torch.multiprocessing.reductions import StorageWeakRef

        for tensor in tensors:
            storage = tensor.untyped_storage()
            reference = StorageWeakRef(storage)
            known = self._known.get(reference.cdata)
            if reference.cdata not in self.others and (known is None or known[0].expired()):
                self._known[reference.cdata] = reference, storage.nbytes()
        self.peak = max(self.peak, self.level() + workspace)


def _key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _tensors(given: Any) -> Iterator[torch.Tensor]:
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, list | tuple):
        for one in given:
            yield from _tensors(one)


def _without_kernels(function: Any) -> Compiled:
    """The Python code that Inductor wrote around its kernels, with kernels that do nothing."""
    runner = getattr(function, "compiled_fn_runner", None)
    if runner is None:  # without any operation there is no such code
        return function
    call = type(runner).call
    names = dict(call.__globals__)
    nothing = lambda *given, **named: None  # noqa: E731
    for name in names:
        if name.startswith(("cpp_fused", "assert_")):
            names[name] = nothing
    names["empty_strided_cpu"] = lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype)
    names["reinterpret_tensor"] = lambda t, size, stride, offset: t.as_strided(
        size, stride, t.storage_offset() + offset
    )
    copy = FunctionType(call.__code__, names)
    return lambda given: copy(runner, given)
