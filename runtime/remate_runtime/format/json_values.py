"""Type guards for decoded JSON: they give types to the contents of arrays and objects. Does not require torch."""

from __future__ import annotations

from typing import Any, TypeAlias, TypeGuard

Json: TypeAlias = "bool | int | float | str | list[Json] | tuple[Json, ...] | dict[str, Json] | None"


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    """Return whether a value is a JSON object."""
    return isinstance(value, dict)


def is_array(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    """Return whether a value is an array: a list from a decoder, or a tuple from code."""
    return isinstance(value, (list, tuple))


def is_tuple(value: object) -> TypeGuard[tuple[Any, ...]]:
    """Return whether a value is a tuple."""
    return isinstance(value, tuple)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Return whether a value is a list."""
    return isinstance(value, list)


def object_at(value: object, key: str) -> dict[str, Any]:
    """Return the object under a key of an object; an empty one if either is something else."""
    inner = value.get(key) if is_object(value) else None
    return inner if is_object(inner) else {}
