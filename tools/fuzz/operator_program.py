"""A few operations as a file would state them, checked as `apply` checks a file and run as the interpreter runs them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import torch
from torch._ops import OpOverload

from remate_runtime.flat_step.graph import Graph, Op, Ref, Value, roots
from remate_runtime.format.tensor_type import DTYPES, TensorType
from remate_runtime.operator_calls import kernel, literal, operators, overload
from remate_runtime.operator_calls.inferred import infer
from remate_runtime.operator_calls.overloads import SHORT_DTYPES, TORCH_DTYPES, check_operator
from remate_runtime.operators import OPERATORS, PERMISSION, RANDOM, VIEWS

MAX_BYTES = 1 << 26
_CPU = torch.device("cpu")


class Source(msgspec.Struct, frozen=True):
    """An input tensor of the operations. fill: the value of all elements; None: small, different numbers."""

    type: TensorType
    fill: float | int | None = None


class Call(msgspec.Struct, frozen=True):
    """An operation. Arguments are literals as in `Graph`, `Ref(n)` for source n, and `Ref(-1 - n)` for output n of the
    previous call."""

    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Program(msgspec.Struct, frozen=True):
    """calls: the last one is the operation under test. A preceding call produces its arguments."""

    sources: tuple[Source, ...]
    calls: tuple[Call, ...]


class TooLargeError(Exception):
    """The program declares more bytes than this test allows."""


def graph_of(program: Program) -> Graph:
    """The graph of a file with these operations, which declares of results what torch infers.

    Raises whatever torch raises where no file could declare anything that fits.
    """
    values = [Value(f"s{n}", source.type, "input") for n, source in enumerate(program.sources)]
    operations: list[Op] = []
    outputs: list[int | None] = []
    for number, call in enumerate(program.calls):
        before = outputs
        args, kwargs = map_references((call.args, call.kwargs), lambda at, before=before: _value(before, at))
        partial = Graph(tuple(values), tuple(operations), len(operations), (), (), (), tuple(range(len(values))))
        types = _declared(partial, call.op, args, kwargs)
        outputs = []
        for at, type_ in enumerate(types):
            outputs.append(None if type_ is None else len(values))
            if type_ is not None:
                values.append(Value(f"c{number}:{at}", type_, "op", number))
        reads = tuple(dict.fromkeys(references((args, kwargs))))
        returns = overload(call.op, tuple(PERMISSION))._schema.returns
        multiple = len(returns) > 1 or any(isinstance(r.type, torch.ListType) for r in returns)
        view, random = call.op in VIEWS, call.op in RANDOM
        op = Op(f"op{number}", call.op, args, kwargs, reads, tuple(outputs), multiple, view, random)
        operations.append(op)
    root = roots(len(values), operations)
    if sum(values[at].type.nbytes for at in set(root)) > MAX_BYTES or sum(v.type.numel for v in values) > MAX_BYTES:
        raise TooLargeError
    return Graph(tuple(values), tuple(operations), len(operations), (), (), (), root)


def _value(outputs: list[int | None], at: int) -> int:
    if at >= 0:
        return at
    value = outputs[-1 - at]
    if value is None:
        raise ValueError("the call before makes no such output")
    return value


def _declared(graph: Graph, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[TensorType | None]:
    live = overload(name, tuple(PERMISSION))
    returns = live._schema.returns
    op = Op("op", name, args, kwargs, (), (0,) * len(returns), len(returns) > 1, False, False)
    if not any(isinstance(r.type, torch.ListType) for r in returns):
        check_operator(op, live)
    try:
        results = infer(graph, args, kwargs, live)
    except NotImplementedError:  # the file may then declare any type
        return [TensorType("f32", (1,)) for _ in returns]
    listed = list(results) if isinstance(results, tuple | list) else [results]
    return [type_of(each) if isinstance(each, torch.Tensor) else None for each in listed]


def type_of(tensor: torch.Tensor) -> TensorType:
    """The type of a tensor as text. Raises KeyError for a dtype that no file has."""
    strides = None if tensor.is_contiguous() else tuple(tensor.stride())
    return TensorType(SHORT_DTYPES[tensor.dtype], tuple(tensor.shape), strides)


def check(graph: Graph) -> None:
    """Check operations as `apply` does. Raises ScheduleError."""
    operators(graph, [f"/{n}" for n in range(len(graph.operations))])


def run(program: Program, graph: Graph) -> None:
    """Run the operations. Raises any error of torch."""
    tensors: dict[int, Any] = {n: tensor_of(source) for n, source in enumerate(program.sources)}
    for op in graph.operations:
        live = overload(op.op)
        args, kwargs = _arguments(op.args, tensors), {k: _argument(v, tensors) for k, v in op.kwargs.items()}
        results = kernel(op.op, live)(*args, **kwargs)
        listed = list(results) if isinstance(results, tuple | list) else [results]
        tensors.update((value, each) for value, each in zip(op.writes, listed, strict=False) if value is not None)


def _arguments(given: tuple[Any, ...], tensors: dict[int, Any]) -> list[Any]:
    return [_argument(each, tensors) for each in given]


def _argument(given: Any, tensors: dict[int, Any]) -> Any:
    if isinstance(given, Ref):
        return tensors[given.value]
    return _arguments(given, tensors) if isinstance(given, tuple) else literal(given, _CPU)


def tensor_of(source: Source) -> torch.Tensor:
    """A tensor of exactly this type, in a storage without spare elements."""
    type_, dtype = source.type, TORCH_DTYPES[source.type.dtype]
    elements = type_.nbytes // DTYPES[type_.dtype][1]
    if source.fill is not None:
        storage = _filled(elements, dtype, source.fill)
    elif dtype.is_floating_point or dtype.is_complex:
        storage = torch.linspace(0.05, 0.95, elements).to(dtype)
    else:
        storage = (torch.arange(elements) % 2).to(dtype)
    return storage.as_strided(type_.shape, type_.strides or _contiguous(type_.shape))


def _filled(elements: int, dtype: torch.dtype, fill: float) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.full((elements,), float(fill), dtype=torch.float64).to(dtype)
    if not math.isfinite(fill):
        fill = 0
    if dtype is torch.bool:
        return torch.full((elements,), bool(fill))
    lowest, highest = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    return torch.full((elements,), max(lowest, min(highest, int(fill))), dtype=dtype)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [1] * len(shape), 1
    for at in reversed(range(len(shape))):
        strides[at] = step
        step *= max(1, shape[at])
    return tuple(strides)


def references(tree: Any) -> Iterator[int]:
    if isinstance(tree, Ref):
        yield tree.value
    elif isinstance(tree, tuple | dict):
        for each in tree.values() if isinstance(tree, dict) else tree:
            yield from references(each)


def map_references(tree: Any, change: Callable[[int], int]) -> Any:
    if isinstance(tree, Ref):
        return Ref(change(tree.value))
    if isinstance(tree, tuple):
        return tuple(map_references(each, change) for each in tree)
    if isinstance(tree, dict):
        return {key: map_references(each, change) for key, each in tree.items()}
    return tree


def name_of(live: OpOverload) -> str:
    """The name of an operator in a file."""
    name = f"{live.namespace}.{live._schema.name.split('::')[1]}"
    return name if live._overloadname == "default" else f"{name}.{live._overloadname}"


def listed() -> list[str]:
    """Every operator that a file may name without permission."""
    return sorted(OPERATORS)
