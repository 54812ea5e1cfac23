"""Operators and literals of a schedule as objects of torch. Nothing in a file reaches Python by name.

An operator is looked up as an exact overload in an allowed namespace. Literals come from fixed tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

import torch

from ..errors import REPLAN, BindError, ScheduleError
from ..flat_step.graph import Number, Op, Ref
from ..format.json_values import is_object, is_tuple
from ..format.memory_layouts import CHANNELS_LAST, CONTIGUOUS, axes_of, packed_strides
from ..format.tensor_type import DTYPES, TensorType
from ..format.vocabulary import MEMORY_FORMATS
from ..operators.collectives import COLLECTIVES, WAIT
from ..operators.tables import (
    COPIED,
    IN_PLACE,
    NAMESPACES,
    NOT_RANDOM,
    PERMISSION,
    RANDOM,
    VIEWS,
    permission,
    refusal,
)
from ..torch_private.operators import OpOverload, OpOverloadPacket, function_of, has_kernel, schema_of
from .recurrent import LAYER, LAYER_BACKWARD, whole_layer

_NAME = re.compile(r"(_?[A-Za-z]\w*)\.([A-Za-z_]\w*)(?:\.([A-Za-z_]\w*))?", re.ASCII)

_SIZED_BY_NUMBERS = ("aten.arange", "aten.range")

TORCH_DTYPES: dict[str, torch.dtype] = {short: getattr(torch, long) for short, (long, _) in DTYPES.items()}
SHORT_DTYPES: dict[torch.dtype, str] = {dtype: short for short, dtype in TORCH_DTYPES.items()}
# With an in-place form. Those of a tensor and a scalar keep the strides of the tensor, but for powers.
_ELEMENTWISE = {f"aten.{name}.Tensor" for name in "add sub mul div lerp".split()} | {
    f"aten.{name}"
    for name in "addcdiv addcmul elu exp gelu hardsigmoid hardswish leaky_relu lerp.Scalar neg pow.Tensor_Scalar "
    "reciprocal relu rsqrt sigmoid silu sqrt tanh".split()
}
_MEMORY_FORMATS: dict[str, torch.memory_format] = {name: getattr(torch, name) for name in MEMORY_FORMATS}


def overload(name: str, namespaces: Collection[str] = ()) -> OpOverload:
    """Return the live operator overload of a name (`aten.add.Tensor`, `aten.addmm`).

    Args:
        name: The name.
        namespaces: Permitted beyond `operators.NAMESPACES`, or listed operators that need a permission.

    Raises:
        ScheduleError: R050 (not permitted, or not an operator that a file may name), R051 (unknown operator), R052 (it
            writes over its arguments).
    """
    parts = _NAME.fullmatch(name)
    if parts is None:
        raise ScheduleError(
            "R051", f"{name[:80]!r} is no operator", hint="write namespace.name or namespace.name.overload"
        )
    if parts[1] not in NAMESPACES and parts[1] not in namespaces:
        raise not_permitted(f"operator {name!r} is of the namespace {parts[1]!r}, which is not allowed", parts[1])
    packet = getattr(getattr(torch.ops, parts[1]), parts[2], None)
    operator: Any = getattr(packet, parts[3] or "default", None) if issubclass(type(packet), OpOverloadPacket) else None
    if not issubclass(type(operator), OpOverload):
        hint = f"import the library that registers it, or {REPLAN} with this version of torch"
        raise ScheduleError("R051", f"operator {name!r} does not exist in torch {torch.__version__}", hint=hint)
    if schema_of(operator).is_mutable:
        raise ScheduleError("R052", f"operator {name!r} writes over its arguments", hint="name a functional operator")
    if why := refusal(name):
        raise ScheduleError("R050", why, hint="name the operators that it is made of: plan again")
    if (wanted := permission(name)) and wanted not in namespaces:
        raise not_permitted(f"operator {name!r} needs a permission: {PERMISSION[name]}", wanted)
    return operator


def not_permitted(message: str, wanted: str) -> ScheduleError:
    """Return R050 with the permission that would suffice.

    Args:
        message: The fault.
        wanted: A namespace, or the name of an operator.
    """
    hint = f"if you trust the file and where it comes from: apply(model, schedule, namespaces=({wanted!r},))"
    return ScheduleError("R050", message, hint=hint)


def check_operator(op: Op, live: OpOverload) -> None:
    """Compare an operation in the file and in the static tables with the live operator's schema.

    A wrong table must not corrupt gradients: an unlisted view would be counted, and overwritten, as a separate storage;
    an unlisted random operator would draw new numbers when recomputed.

    Raises:
        ScheduleError: R053.
    """
    schema = schema_of(live)
    returns, named = schema.returns, {a.name for a in schema.arguments}
    multiple = len(returns) > 1 or any(isinstance(r.type, torch.ListType) for r in returns)
    if len(op.args) > len(schema.arguments) or not named.issuperset(op.kwargs):
        raise _differs(op, f"its arguments do not fit {schema}")
    for argument, given in zip(schema.arguments, op.args, strict=False):
        _check_length(op, argument, given)
        _check_number(op, argument, given)
    for argument in schema.arguments:
        _check_length(op, argument, op.kwargs.get(argument.name))
        _check_number(op, argument, op.kwargs.get(argument.name))
    if op.multiple != multiple or (len(returns) > 1 and len(op.writes) != len(returns)) or not op.writes:
        raise _differs(op, f"its outputs do not fit {schema}")
    if any(r.alias_info is not None for r in returns) and op.op not in VIEWS:
        raise _differs(op, f"{op.op} returns a view of its argument, which the operator tables do not say")
    if torch.Tag.nondeterministic_seeded in live.tags and op.op not in RANDOM and op.op not in NOT_RANDOM:
        raise _differs(op, f"{op.op} draws random numbers, which the operator tables do not say")


def _check_length(op: Op, argument: Any, value: Any) -> None:
    """Check a list of fixed length, because kernels read it without checking.

    A single element stands for all. An empty stride stands for the size of the window.
    """
    if argument.N is None or argument.N < 2 or not is_tuple(value):  # 1: any length, or a single number
        return
    empty = argument.name == "stride" or argument.default_value == []
    if len(value) not in (1, argument.N) and not (empty and not value):
        raise _differs(op, f"`{argument.name}` of {op.op} has {argument.N} elements, not {len(value)}")


def _check_number(op: Op, argument: Any, given: Any) -> None:
    """Check that a number from live attributes is where the operator takes a single number, and that it decides no
    size."""
    if is_tuple(given) and any(isinstance(each, Number) for each in given):
        raise _differs(op, f"`{argument.name}` is a list, which holds no numbers that follow from live attributes")
    if not isinstance(given, Number):
        return
    kind = argument.type.getElementType() if argument.type.kind() == "OptionalType" else argument.type
    if not isinstance(kind, torch.FloatType | torch.NumberType | torch.TensorType):  # a number may stand for a tensor
        raise _differs(
            op,
            f"`{argument.name}` of {op.op} is neither a float nor a tensor, so it cannot follow from live attributes",
        )
    if op.op.startswith(_SIZED_BY_NUMBERS):
        raise _differs(op, f"`{argument.name}` of {op.op} decides a size, so it cannot follow from live attributes")


def kernel(name: str, live: OpOverload) -> Callable[..., Any]:
    """Return what runs the operator, without the Python frame of OpOverload.__call__.

    No result keeps more memory than it fills.
    """
    function = function_of(live)
    if live in (LAYER, LAYER_BACKWARD):
        return whole_layer(function)
    if name in COLLECTIVES:
        return _waited(function)
    if name not in COPIED:
        return function

    def run(*args: object, **kwargs: object) -> torch.Tensor:
        result = function(*args, **kwargs)
        return result.clone() if result.untyped_storage().nbytes() > result.nbytes else result

    return run


def _waited(function: Callable[..., object]) -> Callable[..., Any]:
    """A collective that has ended for its device when it returns: what it reads may be freed, or written over."""
    wait = function_of(_overload(WAIT))

    def run(*args: object, **kwargs: object) -> torch.Tensor:
        return wait(function(*args, **kwargs))

    return run


def in_place(op: Op) -> Callable[..., Any]:
    """Return what runs an operation that may write over its first argument. It returns that argument."""
    form = IN_PLACE[op.op]
    write = function_of(_overload(form.op))
    if form.through is None:
        return write
    view = function_of(_overload(form.through))

    def run(onto: torch.Tensor, given: torch.Tensor, *where: object, **named: object) -> torch.Tensor:
        write(view(onto, *where, **named), given)
        return onto

    return run


def over_the_second(op: Op) -> Callable[..., Any]:
    """Return what runs an operator of two arguments that may write over the second one, which comes first.

    With a scalar tensor of higher precision, the in-place form of exchanged arguments rounds differently.
    """
    write = function_of(_overload(f"{op.op.rpartition('.')[0]}.out"))

    def run(onto: torch.Tensor, first: torch.Tensor) -> Any:
        return write(first, onto, out=onto)

    return run


def laid_out_as_without(write: Callable[..., Any], op: Op) -> Callable[..., Any]:
    """Return what writes over an image with `write`, and gives it the strides that the operation's own result has.

    If all arguments are contiguous, or channels last, and have one shape, an elementwise kernel returns the usual
    strides of that format. Those of an axis of one element may differ in the argument. Kernels that test for channels
    last look at them, and round differently.

    Args:
        write: What writes over its first argument, and returns it.
        op: The operation.
    """
    if op.op not in _ELEMENTWISE or (op.op.endswith(".Tensor") and not all(isinstance(a, Ref) for a in op.args)):
        return write

    def run(onto: torch.Tensor, *rest: object, **named: object) -> torch.Tensor:
        given = [onto, *(each for each in rest if isinstance(each, torch.Tensor))]
        last = torch.channels_last if onto.dim() == 4 else torch.channels_last_3d
        strides = None
        if onto.dim() < 6 and all(each.shape == onto.shape for each in given):
            if all(each.is_contiguous() for each in given):
                strides = packed_strides(onto.shape, axes_of(CONTIGUOUS, onto.dim()))
            elif all(each.is_contiguous(memory_format=last) for each in given):
                strides = packed_strides(onto.shape, axes_of(CHANNELS_LAST, onto.dim()))
        result: torch.Tensor = write(onto, *rest, **named)
        return result if strides in (None, result.stride()) else result.as_strided_(result.shape, strides)

    return run


def _overload(name: str) -> OpOverload:
    namespace, packet, *rest = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), rest[0] if rest else "default")


def check_kernels(operators: Collection[tuple[str, OpOverload]], device: torch.device, planned: str) -> None:
    """Raise BindError with the operators that have no kernel for a device.

    Args:
        operators: Names and operators.
        device: The device.
        planned: The device class of the file.
    """
    lacking = sorted({name for name, live in operators if not has_kernel(live, device)})
    if lacking:
        raise BindError(
            f"the schedule was planned for {planned} and uses operators that {device.type} does not have: "
            f"{', '.join(lacking)}\n  plan again with the model and its inputs on {device.type}"
        )


def literal(argument: object, device: torch.device) -> Any:
    """Convert a literal from Graph form to torch. `{"device": "main"}` becomes `device`."""
    if is_tuple(argument):
        return [literal(a, device) for a in argument]
    if not is_object(argument):
        return argument
    ((key, value),) = argument.items()
    if key == "dtype":
        return TORCH_DTYPES[value]
    if key == "device":
        return device if value == "main" else torch.device("cpu")
    if key == "memory_format":
        return _MEMORY_FORMATS[value]
    if key == "layout":
        return torch.strided
    return complex(*value) if key == "complex" else float(value)


def constant(type_: TensorType, data: tuple[object, ...], device: torch.device) -> torch.Tensor:
    """Return the tensor of a constant of the file."""
    where = torch.device("cpu") if type_.cpu else device
    elements = [literal(e, where) if is_object(e) else e for e in data]
    flat = torch.tensor(elements, dtype=TORCH_DTYPES[type_.dtype], device=where)
    if type_.strides is None:
        return flat.view(type_.shape)
    place = torch.zeros(type_.shape, dtype=torch.int64, device=where)
    for dim, (size, stride) in enumerate(zip(type_.shape, type_.strides, strict=True)):
        spread = [1] * dim + [size] + [1] * (len(type_.shape) - dim - 1)
        place += stride * torch.arange(size, device=where).view(spread)
    storage = flat.new_zeros(int(place.max()) + 1 if flat.numel() else 0)
    storage[place.flatten()] = flat
    return storage.as_strided(type_.shape, type_.strides)


def empty(type_: TensorType, device: torch.device) -> torch.Tensor:
    """Return an uninitialised tensor of exactly this type."""
    where = torch.device("cpu") if type_.cpu else device
    dtype = TORCH_DTYPES[type_.dtype]
    if type_.strides is None:
        return torch.empty(type_.shape, dtype=dtype, device=where)
    return torch.empty_strided(type_.shape, type_.strides, dtype=dtype, device=where)


def laid_out(tensor: torch.Tensor, type_: TensorType) -> bool:
    """Return whether a tensor has the recorded strides. Strides of dimensions of size 1 do not matter."""
    if type_.strides is None:
        return tensor.is_contiguous()
    pairs = zip(tensor.shape, tensor.stride(), type_.strides, strict=True)
    return all(size < 2 or have == want for size, have, want in pairs)


def storage_address(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's storage; 0 if it is empty; for a fake tensor, a number in its place."""
    try:
        return tensor.untyped_storage().data_ptr() or _without_memory(tensor)
    except (RuntimeError, NotImplementedError):
        return storage_identity(tensor)


def address(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's elements; for a fake tensor, a number in place of its storage's address."""
    try:
        return tensor.data_ptr() or _without_memory(tensor)
    except (RuntimeError, NotImplementedError):
        return storage_identity(tensor)


def _without_memory(tensor: torch.Tensor) -> int:
    """Return a number for the storage of a fake tensor, whose address some versions of torch report as 0; 0 if
    empty."""
    return storage_identity(tensor) if is_fake(tensor) and tensor.numel() else 0


def is_fake(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has a type and a storage, but no memory."""
    return hasattr(tensor, "fake_mode")


def storage_identity(tensor: torch.Tensor) -> int:
    """Return a number that identifies a tensor's storage; of a tensor without storage, its own."""
    try:
        storage: Any = tensor.untyped_storage()
        return storage._cdata
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has sizes and strides: not sparse, nested, quantised, or with an unknown shape."""
    uninitialized = torch.nn.parameter.is_lazy(tensor)
    return not uninitialized and tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized


def described(tensor: torch.Tensor) -> str:
    """Describe a tensor in the file's notation: `f32[8,256]`, with its device, and with strides if not contiguous."""
    if not is_dense(tensor):
        if torch.nn.parameter.is_lazy(tensor):
            return f"no shape yet ({type(tensor).__name__})"
        kind = "nested" if tensor.is_nested else "quantised" if tensor.is_quantized else str(tensor.layout)
        return f"a {kind} tensor on {tensor.device}"
    dtype = SHORT_DTYPES.get(tensor.dtype, str(tensor.dtype))
    strides = "" if tensor.is_contiguous() else "{{{}}}".format(",".join(map(str, tensor.stride())))
    return f"{dtype}[{','.join(map(str, tensor.shape))}]{strides} on {tensor.device}"


def _differs(op: Op, what: str) -> ScheduleError:
    hint = f"{REPLAN} with the installed versions of torch and remate"
    return ScheduleError("R053", f"operation {op.id!r}: {what}", hint=hint)
