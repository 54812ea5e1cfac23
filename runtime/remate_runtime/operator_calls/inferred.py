"""Compares the result types in a file with those that torch infers from the arguments, before a step runs.

So no operation of a file allocates more than the file says. Each distinct signature is inferred once, on the meta
device, whose tensors have no memory. If that fails or differs, fake tensors decide: capture inferred the types with
them, and meta kernels differ from those of devices in a few cases. At further sizes of a file, rules decide for common
operators, which takes a hundredth of the time (`flat_step.known_results`). Operators that torch cannot infer are
checked in the first run (`engine`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..errors import ScheduleError
from ..flat_step.graph import Graph, Number, Op, Ref, planned_number
from ..flat_step.known_results import as_known
from ..format.json_values import is_array, is_object, is_tuple
from ..format.tensor_type import TensorType
from ..torch_private.operators import OpOverload, schema_of
from .cache_folder import import_without_folder
from .overloads import SHORT_DTYPES, TORCH_DTYPES, literal
from .results import RESULTS, on_cpu

_META = torch.device("meta")
# On the CPU, norms of half-precision input with full-precision weights have full-precision statistics; torch infers
# half.
_MIXED = frozenset({"aten.native_layer_norm", "aten.native_group_norm"})
# Operators with as many results as a size: the argument with the length of each result; None: length one.
_PIECES = {
    "aten.split.Tensor": "split_size",
    "aten.split_copy.Tensor": "split_size",
    "aten.unsafe_split.Tensor": "split_size",
    "aten.unbind.int": None,
    "aten.unbind_copy.int": None,
}


def check_types(
    graph: Graph, where: Sequence[str], live: Mapping[str, OpOverload], distinct: Sequence[int] | None = None
) -> dict[str, ScheduleError]:
    """Return faults (R053) by the JSON pointer of their operation.

    Args:
        graph: The step.
        where: Pointer of every operation.
        live: Operators by name.
        distinct: If the step has been checked at another size, the operations to check (`CheckedStep`). Element types
            are as there, so that rules decide for common operators.
    """
    judged: dict[Any, str] = {}
    faults: dict[str, ScheduleError] = {}
    import_without_folder()
    with torch.no_grad():
        for number in range(len(where)) if distinct is None else distinct:
            op, at = graph.operations[number], where[number]
            if distinct is not None and as_known(graph, op):
                continue
            key = signature(graph, op)
            if key not in judged:
                judged[key] = _judge(graph, op, live[op.op])
            if judged[key] and at not in faults:
                hint = "correct `out` or the arguments, or plan again with the installed versions of torch and remate"
                faults[at] = ScheduleError("R053", f"operation {op.id!r}, {op.op}: {judged[key]}", at, hint)
    return faults


def signature(graph: Graph, op: Op) -> Any:
    """Return everything that the inference reads. It is equal for operations with equal types and literals."""

    def key(argument: object) -> Any:
        if isinstance(argument, Ref):
            return graph.values[argument.value].type
        if isinstance(argument, Number):
            return Number, planned_number(graph, argument)
        if is_tuple(argument):
            return tuple(map(key, argument))
        if is_object(argument):
            return tuple((k, str(v)) for k, v in argument.items())
        return type(argument), argument  # 1, 1.0 and True are equal, but not the same argument

    kwargs = tuple((name, key(argument)) for name, argument in op.kwargs.items())
    outs = tuple(None if value is None else graph.values[value].type for value in op.writes)
    return op.op, key(op.args), kwargs, outs


def infer(graph: Graph, args: tuple[object, ...], kwargs: dict[str, Any], live: OpOverload) -> Any:
    """Return the operator's result for these arguments (as in `Op`) on the meta device. May raise any error of
    torch."""
    with torch.no_grad():
        return _inferred(graph, args, kwargs, live, _empty_meta)


def _judge(graph: Graph, op: Op, live: OpOverload) -> str:
    """Return the fault in an operation's types; "" if there is none, or if torch has to run the operation to know."""
    names = [argument.name for argument in schema_of(live).arguments]
    if not op.reads and any("Tensor" in str(argument.type) for argument in schema_of(live).arguments):
        return (
            "it is given no tensor, so that nothing says what it would make"  # torch would run its kernel to infer that
        )
    if op.op in _PIECES and (wrong := _wrong_count(graph, op, names)):
        return wrong
    try:
        wrong = _compared(graph, op, _inferred(graph, op.args, op.kwargs, live, _empty_meta))
    except NotImplementedError:
        return ""
    except Exception as error:
        wrong = f"torch refuses its arguments: {_line(error)}"
    return wrong and _second_opinion(graph, op, live, wrong)


def _second_opinion(graph: Graph, op: Op, live: OpOverload, wrong: str) -> str:
    from ..torch_private.fake_tensors import FakeTensorMode, UnsupportedOperatorException, quiet_meta_failures

    device = torch.device(graph.device if graph.device == "cpu" or torch.cuda.is_available() else "cpu")
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), quiet_meta_failures():
            host = torch.device("cpu")

            def make(type_: TensorType) -> torch.Tensor:
                return _empty(type_, host if type_.cpu else device)

            inferred = _inferred(graph, op.args, op.kwargs, live, make)
            return _compared(graph, op, inferred)
    except (UnsupportedOperatorException, NotImplementedError):
        return wrong
    except Exception:
        return wrong


def _inferred(
    graph: Graph,
    given: tuple[object, ...],
    named: dict[str, Any],
    live: OpOverload,
    tensor: Callable[[TensorType], torch.Tensor],
) -> Any:
    """Return the operator's result for tensors of the declared types. No factory may create a tensor elsewhere."""
    tensors: dict[int, torch.Tensor] = {}

    def argument(item: object) -> Any:
        if isinstance(item, Ref):
            if item.value not in tensors:
                tensors[item.value] = tensor(graph.values[item.value].type)
            return tensors[item.value]
        if isinstance(item, Number):
            return planned_number(graph, item)
        if is_tuple(item):
            return [argument(item) for item in item]
        return literal(item, device)

    device = tensor(TensorType("u8", (0,))).device
    names = [item.name for item in schema_of(live).arguments]
    args = [argument(item) for item in given]
    kwargs = {name: argument(item) for name, item in named.items()}
    if "device" in names and device == _META:
        at = names.index("device")
        if at < len(args):
            args[at] = device
        else:
            kwargs["device"] = device
    elif "device" in names and not tensors and kwargs.get("device") is None:
        kwargs["device"] = device
    inferred = RESULTS.get(live, live)(*args, **kwargs)
    return on_cpu(live, args, inferred) if graph.device == "cpu" else inferred


def _compared(graph: Graph, op: Op, inferred: object) -> str:
    results = list(inferred) if is_array(inferred) else [inferred]
    if len(results) != len(op.writes):
        return f"it has {len(results)} outputs, the file declares {len(op.writes)}"
    for at, (value, tensor) in enumerate(zip(op.writes, results, strict=True)):
        if value is None:
            continue
        declared = graph.values[value].type
        if not isinstance(tensor, torch.Tensor) or not _fits(op, tensor, declared):
            which = f"output {at}" if op.multiple else "its output"
            return f"{which} is {_described(tensor)}, the file declares {declared}"
    return ""


def _fits(op: Op, tensor: torch.Tensor, declared: TensorType) -> bool:
    """Return whether dtype and shape agree, a view has the declared strides, and others take no more bytes than
    declared."""
    if tuple(tensor.shape) != declared.shape:
        return False
    if tensor.dtype is not TORCH_DTYPES[declared.dtype] and not (op.op in _MIXED and declared.dtype == "f32"):
        return False
    if not op.view:
        return _nbytes(tensor) <= declared.nbytes
    pairs = zip(declared.shape, tensor.stride(), declared.strides or tensor.stride(), strict=True)
    if declared.strides is None:
        return tensor.is_contiguous()
    return all(size < 2 or have == want for size, have, want in pairs)


def _nbytes(tensor: torch.Tensor) -> int:
    """Return the bytes that the elements span."""
    spread = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (1 + spread) * tensor.itemsize if tensor.numel() else 0


def _wrong_count(graph: Graph, op: Op, names: Sequence[str]) -> str:
    """Check the number of results before torch creates them: a file may request more than memory has room for."""
    given = dict(zip(names, op.args, strict=False)) | op.kwargs
    source, dim = given.get("self"), given.get("dim", 0)
    size = given.get(_PIECES[op.op] or "", 1)
    shape = graph.values[source.value].type.shape if isinstance(source, Ref) else ()
    if not isinstance(dim, int) or not isinstance(size, int) or not -len(shape) <= dim < len(shape) or size < 0:
        return "its arguments do not fit the tensor that it takes apart"
    pieces = max(1, -(-shape[dim] // max(size, 1))) if _PIECES[op.op] else shape[dim]
    return "" if pieces == len(op.writes) else f"it has {pieces} outputs, the file declares {len(op.writes)}"


def _empty_meta(type_: TensorType) -> torch.Tensor:
    return _empty(type_, _META)


def _empty(type_: TensorType, device: torch.device) -> torch.Tensor:
    dtype = TORCH_DTYPES[type_.dtype]
    if type_.strides is None:
        return torch.empty(type_.shape, dtype=dtype, device=device)
    return torch.empty_strided(type_.shape, type_.strides, dtype=dtype, device=device)


def _described(result: object) -> str:
    if not isinstance(result, torch.Tensor):
        return "none" if result is None else f"of type {type(result).__name__}"
    strides = None if result.is_contiguous() else tuple(result.stride())
    dtype = SHORT_DTYPES.get(result.dtype)
    return str(TensorType(dtype, tuple(result.shape), strides)) if dtype else f"a tensor of {result.dtype}"


def _line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]
