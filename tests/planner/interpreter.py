"""A reference interpreter of captured graphs, which runs every operation in order and frees nothing, compared to eager."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from remate.capture import trees
from remate.capture.capture_step import capture
from remate.capture.captured import Captured
from remate_runtime.flat_step.graph import Ref
from remate_runtime.format.signature import output_leaves
from remate_runtime.format.tensor_type import DTYPES, TensorType
from remate_runtime.operator_calls import kernel


def overload(op: str) -> Any:
    space, name, *rest = op.split(".")
    return getattr(getattr(getattr(torch.ops, space), name), rest[0] if rest else "default")


def live(argument: Any, values: list[Any]) -> Any:
    """An argument in the form that the operator takes."""
    if isinstance(argument, Ref):
        assert values[argument.value] is not None, f"value {argument.value} is not there"
        return values[argument.value]
    if isinstance(argument, tuple):
        return [live(a, values) for a in argument]
    if isinstance(argument, dict):
        ((key, value),) = argument.items()
        spell = {
            "dtype": lambda v: getattr(torch, DTYPES[v][0]),
            "device": lambda v: torch.device("cpu"),
            "layout": lambda v: getattr(torch, v),
            "memory_format": lambda v: getattr(torch, v),
            "float": float,
            "complex": lambda v: complex(*v),
        }
        return spell[key](value)
    return argument


def laid_out(tensor: torch.Tensor, kind: TensorType) -> torch.Tensor:
    """The tensor with the strides of a type, which may expand it."""
    if kind.strides is None:
        return tensor
    result = torch.empty_strided(kind.shape, kind.strides, dtype=tensor.dtype)
    once = tuple(slice(None) if stride else slice(1) for stride in kind.strides)
    result[once] = tensor[once]
    return result


class Interpreter:
    """One step of a captured model on the CPU."""

    def __init__(self, captured: Captured, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.captured, self.graph = captured, captured.graph
        named = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
        leaves = [*trees.tensors(args), *trees.tensors(kwargs)]
        inputs = {leaf.name: t for leaf, t in zip(_input_leaves(captured), leaves, strict=True)}
        self.values: list[Any] = [None] * len(self.graph.values)
        for at, value in enumerate(self.graph.values):
            if value.kind == "constant":
                data = [live(x, []) for x in value.data or ()]
                dtype = getattr(torch, DTYPES[value.type.dtype][0])
                self.values[at] = laid_out(torch.tensor(data, dtype=dtype).reshape(value.type.shape), value.type)
            elif value.kind in ("parameter", "buffer"):
                self.values[at] = named.get(value.name, None)
                if self.values[at] is None:
                    self.values[at] = _attribute(model, value.name)
                self.values[at] = self.values[at].detach().clone()
            elif value.kind == "input":
                self.values[at] = inputs[value.name].detach()

    def _run(self, first: int, last: int) -> None:
        for op in self.graph.operations[first:last]:
            args = live(op.args, self.values)
            kwargs = {k: live(v, self.values) for k, v in op.kwargs.items()}
            result = kernel(op.op, overload(op.op))(*args, **kwargs)
            outputs = result if op.multiple else (result,)
            for at, tensor in zip(op.writes, outputs, strict=True):
                if at is not None:
                    _check_type(op.id, tensor, self.graph.values[at].type)
                    self.values[at] = tensor

    @torch.no_grad()
    def forward(self) -> list[torch.Tensor]:
        """Output leaves in order."""
        self._run(0, self.graph.backward_start)
        by_name = {v.name: at for at, v in enumerate(self.graph.values)}
        return [self.values[by_name[leaf.text[1:]]] for leaf in output_leaves(self.captured.model.outputs)]

    @torch.no_grad()
    def backward(self, tangents: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Gradients by name of the parameter or input. tangents: by output name."""
        for at, value in enumerate(self.graph.values):
            if value.kind == "tangent":
                tangent = tangents[value.name.removeprefix("grad.")]
                if value.type.strides is not None:  # a step takes gradients in the layout that it was captured for
                    tangent = torch.empty_strided(value.type.shape, value.type.strides, dtype=tangent.dtype).copy_(
                        tangent
                    )
                self.values[at] = tangent
        self._run(self.graph.backward_start, len(self.graph.operations))
        return {self.graph.values[s].name: self.values[g] for s, g in self.graph.gradients}

    def updates(self) -> dict[str, torch.Tensor]:
        return {self.graph.values[b].name: self.values[v] for b, v in self.graph.updates}


def _check_type(op: str, tensor: torch.Tensor, kind: Any) -> None:
    assert tuple(tensor.shape) == kind.shape, (op, tensor.shape, kind)
    assert tensor.dtype == getattr(torch, DTYPES[kind.dtype][0]), (op, tensor.dtype, kind)


def _input_leaves(captured: Captured) -> list[Any]:
    from remate_runtime.format.signature import input_leaves

    return list(input_leaves(captured.model.inputs))


def _attribute(model: nn.Module, name: str) -> torch.Tensor:
    prefix, _, last = name.rpartition(".")
    return getattr(model.get_submodule(prefix), last)


def state(model: nn.Module) -> dict[str, Any]:
    """All state of a model that capture must not change."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    by_name: dict[str, Any] = {n: (id(t), t.detach().clone(), t.requires_grad, t.grad) for n, t in tensors.items()}
    for name, module in model.named_modules():
        by_name[f"{name}()"] = (module.training, sorted(map(str, module.__dict__)), len(module._forward_hooks))
        by_name[f"{name}:"] = {k: id(v) for k, v in module.__dict__.items() if isinstance(v, torch.Tensor)}
    by_name["generator"] = torch.get_rng_state()
    return by_name


def same_state(before: dict[str, Any], after: dict[str, Any]) -> bool:
    def equal(a: Any, b: Any) -> bool:
        if isinstance(a, torch.Tensor):
            return isinstance(b, torch.Tensor) and torch.equal(a, b)
        if isinstance(a, tuple):
            return len(a) == len(b) and all(map(equal, a, b))
        return a == b

    return before.keys() == after.keys() and all(equal(before[k], after[k]) for k in before)


def compare(
    model: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    tolerance: float = 0.0,
    differentiate: list[str] | None = None,
    context: Any = None,
) -> Captured:
    """Capture `model`; assert that one step gives eager's outputs, gradients, buffers and generator state."""
    kwargs = dict(kwargs or {})
    before = state(model)
    with context() if context else torch.enable_grad():
        captured = capture(model, args, kwargs, differentiate)
    assert same_state(before, state(model)), "capture changed the model or the generator"
    check_graph(captured)
    step = Interpreter(captured, model, args, kwargs)
    torch.manual_seed(7)
    outputs = step.forward()
    leaves = list(output_leaves(captured.model.outputs))
    rng = torch.Generator().manual_seed(1)
    tangents = {
        leaf.name: torch.randn(t.shape, generator=rng, dtype=torch.float64).to(t.dtype)
        for leaf, t in zip(leaves, outputs, strict=True)
        if leaf.grad
    }
    gradients = step.backward(tangents)
    generator = torch.get_rng_state()

    eager: Any = copy.deepcopy(model)
    args, kwargs = _fresh(args), dict(_fresh(kwargs))
    torch.manual_seed(7)
    with context() if context else torch.enable_grad():
        result = eager(*args, **kwargs)
    flat = trees.tensors(result)
    for leaf, ours, theirs in zip(leaves, outputs, flat, strict=True):
        close(f"output {leaf.name}", ours, theirs.detach(), tolerance)
    pairs = [(t, tangents[leaf.name]) for leaf, t in zip(leaves, flat, strict=True) if leaf.grad]
    if pairs:
        torch.autograd.backward([t for t, _ in pairs], [g for _, g in pairs])
    assert torch.equal(generator, torch.get_rng_state()), "the generator is left elsewhere than eager leaves it"
    inputs = zip(_input_leaves(captured), [*trees.tensors(args), *trees.tensors(kwargs)], strict=True)
    for name, tensor in [*eager.named_parameters(), *((leaf.name, t) for leaf, t in inputs)]:
        if tensor.grad is None:
            assert name not in gradients or not gradients[name].any(), f"{name} has no gradient in eager"
        else:
            assert name in gradients, f"{name} has no gradient"
            close(f"gradient of {name}", gradients[name], tensor.grad, tolerance)
    updates = step.updates()
    for name in updates.keys() | dict(eager.named_buffers()).keys():
        ours = updates[name] if name in updates else _attribute(model, name)
        close(f"buffer {name}", ours, _attribute(eager, name), tolerance)
    return captured


def close(what: str, ours: torch.Tensor, theirs: torch.Tensor, tolerance: float) -> None:
    assert ours.shape == theirs.shape, (what, ours.shape, theirs.shape)
    assert ours.dtype == theirs.dtype, (what, ours.dtype, theirs.dtype)
    if tolerance == 0.0:
        assert torch.equal(ours, theirs) or torch.equal(ours.nan_to_num(), theirs.nan_to_num()), (
            f"{what} differs by {(ours - theirs).abs().max()}"
        )
    else:
        limit = tolerance * float(theirs.abs().max())
        assert float((ours - theirs).abs().max()) <= limit + 1e-30, (
            f"{what} differs by {(ours - theirs).abs().max()}, more than {limit}"
        )


def _fresh(tree: Any) -> Any:
    return trees.substitute(tree, [t.detach().clone().requires_grad_(t.requires_grad) for t in trees.tensors(tree)])


def check_graph(captured: Captured) -> None:
    """Invariants of every captured graph."""
    graph = captured.graph
    assert len(captured.modules) == len(graph.operations)
    assert set(captured.modules) <= set(captured.classes)
    ids = [op.id for op in graph.operations]
    assert len(ids) == len(set(ids))
    names = [value.name for value in graph.values]
    assert len(names) == len(set(names))
    collected: set[int] = {at for at, v in enumerate(graph.values) if v.producer < 0}
    for index, op in enumerate(graph.operations):
        assert collected >= set(op.reads), op.id
        written = [at for at in op.writes if at is not None]
        assert all(graph.values[at].producer == index for at in written)
        assert all(graph.root[at] == (graph.root[op.reads[0]] if op.view else at) for at in written), op.id
        collected.update(written)
    forward = {at for op in graph.operations[: graph.backward_start] for at in op.writes if at is not None}
    sources = {at for at, v in enumerate(graph.values) if v.producer < 0}
    assert set(graph.outputs) <= forward | sources
    assert {new for _, new in graph.updates} <= forward | sources
