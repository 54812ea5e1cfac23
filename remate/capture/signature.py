"""The signature of a model and of one call, for the section `model` of a schedule file."""

from __future__ import annotations

import hashlib
import inspect
import json
from typing import Any

import torch

from remate_runtime.bind import modules_by_path
from remate_runtime.flat_step import Graph, to_json
from remate_runtime.format import Model
from remate_runtime.staleness import ignores_identity

from ..errors import CaptureError
from . import literals, torch_api, trees
from .cuda.versions import chosen_for

_PREFIX = "model."  # the model's name in the traced step


class Signature:
    """The signature of a call.

    Attributes:
        device: Device of the step.
        same: For each input the first input that is the same tensor, if forward compares inputs by identity.
        tensors: Leaves of the inputs in order.
        inputs: Names of the leaves.
        names: All sources.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        args: tuple[object, ...],
        kwargs: dict[str, Any],
        identity: bool = True,
    ) -> None:
        """identity: Ask whether forward compares inputs by identity, which runs it twice without data."""
        if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
            raise CaptureError("the model is TorchScript", hint="capture the Python module that it was made from")
        self._module = model
        self._parameters, tied = _unique(model.named_parameters(remove_duplicate=False))
        self._buffers, tied_buffers = _unique(model.named_buffers(remove_duplicate=False))
        self._tied = tied | tied_buffers
        self.tensors = [*trees.tensors(args), *trees.tensors(kwargs)]
        self.device = _device([*self._parameters.values(), *self._buffers.values(), *self.tensors])
        held = [*self._parameters.values(), *self._buffers.values()]
        self._fake = any(map(torch_api.is_fake, held or self.tensors))
        self._check_tensors()
        self.names = {*self._parameters, *self._buffers}
        self.inputs: list[str] = []
        repeated = len({id(tensor) for tensor in self.tensors}) < len(self.tensors)
        self._first: dict[int, str] | None = (
            {} if identity and repeated and not ignores_identity(model, args, kwargs) else None
        )  # names by tensor, where forward asks which inputs are one
        self.same = self._same_positions()
        self._unique = trees.UniqueNames(self.names)
        self._tree = self._describe(args, kwargs)
        self.names |= set(self.inputs)
        self.autocast = _ambient_autocast(self.device)

    def parameter(self, target: str) -> str:
        """Return the name in the file of the parameter or buffer `target` of the traced step."""
        name = target.removeprefix(_PREFIX)
        return self._tied.get(name, name)

    def model(self, graph: Graph, outputs: object) -> Model:
        module = self._module
        modules = modules_by_path(module, each_once=True).items()
        shared: dict[str, Any] = {
            "name": type(module).__name__,
            "training": module.training,
            "mode_overrides": tuple(n for n, m in modules if n and m.training != module.training),
            "autocast": None if self.autocast is None else literals.dtype(self.autocast[1]),
            "parameters": {n: self._type(n, t) for n, t in self._parameters.items()},
            "frozen": tuple(n for n, t in self._parameters.items() if not t.requires_grad),
            "tied": self._tied,
            "buffers": {n: self._type(n, t) for n, t in self._buffers.items()},
            "inputs": self._tree,
            "outputs": outputs,
        }
        device = "cuda" if self.device.type == "cuda" else "cpu"
        digest = fingerprint(graph, shared)
        where: dict[str, Any] = {"device": device}
        if device == "cuda":
            where["architecture"] = "sm_{}{}".format(*torch.cuda.get_device_capability(self.device))
            where |= chosen_for(self._fake)
        return Model(fingerprint=digest, torch=torch.__version__.split("+")[0], **where, **shared)

    def _describe(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        def leaf(tensor: torch.Tensor, path: str) -> dict[str, Any]:
            if tensor.layout is not torch.strided:
                raise CaptureError(f"input {path!r} is a sparse tensor ({tensor.layout})", hint=literals.SPARSE_INPUT)
            self.inputs.append(self._unique.new(path))
            grad = {"grad": True} if tensor.requires_grad else {}
            first = self.inputs[-1] if self._first is None else self._first.setdefault(id(tensor), self.inputs[-1])
            same = {"same": first} if first != self.inputs[-1] else {}
            return {"tensor": self._type(path, tensor), "name": self.inputs[-1], **grad, **same}

        def opaque(node: object, path: str) -> None:
            hint = "pass tensors, numbers, text, None, and tuples, lists, dicts with text keys or objects of them"
            if "Cache" in type(node).__name__:
                hint = "train without a cache: call the model with use_cache=False"
            raise CaptureError(f"input {path!r} is of type {type(node).__name__}", hint=hint)

        names = argument_names(self._module, len(args))
        positional = [trees.describe(a, n, leaf, opaque, objects=True) for n, a in zip(names, args, strict=True)]
        named = {n: trees.describe(a, n, leaf, opaque, objects=True) for n, a in kwargs.items()}
        return {"args": positional, "kwargs": named}

    def _same_positions(self) -> tuple[int, ...]:
        """For each tensor of the inputs, the index of the tensor that forward receives."""
        first: dict[int, int] = {}
        positions = range(len(self.tensors))
        if self._first is None:
            return tuple(positions)
        return tuple(first.setdefault(id(self.tensors[at]), at) for at in positions)

    def _check_tensors(self) -> None:
        for name, tensor in [*self._parameters.items(), *self._buffers.items()]:
            if isinstance(tensor, torch.nn.parameter.UninitializedParameter | torch.nn.parameter.UninitializedBuffer):
                raise CaptureError(f"{name!r} has no shape yet", hint="run a lazy model once before capturing it")
            if torch_api.is_subclass(tensor):
                hint = "capture the model before it is sharded by FSDP or quantised"
                raise CaptureError(f"{name!r} is a {type(tensor).__name__}, not a plain tensor", hint=hint)
        for tensor in self.tensors:
            if torch_api.is_subclass(tensor):
                hint = "pass the local tensor: x.to_local(); PrepareModuleInput makes a DTensor of it"
                raise CaptureError(f"an input is a {type(tensor).__name__}, not a plain tensor", hint=hint)
        for name, tensor in self._buffers.items():
            if tensor.requires_grad:
                raise CaptureError(f"buffer {name!r} requires a gradient", hint="make it a Parameter")

    def _type(self, name: str, tensor: torch.Tensor) -> str:
        try:
            return str(literals.tensor_type(tensor, self.device))
        except literals.UnwritableError as reason:
            raise CaptureError(f"{name!r} is {reason}") from None


def fingerprint(graph: Graph, shared: dict[str, Any]) -> str:
    """Return the sha256 of operations, types and signature, without costs, source lines, torch version and device."""

    def name(value: int) -> str:
        return graph.values[value].name

    operations = [
        (op.id, op.op, to_json(op.args, name), {k: to_json(a, name) for k, a in op.kwargs.items()}, op.writes)
        for op in graph.operations
    ]
    values = [(v.name, str(v.type), v.kind, v.data) for v in graph.values]
    pairs = [[(name(a), name(b)) for a, b in group] for group in (graph.gradients, graph.updates)]
    content = [operations, values, graph.backward_start, [name(v) for v in graph.outputs], pairs, shared]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _unique(named: Any) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return tensors by their first name, and the other names of the same tensors."""
    first: dict[int, str] = {}
    unique: dict[str, torch.Tensor] = {}
    other: dict[str, str] = {}
    for name, tensor in named:
        if id(tensor) in first:
            other[name] = first[id(tensor)]
        else:
            first[id(tensor)] = name
            unique[name] = tensor
    return unique, other


def _device(tensors: list[torch.Tensor]) -> torch.device:
    devices = {t.device for t in tensors}
    main = {d for d in devices if d.type != "cpu"}
    if len(main) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise CaptureError(f"the model and its inputs are on several devices: {names}", hint="move them to one device")
    device = next(iter(main), torch.device("cpu"))
    if device.type not in ("cpu", "cuda", "meta"):
        raise CaptureError(f"the model is on {device}", hint="schedules are for cpu and cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise CaptureError(
            "the model is on a (fake) CUDA device, and there is none here",
            hint='leave the model on the CPU, and plan it with device="cuda:h100"',
        )
    return device


def _ambient_autocast(device: torch.device) -> tuple[str, torch.dtype] | None:
    kind = "cuda" if device.type == "cuda" else "cpu"
    return (kind, torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else None


def argument_names(model: torch.nn.Module, count: int) -> list[str]:
    """Return the names of the first `count` positional arguments of forward."""
    names: list[str] = []
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        parameters = ()
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}.{at}" for at in range(count - len(names))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    names += [f"arg{at}" for at in range(len(names), count)]
    return names[:count]
