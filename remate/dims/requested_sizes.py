"""The sizes of a model's inputs that may vary: `dims` as users write it, matched with an example call.

The conventions are those of `dynamic_shapes` of torch.export: names of arguments, and for each the axes that vary, in
the structure of the argument. A name is a text, with a range if it has one (`"t=16..1024/8"`: 16 to 1024 in steps of
8), or a `torch.export.Dim`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import torch
from msgspec.structs import replace

from remate_runtime.bind import children, is_mapping
from remate_runtime.errors import ScheduleError
from remate_runtime.format import is_array, parse_size

from ..capture.signature import argument_names
from ..errors import DimsError

AUTO, NONE = "auto", "none"
BATCH = "b"  # what `dims="auto"` calls the size of the batch
_CHANNELS = 4  # most channels of an image
SMALLEST = 2  # at size 1 PyTorch copies less, so the step differs
_NAMED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:=([0-9]{1,9})\.\.([0-9]{1,9})?(?:/([0-9]{1,9}))?)?")
_SPACES = re.compile(r" *([*+]) *")
_HINT = 'write dims={"input_ids": {0: "b", 1: "t=16..1024"}}: argument, axis, name'


class RequestedSize(msgspec.Struct, frozen=True):
    """A size that may vary.

    Attributes:
        planned: Its value in the example.
        min: None if not given.
        max: None if not given.
        lower: Whether the range may end before `max`, where the step changes.
    """

    name: str
    planned: int
    min: int | None = None
    max: int | None = None
    multiple: int = 1
    lower: bool = False


class Axis(msgspec.Struct, frozen=True):
    """The place of a size: an axis of a tensor among the leaves of the inputs, in order."""

    leaf: int
    axis: int
    name: str


class Asking(msgspec.Struct, frozen=True):
    """All requests: sizes by name, and the axes of inputs that have them.

    Attributes:
        alike: Axes (argument, axis) without a name that have the size of a named one in the example.
        limits: Largest values of expressions of the sizes: `b*t`, 4096.
    """

    sizes: tuple[RequestedSize, ...]
    axes: tuple[Axis, ...]
    alike: tuple[tuple[str, int, str], ...] = ()
    limits: dict[str, int] = {}

    def forgotten(self, names: Collection[str]) -> str:
        """Return `axis 0 of 'labels' is as large as b`, for axes that may have one of the names; "" for none."""
        axes = [f"axis {axis} of {path!r} is as large as {name}" for path, axis, name in self.alike if name in names]
        return ", ".join(axes)


def read(dims: Any, model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Asking | None:
    """Return the requests of `dims` for a call; None if there are none. Raises DimsError for what does not fit the
    call."""
    if dims is None or dims == NONE or dims == {}:
        return None
    leaves = [*_leaves(args, kwargs, model)]
    if dims == AUTO:
        return _batch(
            leaves, {path for name, value in _arguments(args, kwargs, model) for path in _images(value, name)}
        )
    named = dict(zip(argument_names(model, len(args)), args, strict=True)) | dict(kwargs)
    if is_array(dims):
        dims = dict(zip(named, dims, strict=False))
    if not is_mapping(dims):
        raise DimsError(f"dims is {dims!r}", hint=_HINT)
    known = ", ".join(named) or "none"
    limits = {text: most for text, most in dims.items() if isinstance(text, str) and not text.isidentifier()}
    dims = {name: spec for name, spec in dims.items() if name not in limits}
    for name in dims:
        if name not in named:
            raise DimsError(f"the call has no argument {name!r}", hint=f"it has {known}")
    axes = [_at(dims.get(name), value, name) for name, value in named.items()]
    asking = _together([axis for each in axes for axis in each], leaves)
    return _limited(asking, limits) if limits else asking


def _leaves(
    args: Sequence[Any], kwargs: Mapping[str, Any], model: torch.nn.Module
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in _arguments(args, kwargs, model):
        yield from _tensors(value, name)


def _arguments(args: Sequence[Any], kwargs: Mapping[str, Any], model: torch.nn.Module) -> list[tuple[str, Any]]:
    return [*zip(argument_names(model, len(args)), args, strict=True), *kwargs.items()]


def _images(node: Any, path: str) -> Iterator[str]:
    """Yield the paths of images in lists, whose first axis is the channels."""
    parts = {} if isinstance(node, torch.Tensor) else (children(node) or ("", {}))[1]
    for key, child in parts.items():
        if not isinstance(child, torch.Tensor):
            yield from _images(child, f"{path}.{key}")
        elif isinstance(node, list) and child.dim() == 3 and child.shape[0] <= _CHANNELS:
            yield f"{path}.{key}"


def _tensors(node: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(node, torch.Tensor):
        yield path, node
    inner = children(node)
    for key, child in inner[1].items() if inner else ():
        yield from _tensors(child, f"{path}.{key}")


def _at(spec: Any, node: Any, path: str) -> list[dict[int, Any]]:
    """Return for each tensor below `node` the names of its axes."""
    if isinstance(node, torch.Tensor):
        return [_axes(spec, node, path)]
    inner = children(node)
    if inner is None:
        if spec:
            raise DimsError(f"argument {path!r} is no tensor", hint=_HINT)
        return []
    below = inner[1]
    if is_array(spec):
        spec = dict(zip(below, spec, strict=False))
    if spec is not None and not is_mapping(spec):
        raise DimsError(f"dims of {path!r} are {spec!r}, and it holds several tensors", hint=_HINT)
    parts: Mapping[Any, Any] = spec or {}
    unknown = [key for key in parts if key not in below]
    if unknown:
        raise DimsError(f"argument {path!r} has no part {unknown[0]!r}", hint=f"it has {', '.join(map(str, below))}")
    return [each for key, child in below.items() for each in _at(parts.get(key), child, f"{path}.{key}")]


def _axes(spec: Any, tensor: torch.Tensor, path: str) -> dict[int, Any]:
    if spec is None:
        return {}
    if is_array(spec):
        spec = dict(enumerate(spec))
    if not is_mapping(spec):
        raise DimsError(f"dims of {path!r} are {spec!r}", hint=_HINT)
    named: dict[int, Any] = {}
    for axis, name in spec.items():
        if not isinstance(axis, int) or not -tensor.dim() <= axis < tensor.dim():
            raise DimsError(f"{path!r} has no axis {axis!r}", hint=f"it has {tensor.dim()}, counted from 0")
        if name is not None and not isinstance(name, int) and str(name) != "DimHint(STATIC)":
            named[axis % tensor.dim()] = _named(name, f"{path}, axis {axis}")
    return named


def _named(given: Any, where: str) -> tuple[str, int | None, int | None, int]:
    """Return (name, min, max, multiple) of a request for a size."""
    if isinstance(given, str):
        match = _NAMED.fullmatch(given)
        if match is None or not _sound(match[1]):
            raise DimsError(f"{given!r} is no name of a size ({where})", hint="write t, or t=16..1024, or t=16..1024/8")
        low, high, step = (None if part is None else int(part) for part in match.groups()[1:])
        if low == 0 or step == 0 or (high is not None and (low or 1) > high):
            what = "no steps" if step == 0 else "size 0" if low == 0 else "nothing in it"
            hint = "the smaller end first, from 1, steps from 1: t=16..1024/8"
            raise DimsError(f"the range {given!r} has {what} ({where})", hint=hint)
        return match[1], low, high, step or 1
    if type(given).__name__ == "_DerivedDim":
        root, multiple = given.root, given.fn(1) - given.fn(0)
        if given.fn(0) != 0 or multiple < 1 or given.fn(2) != 2 * multiple:
            raise DimsError(f"{given.__name__} is not a multiple of {root.__name__} ({where})", hint="write 8*Dim(...)")
        low, high = (None if n is None else n * multiple for n in _ends(root))
        return root.__name__, low, high, multiple
    if type(given).__name__ == "Dim":
        low, high = _ends(given)
        return given.__name__, low, high, 1
    raise DimsError(f"{given!r} is no name of a size ({where})", hint=_HINT)


def _sound(name: str) -> bool:
    """Return whether a name is valid for a size in a file."""
    try:
        return parse_size(name).dims == frozenset({name})
    except ScheduleError:
        return False


def _ends(dim: Any) -> tuple[int | None, int | None]:
    """Return the ends that were given: Dim fills in 0 and infinity."""
    return dim.min or None, dim.max if isinstance(dim.max, int) else None


def _together(named_axes: list[dict[int, Any]], leaves: list[tuple[str, torch.Tensor]]) -> Asking | None:
    sizes: dict[str, RequestedSize] = {}
    axes: list[Axis] = []
    for leaf, (named, (_, tensor)) in enumerate(zip(named_axes, leaves, strict=True)):
        for axis, (name, low, high, multiple) in named.items():
            size = int(tensor.shape[axis])
            before = sizes.get(name, RequestedSize(name, size))
            if before.planned != size:
                raise DimsError(
                    f"{name!r} is {before.planned} and {size} in the example", hint="give sizes that differ other names"
                )
            for end, now, then in (("from", low, before.min), ("to", high, before.max)):
                if now and then and now != then:
                    raise DimsError(
                        f"{name!r} is requested {end} {then} and {end} {now}",
                        hint="state its range once, at one axis of it",
                    )
            sizes[name] = RequestedSize(
                name, size, low or before.min, high or before.max, max(multiple, before.multiple)
            )
            axes.append(Axis(leaf, axis, name))
    for size in sizes.values():
        _check(size)
    alike = tuple(
        (path, axis, size.name)
        for named, (path, tensor) in zip(named_axes, leaves, strict=True)
        for axis, number in enumerate(tensor.shape)
        for size in sizes.values()
        if named.get(axis, ("",))[0] != size.name and number == size.planned
    )
    return Asking(tuple(sizes.values()), tuple(axes), alike) if sizes else None


def _limited(asking: Asking | None, limits: Mapping[str, Any]) -> Asking:
    """Return the request with limits as a file has them. Raises DimsError."""
    planned = {} if asking is None else {size.name: size.planned for size in asking.sizes}
    checked: dict[str, int] = {}
    for text, most in limits.items():
        hint = 'write dims={"input_ids": {0: "b", 1: "t"}, "b*t": 4096}: the largest value of what grows with sizes'
        try:
            size = parse_size(_SPACES.sub(r"\1", text.strip()))
        except ScheduleError as fault:
            raise DimsError(f"{text!r} in dims is no argument and no product of sizes: {fault.message}", hint) from None
        if unknown := sorted(size.dims - planned.keys()):
            raise DimsError(f"the limit of {text!r} names the size {unknown[0]!r}, which no axis has", hint)
        if type(most) is not int or not size.dims or any(term.coefficient < 0 for term in size.terms):
            raise DimsError(f"{text!r} is limited to {most!r}", hint)
        if size.at(planned) > most:
            message = f"{text!r} is {size.at(planned)} in the example, over its limit of {most}"
            raise DimsError(message, "plan with an example within it")
        checked[str(size)] = most
    assert asking is not None
    return replace(asking, limits=checked)


def _check(size: RequestedSize) -> None:
    low, high = size.min or 1, size.max or size.planned
    if size.planned % size.multiple or not low <= size.planned <= high:
        span = f"{low}..{high}" + (f"/{size.multiple}" if size.multiple > 1 else "")
        outside = f"no multiple of {size.multiple}" if low <= size.planned <= high else f"outside of {span}"
        raise DimsError(
            f"{size.name!r} is {size.planned} in the example, {outside}", hint="plan with an example in range"
        )


def _batch(leaves: list[tuple[str, torch.Tensor]], images: Collection[str]) -> Asking | None:
    """Return a request for the first axis of every input with the size of the first input's, without images."""
    sizes = [int(tensor.shape[0]) if tensor.dim() and path not in images else 0 for path, tensor in leaves]
    first = next((size for size in sizes if size), 0)
    axes = tuple(Axis(leaf, 0, BATCH) for leaf, size in enumerate(sizes) if size == first)
    return Asking((RequestedSize(BATCH, first),), axes) if first > SMALLEST else None
