"""Every unstable interface of PyTorch that the compiled engine uses, and nothing else. Tried with torch 2.13 alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import fx

from ...format.tensor_type import TensorType
from ...kernels.overloads import TORCH_DTYPES, described, empty, laid_out

OLDEST, NEWEST = (2, 13), (2, 13)
_CPU = torch.device("cpu")

Compiled = Callable[[list[Any]], Sequence[torch.Tensor]]  # empties the list of its arguments


class DoesNotCompileError(Exception):
    """A segment that Inductor would not give as the file declares it."""


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


def compiled(
    module: fx.GraphModule, takes: Sequence[TensorType], gives: Sequence[TensorType], donated: Sequence[int], tag: str
) -> Compiled:
    """`module` as Inductor compiles it, on the CPU. takes, gives: types of its inputs and outputs. donated: numbers of the
    inputs that it may write over. tag: equal only for equal arguments; it keys what Inductor keeps on disk.

    Raises DoesNotCompileError, and whatever Inductor raises.
    """
    from torch._guards import TracingContext, tracing
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import _disable_current_modes

    config: Any = torch.compiler.config
    mode = FakeTensorMode()
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad(), torch._C._DisableAutocast():
        with mode:
            examples = [empty(kind, _CPU) for kind in takes]
            traced = _retraced(module, examples)
        _check(traced, gives)
        context: Any = TracingContext(mode)
        context.fw_metadata = SimpleNamespace(bw_donated_idxs=list(donated), static_input_indices=[])
        with (
            tracing(context),
            config.patch(cache_key_tag=f"remate {tag}"),
            warnings.catch_warnings(action="ignore"),
        ):
            # Only what is compiled as a backward graph has inputs that it may write over.
            found: Any = compile_fx_inner(traced, examples, is_backward=True, static_input_idxs=(), layout_opt=False)
    return found


def _retraced(module: fx.GraphModule, examples: list[Any]) -> fx.GraphModule:
    """The graph in the operators that Inductor lowers."""
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    run = fx.Interpreter(module).run
    traced = make_fx(lambda *given: run(*given), decomposition_table=select_decomp_table())(*examples)
    before, after = (one.graph.find_nodes(op="placeholder") for one in (module, traced))
    for old, new in zip(before, after, strict=True):
        new.target = new.name = old.name
    traced.graph.eliminate_dead_code()
    traced.recompile()
    output = traced.graph.output_node()
    output.meta["user_visible_output_idxs"] = list(range(len(output.args[0])))  # type: ignore[arg-type]
    return traced


def _check(traced: fx.GraphModule, gives: Sequence[TensorType]) -> None:
    nodes: Any = traced.graph.output_node().args[0]
    for node, kind in zip(nodes, gives, strict=True):
        made = node.meta["val"]
        if made.dtype is not TORCH_DTYPES[kind.dtype] or tuple(made.shape) != kind.shape or not laid_out(made, kind):
            raise DoesNotCompileError(f"a result is {described(made)}, the file declares {kind}")
