"""Default numbers of operators: capture leaves out an argument that equals its default."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from msgspec.structs import replace

from remate_runtime.flat_step import Graph, Number, Op


def explicit(graph: Graph) -> Graph:
    """Return the step with the defaults of all numbers written out, so that steps at several values have equal
    arguments."""
    return replace(graph, operations=tuple(map(_explicit, graph.operations)))


def implicit(op: Op) -> Op:
    """Return an operation without trailing arguments that equal their defaults."""
    defaults = _defaults(op.op)
    args = list(op.args)
    while args and len(args) <= len(defaults) and _is_default(args[-1], defaults[len(args) - 1]):
        args.pop()
    by_name = {name: value for name, value, _ in defaults}
    kwargs = {k: v for k, v in op.kwargs.items() if not (k in by_name and _same(v, by_name[k]))}
    return replace(op, args=tuple(args), kwargs=kwargs)


_Argument = tuple[str, Any, bool]  # name, default (_NONE: no default), whether it is a number that may be omitted
_NONE: Any = object()


def _explicit(op: Op) -> Op:
    args, kwargs = list(op.args), dict(op.kwargs)
    positional, named = _split(op.op)
    wanted = max(
        (at + 1 for at, (name, _, number) in enumerate(positional) if number and name not in kwargs), default=0
    )
    for name, default, _ in positional[len(args) : wanted]:
        if default is _NONE or name in kwargs:
            break
        args.append(default)
    kwargs |= {name: default for name, default, number in named if number and name not in kwargs}
    return replace(op, args=tuple(args), kwargs=kwargs) if len(args) > len(op.args) or kwargs != op.kwargs else op


def _is_default(value: object, argument: _Argument) -> bool:
    return argument[1] is not _NONE and _same(value, argument[1])


def _same(value: object, default: object) -> bool:
    return not isinstance(value, Number) and type(value) in (int, float, bool, str, type(None)) and value == default


def _defaults(name: str) -> list[_Argument]:
    positional, named = _split(name)
    return [*positional, *named]


@lru_cache(maxsize=1024)
def _split(name: str) -> tuple[tuple[_Argument, ...], tuple[_Argument, ...]]:
    """Return the positional and the keyword-only arguments of an operator."""
    space, packet, *overload = name.split(".")
    overloads = getattr(getattr(torch.ops, space), packet)
    schema = getattr(overloads, overload[0] if overload else "default")._schema
    positional, named = list[_Argument](), list[_Argument]()
    for argument in schema.arguments:
        plain = argument.has_default_value() and isinstance(argument.default_value, int | float | str | type(None))
        default = argument.default_value if plain else _NONE
        kind = argument.type.getElementType() if argument.type.kind() == "OptionalType" else argument.type
        number = isinstance(kind, torch.FloatType | torch.NumberType) and isinstance(default, int | float)
        (named if argument.kwarg_only else positional).append((argument.name, default, number))
    return tuple(positional), tuple(named)
