"""Containers in the inputs and outputs of a model. Planner and runtime decompose them in the same way."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import enum
import sys
import types
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any, TypeGuard

import torch

from ..format.json_values import is_array, is_tuple

_OF_LIBRARIES = {*sys.stdlib_module_names, "torch", "numpy"}  # whose objects have more state than their attributes
_NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
_NO_OBJECTS = (tuple, list, Mapping, type, enum.Enum, BaseException, types.ModuleType, torch.Tensor, torch.nn.Module)


def children(node: object) -> tuple[str, dict[str, Any]] | None:
    """Return the kind and the children by key of a container; None for leaves and other objects.

    Kinds are `tuple`, `list`, `dict` (a mapping with text keys) and `record` (a named tuple, a dataclass, a
    `torch.Size` with its axes as fields, or an object with attributes, such as a batch of graphs). Hugging Face outputs
    are both mapping and dataclass; only their items count, so fields that are None are left out.
    """
    if isinstance(node, torch.Tensor):
        return None
    if is_tuple(node) and (fields := getattr(node, "_fields", None)) is not None:
        return "record", dict(zip(fields, node, strict=True))
    if isinstance(node, torch.Size):
        return "record", {str(axis): size for axis, size in enumerate(node)}
    if is_array(node):
        return "tuple" if isinstance(node, tuple) else "list", {str(at): child for at, child in enumerate(node)}
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        if is_mapping(node):
            return "record", dict(node.items())
        return "record", {field.name: getattr(node, field.name) for field in dataclasses.fields(node)}
    if is_mapping(node) and all(isinstance(key, str) for key in node):
        return "dict", dict(node.items())
    return ("record", _attributes(node)) if is_object(node) and not _contains(node, {id(node)}) else None


def is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    """Return whether a value is a mapping."""
    return isinstance(value, Mapping)


def _is_mutable(value: object) -> TypeGuard[MutableMapping[Any, Any]]:
    return isinstance(value, MutableMapping)


def is_object(node: object) -> bool:
    """Return whether a value is an object that its attributes describe: of a class in Python that is not a library's.

    Caches of keys and values are none, because forward changes them.
    """
    kind = type(node)
    if dataclasses.is_dataclass(node) or isinstance(node, _NO_OBJECTS) or "Cache" in kind.__name__:
        return False
    return kind in _NAMESPACES or (_has_attributes_only(kind) and not _is_of_library(kind))


def _has_attributes_only(kind: type) -> bool:
    """Return whether instances have no state but attributes: neither slots nor what a class in C keeps."""
    sizes = (kind.__basicsize__, kind.__itemsize__, kind.__dictoffset__)
    return sizes == (_Attributes.__basicsize__, _Attributes.__itemsize__, _Attributes.__dictoffset__)


def _is_of_library(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    return kind.__module__.partition(".")[0] in _OF_LIBRARIES and getattr(module, kind.__name__, None) is kind


class _Attributes:
    """A class as most are: instances have attributes and nothing else."""


def _attributes(node: object) -> dict[str, Any]:
    """Return the attributes of an object. Private ones that hold a class are part of its code."""
    held = vars(node).items()
    return {name: value for name, value in held if not (name.startswith("_") and isinstance(value, type))}


def _contains(node: object, above: set[int]) -> bool:
    """Return whether an object refers to itself, or to one of the objects above it."""
    if is_object(node):
        parts: Iterable[object] = _attributes(node).values()
    elif is_mapping(node):
        parts = node.values()
    else:
        parts = node if is_array(node) else ()
    return any(id(part) in above or _contains(part, above | {id(part)}) for part in parts)


def rebuild(node: object, parts: dict[str, Any]) -> Any:
    """Return a container like `node` with other children, by key, in the order of `parts`."""
    if is_tuple(node) and hasattr(node, "_fields"):
        return type(node)(**parts)
    if isinstance(node, torch.Size):
        return torch.Size(parts.values())
    if is_array(node):
        return (tuple if isinstance(node, tuple) else list)(parts.values())
    if type(node) is dict:
        return parts
    if is_mapping(node) and not isinstance(node, MutableMapping):
        make: Any = type(node)
        return make(parts)
    if is_object(node) and type(node) not in _NAMESPACES:
        made = object.__new__(type(node))  # its own way to copy may do more, or fail
        vars(made).update(vars(node) | parts)
        return made
    copied = copy.copy(node)  # the constructor may take other arguments, or do more than store them
    if _is_mutable(copied) and not dataclasses.is_dataclass(copied) and list(copied) != list(parts):
        copied.clear()
    for key, part in parts.items():
        if _is_mutable(copied):
            copied[key] = part
        else:
            object.__setattr__(copied, key, part)
    return copied


def mapped(node: object, leaf: Callable[[Any], object]) -> Any:
    """Return `node` with `leaf` applied to each of its leaves, in the order of keys."""
    inner = children(node)
    return leaf(node) if inner is None else rebuild(node, {key: mapped(part, leaf) for key, part in inner[1].items()})
