"""Mutates a call: empty, 0-dimensional, expanded and far-spread tensors, other dtypes and contents, integers out of
range, other lists."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from remate_runtime.flat_step.graph import Ref
from remate_runtime.format.tensor_type import TensorType

from .operator_program import Call, Program, Source

_DTYPES = ("f64", "bf16", "f16", "i64", "i32", "u8", "bool", "c64", "f8e4m3", "u16", "i8")
_INTEGERS = (0, -1, 1, 2, 7, 2**31 - 1, 2**31, -(2**31), 2**62, -(2**63))
_FLOATS = (0.0, -1.0, 1e308, {"float": "nan"}, {"float": "inf"}, {"float": "-inf"})
_CONTENTS: tuple[float | int, ...] = (
    -1, 0, 1, 10**6, 2**31, 2**40, -(2**40), -(2**63), float("nan"), float("inf"), 1e30,
)  # fmt: skip
_TEXTS = ("mean", "sum", "none", "tanh", "max", "x", "")


def mutations(program: Program, combined: int, seed: str) -> Iterator[Program]:
    """The program, every single mutation of it, and this many combinations of two or three."""
    yield program
    single = list(_changes(program))
    yield from single
    rng = random.Random(seed)
    for _ in range(combined if single else 0):
        changed = program
        for _ in range(rng.choice((2, 2, 3))):
            following = list(_changes(changed))
            changed = rng.choice(following) if following else changed
        yield changed


def _changes(program: Program) -> Iterator[Program]:
    yield from _sizes_everywhere(program)
    for at, source in enumerate(program.sources):
        for changed in (*_types(source), *_contents(source)):
            yield _with_source(program, at, changed)
    for at in range(len(program.calls)):
        yield from _arguments(program, at)


def _sizes_everywhere(program: Program) -> Iterator[Program]:
    """A size that several arguments share, changed in all of them."""
    sizes = sorted({n for source in program.sources for n in source.type.shape})
    for size in sizes:
        for other in (0, 1, size + 1):
            changed = tuple(
                replace(each, type=_reshaped(each.type, tuple(other if n == size else n for n in each.type.shape)))
                for each in program.sources
            )
            yield replace(program, sources=changed)
            calls = tuple(_resized(call, size, other) for call in program.calls)
            if calls != program.calls:
                yield replace(program, sources=changed, calls=calls)


def _resized(call: Call, size: int, other: int) -> Call:
    def change(given: Any) -> Any:
        if isinstance(given, tuple):
            return tuple(map(change, given))
        return other if type(given) is int and given == size else given

    return replace(call, args=change(call.args), kwargs={k: change(v) for k, v in call.kwargs.items()})


def _reshaped(type_: TensorType, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> TensorType:
    return TensorType(type_.dtype, shape, strides, type_.cpu)


def _types(source: Source) -> Iterator[Source]:
    type_ = source.type
    shape = type_.shape
    shapes = [(*shape[:at], 0, *shape[at + 1 :]) for at in range(len(shape))]
    shapes += [(*shape[:at], n + 1, *shape[at + 1 :]) for at, n in enumerate(shape)]
    shapes += [(), (0,), (1,), shape[1:], shape[:-1], (1, *shape), (*shape, 1), (0, *shape), (1,) * len(shape)]
    shapes += [shape[::-1], (*shape[:-1], 0, 3), (3,) * len(shape)]
    for other in dict.fromkeys(shapes):
        if other != shape:
            yield replace(source, type=_reshaped(type_, other))
    if shape:
        dense = list(TensorType(type_.dtype, shape).shape)
        steps = [1] * len(dense)
        for at in reversed(range(len(dense) - 1)):
            steps[at] = steps[at + 1] * max(1, dense[at + 1])
        layouts = {
            (0,) * len(shape),
            (0, *steps[1:]),
            (*steps[:-1], 0),
            tuple(7 * step for step in steps),
            (1 << 19, *steps[1:]),
        }
        if len(shape) > 1:
            flipped = [1] * len(shape)
            for at in range(1, len(shape)):
                flipped[at] = flipped[at - 1] * max(1, shape[at - 1])
            layouts.add(tuple(flipped))
        for strides in sorted(layouts):
            yield replace(source, type=_reshaped(type_, shape, strides))
    for dtype in _DTYPES:
        if dtype != type_.dtype:
            yield replace(source, type=replace(type_, dtype=dtype))


def _contents(source: Source) -> Iterator[Source]:
    for number in _CONTENTS:
        if isinstance(number, int) or source.type.dtype[0] in "fbc":
            yield replace(source, fill=number)


def _with_source(program: Program, at: int, source: Source) -> Program:
    return replace(program, sources=(*program.sources[:at], source, *program.sources[at + 1 :]))


def _arguments(program: Program, at: int) -> Iterator[Program]:
    call = program.calls[at]

    def changed(new: Call) -> Program:
        return replace(program, calls=(*program.calls[:at], new, *program.calls[at + 1 :]))

    for place, given in enumerate(call.args):
        for other in _others(given, len(program.sources)):
            yield changed(replace(call, args=(*call.args[:place], other, *call.args[place + 1 :])))
    for name, given in call.kwargs.items():
        for other in _others(given, len(program.sources)):
            yield changed(replace(call, kwargs={**call.kwargs, name: other}))


def _others(given: Any, sources: int) -> Iterator[Any]:
    if isinstance(given, Ref):
        yield None
        yield from (Ref(at) for at in range(sources) if at != given.value)
    elif isinstance(given, bool):
        yield not given
    elif isinstance(given, int):
        yield from (number for number in _INTEGERS if number != given)
    elif isinstance(given, float):
        yield from _FLOATS
    elif isinstance(given, str):
        yield from (text for text in _TEXTS if text != given)
    elif isinstance(given, tuple):
        yield ()
        yield given + given[-1:]
        yield given[:-1]
        yield (None,) * len(given)
        for at, each in enumerate(given[:6]):
            if isinstance(each, int) and not isinstance(each, bool):
                yield from ((*given[:at], number, *given[at + 1 :]) for number in (0, -1, 1, 3, 2**31, 2**62, -(2**62)))
            elif isinstance(each, bool):
                yield (*given[:at], not each, *given[at + 1 :])
        if given and all(type(each) is int for each in given):
            yield from ((number,) * len(given) for number in (0, -1, 1, 2**31, 2**62))
    elif given is None:
        yield from (0, 1, -1, 2**31, (), (0,), *(Ref(at) for at in range(sources)))
    elif isinstance(given, dict) and "dtype" in given:
        yield from ({"dtype": dtype} for dtype in _DTYPES)
