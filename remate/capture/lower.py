"""Converts a traced and simplified joint graph to a Graph: numbered values, operations with ids, storages."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import torch
from torch.fx import Node

from remate_runtime.flat_step import Op, Ref, Value
from remate_runtime.format import TensorType, is_array
from remate_runtime.operators import COLLECTIVES, COMMUNICATION
from remate_runtime.torch_private.operators import OpOverload, schema_of

from ..errors import CaptureError
from . import facts, literals, torch_api
from .origins import Origin
from .trees import UniqueNames

_NO_MESHES: Mapping[str, str] = MappingProxyType({})
CARRIER = "carrier"  # an unread source whose gradient belongs to the parameter of the same name
_DEFAULTS = {"pin_memory": (False, None), "layout": (torch.strided, None)}


class Source(msgspec.Struct, frozen=True):
    """The parameter, buffer or input of a placeholder. Placeholders with equal names are one value (tied
    parameters)."""

    name: str
    kind: str


class Lowered(msgspec.Struct, frozen=True):
    """A converted graph. values, operations, backward_start, root: as in Graph. modules: the module of each operation.
    at: the value of each node that is a tensor."""

    values: tuple[Value, ...]
    operations: tuple[Op, ...]
    backward_start: int
    root: tuple[int, ...]
    modules: tuple[str, ...]
    at: dict[Node, int]


class Lowering:
    """The conversion of one graph.

    Args:
        sources: Source of each placeholder.
        origins: Origin of each node.
        device: Device of the step.
        taken: Names that operations may not have.
        results: Nodes whose values leave the step.
        named: Sources that become values even if nothing reads them, because they have a gradient or an update.
        meshes: Mesh dimension of each process group.
    """

    def __init__(
        self,
        module: torch.fx.GraphModule,
        sources: dict[Node, Source],
        origins: dict[Node, Origin],
        device: torch.device,
        taken: set[str],
        results: set[Node],
        named: set[str],
        meshes: Mapping[str, str] = _NO_MESHES,
    ) -> None:
        self._module, self._sources, self._origins, self._device = module, sources, origins, device
        self._names = UniqueNames(taken)
        self._results, self._named, self._meshes = results, named, meshes
        self._values: list[Value] = []
        self._root: list[int] = []
        self._operations: list[Op] = []
        self._modules: list[str] = []
        self._at: dict[Node, int] = {}
        self._numbers: dict[Node, Any] = {}  # outputs that are Python numbers: sizes known while tracing
        self._by_name: dict[str, int] = {}
        self._constants: dict[str, int] = {}
        self._outputs: dict[int, tuple[int | None, ...]] = {}
        self._producer: dict[Node, int] = {}

    def run(self) -> Lowered:
        """Convert the graph. Raises CaptureError for an operation that a schedule file cannot express."""
        nodes = list(self._module.graph.nodes)
        forward = [n for n in nodes if not torch_api.is_backward(n)]
        backward = [n for n in nodes if torch_api.is_backward(n)]
        backward_start = 0
        for part in (forward, backward):
            for node in part:
                try:
                    self._node(node)
                except literals.UnwritableError as reason:
                    raise self._error(node, f"{self._called(node)} has {reason}") from None
            backward_start = backward_start if part is backward else len(self._operations)
        parts = tuple(self._values), tuple(self._operations), backward_start, tuple(self._root), tuple(self._modules)
        return Lowered(*parts, self._at)

    def _node(self, node: Node) -> None:
        if node.op == "placeholder":
            self._placeholder(node)
        elif node.op == "get_attr":
            self._constant(node)
        elif node.target is operator.getitem:
            self._item(node)
        elif facts.is_operator(node.target):
            self._operation(node, node.target)
        elif node.op != "output":
            hint = "control flow and other higher-order operators cannot be scheduled: write it with tensor operations"
            raise self._error(node, f"forward uses {self._called(node)}", hint)

    def _placeholder(self, node: Node) -> None:
        source = self._sources[node]
        if source.kind == CARRIER:
            return
        if node.users or source.kind == torch_api.TANGENT or node in self._results or source.name in self._named:
            if source.name not in self._by_name:
                self._by_name[source.name] = self._value(source.name, self._type(node), source.kind)
            self._at[node] = self._by_name[source.name]

    def _constant(self, node: Node) -> None:
        tensor = getattr(self._module, str(node.target), None)
        if not isinstance(tensor, torch.Tensor) or not node.users:
            return  # a subgraph: the operator that uses it is refused
        origin = self._origins.get(next(iter(node.users)), Origin())
        data = literals.elements(tensor, origin.module, origin.place.line)
        kind = literals.tensor_type(tensor, self._device)
        key = repr((kind, data))  # nan is equal to itself here
        if key not in self._constants:
            name = f"constant.{len(self._constants)}"
            self._constants[key] = self._value(name, kind, "constant", data=data)
        self._at[node] = self._constants[key]

    def _item(self, node: Node) -> None:
        source, index = node.args[0], node.args[1]
        assert isinstance(source, Node)
        assert isinstance(index, int)
        value = self._outputs[self._producer[source]][index]
        if value is None:
            self._numbers[node] = source.meta["val"][index]
        else:
            self._at[node] = value

    def _operation(self, node: Node, target: OpOverload) -> None:
        self._check(node, target)
        if target is torch.ops.aten._conj.default and isinstance(node.args[0], int | float | complex):
            number = complex(node.args[0]).conjugate()  # imaginary part of a factor of a complex tensor
            self._numbers[node] = literals.argument(number, self._device)
            return
        reads: list[int] = []
        args = tuple(self._argument(a, reads) for a in node.args)
        kwargs = {k: self._argument(a, reads) for k, a in node.kwargs.items() if not _default(target, k, a)}
        if target.namespace in COMMUNICATION:
            args = self._over_mesh(node, target, args)
        value = node.meta["val"]
        multiple = is_array(value)
        kinds = [self._output_type(each) for each in (value if multiple else (value,))]
        if facts.refusal(target):
            hint = "wrap it in an operator of your own (torch.library.custom_op), or compute it outside of the model"
            raise self._error(node, f"{self._called(node)} is not among those that a schedule file may name", hint)
        kinds = _masked(target, node.args, kinds)
        kinds = self._statistics(target, node.args, kinds)
        if not reads and kinds[0] is not None and "device" not in kwargs and _takes_device(target):
            kwargs["device"] = {"device": "cpu" if kinds[0].cpu else "main"}
        index = len(self._operations)
        view = facts.view(target)
        origin = self._origins[node]
        name = self._id(node, target, origin)
        writes = tuple(
            None
            if kind is None
            else self._value(f"{name}:{at}" if multiple else name, kind, "op", index, reads[0] if view else None)
            for at, kind in enumerate(kinds)
        )
        if not multiple and writes[0] is not None:
            self._at[node] = writes[0]
        self._outputs[index], self._producer[node] = writes, index
        unique = tuple(dict.fromkeys(reads))
        rest = unique, writes, multiple, view, facts.random(target), 0, 0, origin.place.source
        self._operations.append(Op(name, facts.name(target), args, kwargs, *rest))
        self._modules.append(origin.module)

    def _statistics(self, target: OpOverload, args: tuple[object, ...], kinds: list[Any]) -> list[Any]:
        """Correct the types of a norm's statistics: on the CPU, half-precision input with full-precision weights has
        full-precision statistics."""
        if self._device.type != "cpu" or facts.name(target) not in ("aten.native_layer_norm", "aten.native_group_norm"):
            return kinds
        weights = [a.meta["val"] for a in args[1:4] if isinstance(a, Node)]
        types = {literals.dtype(w.dtype) for w in weights}
        mixed = "f32" in types and kinds[0].dtype != "f32"
        return [kinds[0], *(msgspec.structs.replace(k, dtype="f32") for k in kinds[1:])] if mixed else kinds

    def _check(self, node: Node, target: OpOverload) -> None:
        if facts.writes(target):
            hint = "register it with torch.library.custom_op and name the arguments it mutates, or return new tensors"
            raise self._error(node, f"{self._called(node)} writes into its argument", hint)
        if reason := facts.unwritable(target):
            hint = "wrap it in an operator of your own that does not, or compute it outside of the model"
            raise self._error(node, f"{self._called(node)} {reason}, which a schedule file cannot express", hint)
        if any(argument not in self._at and argument not in self._numbers for argument in node.all_input_nodes):
            hint = "draw with torch's default generator (torch.manual_seed), or pass the numbers in as an input"
            raise self._error(
                node,
                f"{self._called(node)} takes an object that a schedule cannot hold, such as a torch.Generator",
                hint,
            )

    def _over_mesh(self, node: Node, target: OpOverload, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of a collective, with the mesh dimension instead of the process group."""
        known = COLLECTIVES.get(facts.name(target))
        if known is None:
            hint = f"a schedule knows {', '.join(COLLECTIVES)}"
            raise self._error(node, f"forward communicates by {self._called(node)}", hint)
        mesh = self._meshes.get(args[known.group])
        if mesh is None:
            hint = (
                "distribute the parameters over a device mesh with that group (parallelize_module, distribute_tensor)"
            )
            hint += ", or plan the parts around it: at='layers.*.attention'"
            message = f"{self._called(node)} communicates in a process group that no parameter is distributed over"
            raise self._error(node, message, hint)
        return (*args[: known.group], mesh, *args[known.group + 1 :])

    def _argument(self, argument: object, reads: list[int]) -> Any:
        if isinstance(argument, Node):
            if argument in self._numbers:
                return self._numbers[argument]
            reads.append(self._at[argument])
            return Ref(self._at[argument])
        if is_array(argument):
            return tuple(self._argument(a, reads) for a in argument)
        return literals.argument(argument, self._device)

    def _output_type(self, value: object) -> TensorType | None:
        if isinstance(value, torch.Tensor):
            return literals.tensor_type(value, self._device)
        if value is None or isinstance(value, bool | int | float):
            return None
        raise literals.UnwritableError(f"a result of type {type(value).__name__}")

    def _type(self, node: Node) -> TensorType:
        return literals.tensor_type(node.meta["val"], self._device)

    def _value(
        self,
        name: str,
        kind: TensorType,
        what: str,
        producer: int = -1,
        base: int | None = None,
        data: tuple[object, ...] | None = None,
    ) -> int:
        self._values.append(Value(name, kind, what, producer, data))
        self._root.append(len(self._values) - 1 if base is None else self._root[base])
        return len(self._values) - 1

    def _id(self, node: Node, target: OpOverload, origin: Origin) -> str:
        grad = ("grad",) if torch_api.is_backward(node) else ()
        return self._names.new(".".join(part for part in (origin.module, *grad, facts.packet(target)) if part))

    def _called(self, node: Node) -> str:
        target = node.target
        if facts.is_operator(target):
            return f"operator {facts.name(target)}"
        inner = next((a for a in node.args if facts.is_operator(a)), None)
        name = getattr(target, "__name__", str(target))
        return f"operator {facts.name(inner)} (through {name})" if inner is not None else f"operator {name}"

    def _error(self, node: Node, message: str, hint: str = "") -> CaptureError:
        origin = self._origins.get(node, Origin())
        return CaptureError(message, origin.module, origin.place.line, hint)


def _default(target: OpOverload, name: str, value: object) -> bool:
    """Whether the argument equals the operator's default."""
    if name in _DEFAULTS and value in _DEFAULTS[name]:
        return True
    argument = next((a for a in schema_of(target).arguments if a.name == name), None)
    return argument is not None and argument.has_default_value() and value is None and argument.default_value is None


def _masked(target: OpOverload, args: tuple[object, ...], kinds: list[Any]) -> list[Any]:
    """The types of the results, with None for those that the output mask excludes. Fake kernels return these too."""
    at = next(
        (i for i, a in enumerate(schema_of(target).arguments) if a.name in ("output_mask", "grad_input_mask")), None
    )
    mask = args[at] if at is not None and at < len(args) else None
    if not is_array(mask) or len(mask) != len(kinds):
        return kinds
    return [kind if wanted else None for kind, wanted in zip(kinds, mask, strict=True)]


def _takes_device(target: OpOverload) -> bool:
    return any(a.name == "device" for a in schema_of(target).arguments)
