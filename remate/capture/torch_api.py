"""Every unstable PyTorch interface that capture uses, and nothing else. Tried with torch 2.11 to 2.15.

AOTAutograd traces the model, without torch.export, which records only `forward` and would silently lose the backward of
custom autograd functions.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Generator, Sequence
from typing import Any

import msgspec
import torch
import torch._functorch.config
import torch._library.simple_registry
import torch.fx.traceback as node_meta
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.fx import Node
from torch.utils import _pytree as _pytree
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from remate_runtime.torch_private.fake_tensors import quiet_meta_failures

from ..errors import CaptureError
from .branches import Branches
from .eager_kernels import eager_kernels
from .facts import is_operator
from .hot_paths import hot_paths
from .known_values import known_values
from .layouts import real_layouts
from .places import SourcePlace
from .remembered import remembered

OLDEST, NEWEST = (2, 11), (2, 15)
_MODULE_KEY = "remate"

# kinds of inputs and outputs of a joint graph
PARAMETER, BUFFER, INPUT, TANGENT = "parameter", "buffer", "input", "tangent"
OUTPUT, MUTATION, GRADIENT = "output", "mutation", "gradient"

DATA_DEPENDENT = (DataDependentOutputException, DynamicOutputShapeException)
NO_FAKE = (UnsupportedOperatorException,)
ONE_OF_TWO = "let the model hold one of them, and derive the other in forward (self.table.view(2, 4), self.table[:4])"


class Port(msgspec.Struct, frozen=True):
    """An input or output of the joint graph. kind: see above. key: parameter or buffer name, input or output index;
    of a MUTATION or GRADIENT, the Port of the input that it belongs to."""

    kind: str
    key: Any


class Traced(msgspec.Struct, frozen=True):
    """A traced step. module: the joint graph, functional ATen. inputs: by placeholder name. outputs: (port, node); the
    node is None if absent."""

    module: torch.fx.GraphModule
    inputs: dict[str, Port]
    outputs: list[tuple[Port, Node | None]]


def check_version() -> None:
    release = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if not OLDEST <= release <= NEWEST:
        known = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
        warnings.warn(f"capture was tried with torch {known}, not with {torch.__version__}", UserWarning, stacklevel=3)


def is_fake(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FakeTensor)


def is_subclass(tensor: torch.Tensor) -> bool:
    """Whether a tensor wraps others (DTensor, quantised weights), which have no plain ATen graph."""
    return is_traceable_wrapper_subclass(tensor)


def nodes_below(outputs: Sequence[torch.Tensor]) -> set[Any]:
    """Return the autograd nodes that outputs follow from, with their own."""
    nodes, left = set[Any](), list[Any](tensor.grad_fn for tensor in outputs)
    while left:
        node = left.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            left += [below for below, _ in node.next_functions]
    return nodes


@contextlib.contextmanager
def tracing(mode: FakeTensorMode, branches: Branches, rates_vary: bool, stepwise: bool) -> Generator[None]:
    """Patch torch for a trace with tensors of `mode`. rates_vary, stepwise: see `eager_kernels`."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(node_meta.preserve_node_meta())
        for context in (
            torch.inference_mode(False),
            torch.enable_grad(),
            branches.answered(),
            _full_precision(),
            eager_kernels(rates_vary, stepwise),
            _without_checks(),
            quiet_meta_failures(),
            hot_paths(),
            real_layouts(mode),
            remembered(mode),
            known_values(mode),
            _gradients_as_outputs(),
        ):
            stack.enter_context(context)
        yield


def mode_of(step: torch.nn.Module, leaves: list[torch.Tensor]) -> FakeTensorMode:
    """Return the FakeTensorMode of the step's tensors, or a new one."""
    mode = detect_fake_mode([*leaves, *step.parameters(), *step.buffers()])
    return mode or FakeTensorMode(allow_non_fake_inputs=True)


def fake(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    copy = tensor if is_fake(tensor) else mode.from_tensor(tensor.detach(), static_shapes=True)
    return copy.detach().requires_grad_(tensor.requires_grad)


@contextlib.contextmanager
def functional(mode: FakeTensorMode) -> Generator[Callable[[torch.Tensor], torch.Tensor]]:
    """Enter the modes in which forward is traced. Yields a function that converts fake tensors to functional ones."""
    from torch._functorch._aot_autograd.functional_utils import to_fun
    from torch._subclasses.functional_tensor import FunctionalTensorMode

    above = torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize))
    with mode, above, FunctionalTensorMode(_allow_token_discovery=True):
        yield to_fun


def joint(step: torch.nn.Module, leaves: list[torch.Tensor]) -> Traced:
    """Trace the joint forward and backward graph of `step(*leaves)`. Call it within `tracing`, with fake leaves. It may
    raise any exception of torch."""
    from torch._decomp.decompositions_for_rng import PhiloxStateTracker
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

    try:
        with contextlib.ExitStack() as stack:
            exported = aot_export_joint_with_descriptors(stack, step, tuple(leaves))
    finally:
        PhiloxStateTracker.reset()  # it keeps fake tensors, their mode, and weak references to the model's tensors
    return read(exported.graph_module)


def read(graph: torch.fx.GraphModule) -> Traced:
    """Read the inputs and outputs of a joint graph."""
    inputs = {node.name: _input(node.meta["desc"]) for node in graph.graph.find_nodes(op="placeholder")}
    output = graph.graph.output_node()
    descriptors = output.meta["desc"]
    results: Any = output.args[0]
    pairs = zip(descriptors, results, strict=True)
    return Traced(graph, inputs, [(_output(desc), node) for desc, node in pairs if desc is not None])


def _gradients_as_outputs() -> contextlib.AbstractContextManager[None]:
    """Give gradients of outputs the strides of the outputs, which is not the default before torch 2.12."""
    settings: Any = torch._functorch.config
    return settings.patch(guess_tangent_strides_as_outputs=True)


@contextlib.contextmanager
def _full_precision() -> Generator[None]:
    """Disable ambient autocast. The step enters it around forward only, as the user does."""
    with contextlib.ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextlib.contextmanager
def _without_checks() -> Generator[None]:
    """Disable checks of values, which depend on data: arguments of distributions, success of a factorisation."""
    distribution: Any = torch.distributions.Distribution
    saved = distribution._validate_args
    holder: Any = getattr(torch._library.simple_registry.singleton.find("aten::_linalg_check_errors"), "effect", None)
    effect = getattr(holder, "effect", None)
    distribution.set_default_validate_args(False)
    if effect is not None:
        holder.register(None)
    try:
        yield
    finally:
        distribution.set_default_validate_args(saved)
        if effect is not None:
            holder.register(effect)


@contextlib.contextmanager
def no_higher_order(refuse: Callable[[str], None]) -> Generator[None]:
    """Calls `refuse(name)` if forward uses an operator that takes functions or whole graphs (cond, while_loop, …)."""
    kind: Any = torch._ops.HigherOrderOperator
    usual = kind.__call__

    def called(self: object, *args: object, **kwargs: object) -> Any:
        name = str(self)
        if name != "custom_function_call":  # an autograd.Function under vmap: traced through
            inner = next((a for a in args if is_operator(a)), None)
            refuse(f"{inner} (through {name})" if inner is not None else name)
        return usual(self, *args, **kwargs)

    kind.__call__ = called
    try:
        yield
    finally:
        kind.__call__ = usual


def mark(module: str, place: SourcePlace) -> None:
    """Mark the operations traced from now on with this module and line."""
    if node_meta.has_preserved_node_meta():
        node_meta.get_current_meta()["nn_module_stack"] = {_MODULE_KEY: (module, place)}


def unmark() -> None:
    if node_meta.has_preserved_node_meta():
        node_meta.get_current_meta().pop("nn_module_stack", None)


def marked(node: Node) -> tuple[str, SourcePlace] | None:
    """Return (module, place) of a forward node."""
    return _marked(node.meta)


def moved(meta: dict[str, Any], path: str, to: str) -> None:
    """Move the marked module of a node from below `path` to below `to`."""
    marked_place = _marked(meta)
    if marked_place is not None:
        module, place = marked_place
        meta["nn_module_stack"] = {_MODULE_KEY: (to + module.removeprefix(path), place)}


def _marked(meta: dict[str, Any]) -> tuple[str, SourcePlace] | None:
    marks: dict[str, Any] | None = meta.get("nn_module_stack")
    return marks.get(_MODULE_KEY) if marks else None


def is_backward(node: Node) -> bool:
    return node.meta.get("partitioner_tag") == "is_backward"


def sequence(node: Node) -> int | None:
    """Return the number that a backward node shares with its forward node; None for sums of gradients."""
    if node.meta.get("is_gradient_acc") or "Gradient addition" in (node.stack_trace or ""):
        return None
    return node.meta.get("seq_nr")


def _input(descriptor: Any) -> Port:
    kind = type(descriptor).__name__
    if kind == "ParamAOTInput":
        return Port(PARAMETER, descriptor.target)
    if kind == "BufferAOTInput":
        return Port(BUFFER, descriptor.target)
    if kind == "PlainAOTInput":
        return Port(INPUT, descriptor.idx)
    if kind == "TangentAOTInput":
        return Port(TANGENT, _output(descriptor.output).key)
    if kind == "ViewBaseAOTInput":
        shared = descriptor.base_of
        name = repr(shared.target.removeprefix("model.")) if hasattr(shared, "target") else "an input"
        raise CaptureError(f"forward writes into memory that {name} shares with another tensor", hint=ONE_OF_TWO)
    raise CaptureError(f"the traced step has an unknown kind of input: {descriptor}", hint="please report the model")


def _output(descriptor: Any) -> Port:
    kind = type(descriptor).__name__
    if kind == "PlainAOTOutput":
        return Port(OUTPUT, descriptor.idx)
    if kind in ("InputMutationAOTOutput", "MetadataMutationAOTOutput"):
        return Port(MUTATION, _input(descriptor.mutated_input))
    if kind == "GradAOTOutput":
        return Port(GRADIENT, _input(descriptor.grad_of))
    raise CaptureError(f"the traced step has an unknown kind of output: {descriptor}", hint="please report the model")
