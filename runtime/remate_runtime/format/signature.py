"""The trees of a model's inputs and outputs in a schedule file, and their leaves in order."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import ScheduleError
from .json_values import is_object
from .memory_layouts import PRESERVE
from .tensor_type import DTYPES, TensorType
from .trees import attributes_of, leaf_nodes

if TYPE_CHECKING:
    from .schedule import Model

# a path of modules, and a Python name without underscores on both sides
_ATTRIBUTE = re.compile(r"(?:[^.\x00-\x1f%]{1,200}\.){0,60}(?!__)[A-Za-z_][A-Za-z0-9_]{0,200}", re.ASCII)


class Leaf(msgspec.Struct, frozen=True):
    """A tensor of the signature.

    Attributes:
        text: Its type (input) or `%value` (output).
        grad: A gradient passes through it.
        detached: Outputs: eager has a gradient for it, the step was planned without.
        same: Inputs: the input that is the same tensor.
        gradient_axes: Outputs: the axes of the gradient by descending stride; () for those of the output.
    """

    name: str
    text: str
    grad: bool
    where: str  # JSON pointer
    detached: bool = False
    same: str = ""
    gradient_axes: tuple[int, ...] = ()

    @property
    def differentiate(self) -> str:
        """The entry of `remate.plan(differentiate=)` that plans the gradient of this output in this memory layout."""
        return f"{self.name}:{','.join(map(str, self.gradient_axes)) or PRESERVE}"

    def tangent(self, output: TensorType) -> TensorType:
        """Return the type of the gradient of an output.

        Args:
            output: Type of the output.
        """
        return output.ordered(self.gradient_axes) if self.gradient_axes else output.dense


def input_leaves(inputs: dict[str, Any]) -> Iterator[Leaf]:
    """Yield the tensor leaves of `{"args": [...], "kwargs": {...}}` in call order."""
    for at, tree in enumerate(inputs.get("args", ())):
        yield from leaves(tree, "tensor", f"/model/inputs/args/{at}")
    for name, tree in inputs.get("kwargs", {}).items():
        yield from leaves(tree, "tensor", f"/model/inputs/kwargs/{escape(name)}")


def live_inputs(inputs: dict[str, Any]) -> Iterator[str]:
    """Yield the names of live inputs in call order."""
    for tree in (*inputs.get("args", ()), *inputs.get("kwargs", {}).values()):
        yield from (leaf["live"] for leaf in leaf_nodes(tree) if "live" in leaf)


def output_leaves(outputs: Any) -> Iterator[Leaf]:
    """Yield the tensor leaves of forward's result, then of the attributes that it sets."""
    where = "/model/outputs"
    if not is_object(outputs) or "returns" not in outputs:
        yield from leaves(outputs, "value", where)
        return
    yield from leaves(outputs["returns"], "value", f"{where}/returns")
    for path, tree in _typed(outputs.get("attributes"), dict, where).items():
        yield from leaves(tree, "value", f"{where}/attributes/{escape(path)}")


def plain_attributes(outputs: Any) -> list[str]:
    """Return the paths of the attributes that forward sets to values without tensors."""
    return [
        path for path, tree in attributes_of(outputs).items() if all("literal" in leaf for leaf in leaf_nodes(tree))
    ]


def is_attribute(path: str) -> bool:
    """Return whether a file may name this attribute of a module for forward to set: `moe.aux`, no name of Python's
    own."""
    return _ATTRIBUTE.fullmatch(path) is not None


def is_permutation(axes: object) -> bool:
    """Return whether these are axes, each of them once."""
    if not isinstance(axes, list | tuple):
        return False
    numbers: list[Any] = [*axes]
    return all(type(axis) is int for axis in numbers) and sorted(numbers) == [*range(len(numbers))]


_LARGEST = {"f16": 65504.0, "bf16": 3.38e38, "f32": 3.4028234663852886e38, "f64": sys.float_info.max}


def fill_fault(type_: str | None, number: bool | int | float) -> str:
    """Return the fault of a number to pad an input with; "" if there is none. type_: of the input, None without one."""
    if type_ is None:
        return "is no input of the file"
    dtype = type_.partition("[")[0]
    if dtype not in DTYPES:
        return ""  # the type itself has a fault
    if dtype == "bool":
        fits = isinstance(number, bool)
    elif isinstance(number, bool):
        fits = False
    elif dtype[0] in "iu":
        bits, signed = 8 * DTYPES[dtype][1], dtype[0] == "i"
        least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        fits = isinstance(number, int) and least <= number <= most
    else:
        fits = abs(number) <= _LARGEST.get(dtype, 0.0)
    return "" if fits else f"is a tensor of {dtype}, which cannot hold {number!r}"


def named_faults(model: Model) -> Iterator[tuple[ScheduleError, str]]:
    """Yield the faults of names in `frozen`, `tied` and `fill`, with their places."""
    for name in model.frozen:
        if name not in model.parameters:
            yield ScheduleError("R065", f"{name[:120]!r} is no parameter of the file"), "/model/frozen"
    for name in model.tied.values():
        if name not in model.parameters and name not in model.buffers:
            yield ScheduleError("R065", f"{name[:120]!r} is no parameter or buffer of the file"), "/model/tied"
    inputs = {leaf.name: leaf.text for leaf in input_leaves(model.inputs)}
    for name, number in model.fill.items():
        if fault := fill_fault(inputs.get(name), number):
            yield ScheduleError("R066", f"{name[:120]!r} {fault}"), f"/model/fill/{escape(name)}"


def leaves(tree: Any, key: str, where: str) -> Iterator[Leaf]:
    """Yield the leaves of a tree. Raises ScheduleError R016 for anything that is no tree."""
    if is_object(tree) and key in tree:
        name, text = tree.get("name"), tree[key]
        if not (isinstance(name, str) and isinstance(text, str) and isinstance(tree.get("grad", False), bool)):
            raise ScheduleError("R016", "a tensor leaf has a name, and grad is true or false", where)
        same = tree.get("same", "")
        if not isinstance(same, str):
            raise ScheduleError("R016", "expected text", f"{where}/same")
        axes = tree.get("gradient_axes", ())
        if not is_permutation(axes):
            raise ScheduleError("R016", "expected each axis once", f"{where}/gradient_axes")
        yield Leaf(name, text, tree.get("grad", False), where, tree.get("detached") is True, same, tuple(axes))
    elif isinstance(tree, dict) and ("literal" in tree or (key == "tensor" and "live" in tree)):
        return
    elif isinstance(tree, dict) and ("tuple" in tree or "list" in tree):
        kind = "tuple" if "tuple" in tree else "list"
        for at, child in enumerate(_typed(tree[kind], list, where)):
            yield from leaves(child, key, f"{where}/{kind}/{at}")
    elif isinstance(tree, dict) and ("dict" in tree or "fields" in tree):
        kind = "dict" if "dict" in tree else "fields"
        for name, child in _typed(tree[kind], dict, where).items():
            yield from leaves(child, key, f"{where}/{kind}/{escape(name)}")
    else:
        raise ScheduleError("R016", "no tree", where, f"use {key}, literal, tuple, list, dict or record with fields")


def _typed(value: Any, kind: type, where: str) -> Any:
    if not isinstance(value, kind):
        raise ScheduleError("R016", f"expected a JSON {'array' if kind is list else 'object'}", where)
    return value


def escape(part: str) -> str:
    """Escape a part of a JSON pointer (RFC 6901)."""
    return part.replace("~", "~0").replace("/", "~1")


def unescape(part: str) -> str:
    """Return the inverse of `escape`."""
    return part.replace("~1", "/").replace("~0", "~")
