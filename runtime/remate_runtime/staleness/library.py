"""Functions of packages that forward reaches, and whether they are the ones that the packages define.

Their code is compared by the package's version. A replaced function is described. Names are read from the bytecode of a
function as a whole, so that slightly more functions are checked than forward calls.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ..bind.containers import is_mapping
from .contexts import with_wrapped
from .ownership import has_own_file, is_own, qualified
from .syntax import class_decorators, function_tree
from .values import MISSING, underlying, unwrapped

_FOLLOWED = 3000  # upper limit of functions to check
_TORCH = (
    "torch.nn.functional",
    "torch.nn.modules",
)  # the parts of torch whose functions are followed; others are only looked up
_NOT_FORWARDS = frozenset({nn.Module, object, type})


_OPERATORS = frozenset(
    f"__{name}__" for name in "add radd sub rsub mul rmul truediv rtruediv matmul pow neg getitem setitem".split()
)


class Library:
    """Collects functions of packages.

    Attributes:
        places: Holder and key of each reached function, by name.
        patched: Functions that are not their package's own, described.
        members: Methods that are called on `self`, by class.
        entries: (mapping, key) of functions that packages register by name.
    """

    def __init__(self, describe: Callable[[Any], object], members: dict[type, set[str]]) -> None:
        self._describe = describe
        self.members = members
        self.places: dict[str, tuple[Mapping[str, Any] | type, str]] = {}
        self.patched: dict[str, Any] = {}
        self.entries: list[tuple[Mapping[str, Any], str]] = []
        self._registries: dict[str, Mapping[str, Any]] = {}
        self._tops: set[str] = set()
        self._followed: set[tuple[Any, Any]] = set()
        self._waiting: list[tuple[Any, Any]] = []

    def module_class(self, kind: type[nn.Module]) -> None:
        """Follow what a class of a package computes."""
        self._tops.add(_top(kind.__module__))
        self._members(kind, ("forward", "__call__"))
        self._work()

    def reach(self, holder: Mapping[str, object], module: str, key: str) -> None:
        """Follow a function that the user's code names."""
        self._place(f"{module}.{key}", module, holder, key, None)
        self._work()

    def all_followed(self) -> list[types.FunctionType]:
        """Return the functions whose code was read."""
        return list({id(function): function for function, _ in self._followed}.values())

    def look_up(self, words: Collection[str]) -> None:
        """Describe what packages register under these names in mappings of functions (`ALL_ATTENTION_FUNCTIONS`)."""
        for label, registry in sorted(self._registries.items()):
            for word in sorted(words):
                function = registry.get(word) if word in registry else None
                if isinstance(function, types.FunctionType):
                    self.entries.append((registry, word))
                    self.patched[f"{label}[{word}]"] = self._describe(function)

    def look_at_tensors(self) -> None:
        """Describe the methods of tensors that were replaced."""
        for name, method in patched_tensor_methods():
            self.patched[f"torch.Tensor.{name}"] = self._describe(method)

    def _work(self) -> None:
        while self._waiting:
            self._look(*self._waiting.pop())

    def _look(self, function: types.FunctionType, kind: type | None) -> None:
        names, scope = _names(function.__code__), function.__globals__
        module = scope.get("__name__", "")
        for name in names:
            content = scope.get(name, MISSING)
            if isinstance(content, types.ModuleType) and not is_own(content.__name__):
                attributes = vars(content)
                for other in names:
                    if _is_function(attributes.get(other)):
                        self._place(f"{content.__name__}.{other}", content.__name__, attributes, other, None)
            elif _is_function(content):
                self._place(f"{module}.{name}", module, scope, name, None)
            elif is_mapping(content) and len(content) and all(isinstance(key, str) for key in content):
                self._registries[f"{module}.{name}"] = content
        if kind is not None:
            self._members(kind, names)
        for cell in function.__closure__ or ():
            self._follow(_content(cell), kind)
        self._follow(inspect.getattr_static(function, "__wrapped__", None), kind)

    def _members(self, kind: type, names: Collection[str]) -> None:
        for name in names:
            base = next((base for base in kind.__mro__ if name in vars(base)), None)
            if base is None or base in _NOT_FORWARDS or not _is_function(underlying(vars(base)[name])):
                continue
            if name != "forward":
                self.members.setdefault(kind, set()).add(name)
            if not is_own(base.__module__):
                self._place(f"{qualified(base)}.{name}", base.__module__, base, name, kind)

    def _place(self, label: str, module: str, holder: Mapping[str, object] | type, key: str, kind: type | None) -> None:
        attributes = vars(holder) if isinstance(holder, type) else holder
        function = unwrapped(underlying(attributes[key]))
        if label not in self.places:
            self.places[label] = (holder, key)
            if not _is_where_it_belongs(function, module, key):
                self.patched[label] = self._describe(function)
        self._follow(function, kind)

    def _follow(self, function: object, kind: type | None) -> None:
        if not isinstance(function, types.FunctionType) or len(self._followed) >= _FOLLOWED:
            return
        module = function.__module__ or ""
        if _top(module) not in self._tops and not module.startswith(_TORCH):
            return
        if _top(module) == "torch" and not module.startswith(_TORCH):
            return
        if (function, kind) not in self._followed:
            self._followed.add((function, kind))
            self._waiting.append((function, kind))


def tensor_methods(functions: Iterable[types.FunctionType]) -> Iterator[str]:
    """Yield the methods of tensors that functions may call: those that they name, and operators."""
    named = {name for function in functions for name in _names(function.__code__)}
    yield from sorted(name for name in named | _OPERATORS if callable(getattr(torch.Tensor, name, None)))


def patched_tensor_methods() -> Iterator[tuple[str, Any]]:
    """Yield the methods of tensors that somebody replaced by a function of their own."""
    for name, method in vars(torch.Tensor).items():
        if isinstance(method, types.FunctionType) and _top(method.__module__ or "") != "torch":
            yield name, method


def _top(module: str) -> str:
    return module.partition(".")[0]


def _is_function(value: object) -> bool:
    return isinstance(value, types.FunctionType | types.BuiltinFunctionType | functools.partial | types.MethodType)


def _is_where_it_belongs(function: object, module: str, key: str) -> bool:
    if isinstance(function, types.BuiltinFunctionType):
        return function.__name__ == key or key in function.__name__
    if not isinstance(function, types.FunctionType) or has_own_file(function):
        return False
    if function.__name__ != key or _top(function.__module__ or "") != _top(module):
        return False
    return not _is_made_later(function)


def _is_made_later(function: types.FunctionType) -> bool:
    """Return whether a function that a function made has taken the place of what the source defines.

    Decorators of the function or its class made it when they were defined, so did `__init_subclass__`: transformers
    wraps `forward` of every layer that a class of its own is the base of.
    """
    *wrappers, source = with_wrapped(function)
    made = [w for w in (*wrappers, source) if _is_made(w)]
    if not made or (len(made) == 1 and made[0] is source and _top(source.__module__ or "") == "torch"):
        return False
    tree = function_tree(source) if isinstance(source, types.FunctionType) else None
    decorators = list(getattr(tree, "decorator_list", ()))
    foreign = [_root(decorator, source.__globals__) for decorator in decorators]
    if sum(_is_foreign(getattr(w, "__globals__", {}).get("__name__") or "", w) for w in wrappers) > sum(
        _is_foreign(getattr(d, "__module__", None) or getattr(d, "__name__", ""), source) for d in foreign
    ):
        return True
    return len(made) > len(decorators) and len(made) > len(decorators) + class_decorators(source)


def _is_made(function: object) -> bool:
    """Return whether code of a function made a function after its class, if any, was defined."""
    name = getattr(getattr(function, "__code__", None), "co_qualname", "")
    return "<locals>" in name and "__init_subclass__" not in name.split(".")


def _is_foreign(module: str, function: Any) -> bool:
    return _top(module) == "torch" or _top(module) != _top(function.__module__ or "")


def _root(decorator: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return what the first name of a decorator means: torch, of `@torch.no_grad()`."""
    while isinstance(decorator, ast.Call | ast.Attribute):
        decorator = decorator.func if isinstance(decorator, ast.Call) else decorator.value
    return names.get(decorator.id, builtins) if isinstance(decorator, ast.Name) else builtins


@functools.lru_cache(maxsize=8192)
def _names(code: types.CodeType) -> tuple[str, ...]:
    """Return the globals and attributes that a function and its inner functions name."""
    names = dict.fromkeys(code.co_names)
    for inner in _inner(code):
        names.update(dict.fromkeys(_names(inner)))
    return tuple(names)


def _inner(code: types.CodeType) -> Iterator[types.CodeType]:
    return (constant for constant in code.co_consts if isinstance(constant, types.CodeType))


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty cell
        return None
