"""Hooks that only observe: their source shows that they return and write nothing. A schedule leaves them out."""

from __future__ import annotations

import ast
import functools
import inspect
import types
from collections.abc import Mapping
from typing import Any

from .syntax import Function, function_tree
from .values import unwrapped

_ASKING = frozenset(
    """detach item tolist shape size dim ndim dtype device numel nelement element_size requires_grad layout
is_contiguous is_floating_point __class__""".split()
)
_TELLING = frozenset({"isinstance", "len", "type", "print", "float", "int", "str", "repr", "bool", "id", "hasattr"})
_FILLS = frozenset({"append", "extend", "add", "update"})
_DEEP = 4  # limit of partials and methods around a function


def observes(hook: object) -> bool:
    """Return whether a forward hook provably computes nothing: it returns no value, and writes into no tensor.

    False if its source cannot be read.
    """
    function = _function(hook, 0)
    if function is None or inspect.isgeneratorfunction(function):
        return False
    tree = function_tree(function)
    return tree is not None and _only_looks(tree)


def _function(hook: object, depth: int) -> Any:
    hook = unwrapped(hook)
    if depth > _DEEP:
        return None
    if isinstance(hook, functools.partial):
        return _function(hook.func, depth + 1)
    if isinstance(hook, types.MethodType):
        return _function(hook.__func__, depth + 1)
    if isinstance(hook, types.FunctionType):
        return None if hasattr(hook, "__wrapped__") else hook
    call = inspect.getattr_static(type(hook), "__call__", None)
    return call if isinstance(call, types.FunctionType) else None


def _only_looks(function: Function) -> bool:
    """Return whether every use of a hook's arguments only reads them or takes a detached copy."""
    lambda_ = isinstance(function, ast.Lambda)
    if lambda_ and not _is_logging(function.body):
        return False
    above = {id(child): node for node in ast.walk(function) for child in ast.iter_child_nodes(node)}
    names = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
    module, *passed = names[1:] if names[:1] == ["self"] else names or [""]
    arguments = set(passed)
    arguments |= {arg.arg for arg in (function.args.vararg, function.args.kwarg) if arg is not None}
    nodes = [node for each in ([function.body] if lambda_ else function.body) for node in ast.walk(each)]
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    for node in nodes:  # a local variable may refer to an argument
        if isinstance(node, ast.Assign) and any(
            isinstance(part, ast.Name) and part.id in arguments for part in ast.walk(node.value)
        ):
            arguments |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    if not all(_reads(node, above) for node in nodes if isinstance(node, ast.Name) and node.id == module):
        return False
    for node in nodes:
        if isinstance(node, ast.Return) and not (node.value is None or _is_none(node.value)):
            return False
        if _may_write(node, arguments | bound - _declared(nodes)):
            return False
        if (
            isinstance(node, ast.Name)
            and node.id in arguments
            and isinstance(node.ctx, ast.Load)
            and not _asks(node, above)
        ):
            return False
    return True


def _reads(node: ast.AST, above: Mapping[int, ast.AST]) -> bool:
    """Return whether a use of the module only reads an attribute. A call with the module may change it."""
    while isinstance(upper := above.get(id(node)), ast.Attribute | ast.Subscript) and upper.value is node:
        node = upper
        if not isinstance(upper.ctx, ast.Load):
            return False
    if not isinstance(upper, ast.Call):
        return True
    if upper.func is node:
        return isinstance(node, ast.Attribute) and node.attr in _ASKING
    return isinstance(upper.func, ast.Name) and upper.func.id in _TELLING


def _is_logging(body: ast.expr) -> bool:
    """Return whether a lambda returns nothing: None, or the result of a list method that fills the list."""
    called = body.func if isinstance(body, ast.Call) else None
    return _is_none(body) or (isinstance(called, ast.Attribute) and called.attr in _FILLS)


def _declared(nodes: list[ast.AST]) -> set[str]:
    return {name for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}


def _may_write(node: ast.AST, local: set[str]) -> bool:
    """Return whether a node may write into a tensor of the step.

    Args:
        node: The node.
        local: Variables that may refer to such a tensor.
    """
    if isinstance(node, ast.Yield | ast.YieldFrom | ast.Await | ast.Delete):
        return True
    if isinstance(node, ast.Attribute):
        named = node.attr.endswith("_") and not node.attr.endswith("__")
        return (named and node.attr != "_") or (not isinstance(node.ctx, ast.Load) and _root(node) in local)
    if isinstance(node, ast.Subscript):
        return not isinstance(node.ctx, ast.Load) and _root(node) in local
    if isinstance(node, ast.AugAssign):
        return _root(node.target) in local
    return isinstance(node, ast.keyword) and node.arg in ("out", "inplace")


def _asks(node: ast.AST, above: dict[int, ast.AST]) -> bool:
    """Return whether a name is used as a number, a text or a detached tensor, or is assigned to a local variable."""
    while id(node) in above:
        outer = above[id(node)]
        if isinstance(outer, ast.Attribute) and outer.attr in _ASKING:
            return True
        if isinstance(outer, ast.Call) and isinstance(outer.func, ast.Name) and outer.func.id in _TELLING:
            return True
        if isinstance(outer, ast.If | ast.Assert | ast.While | ast.IfExp) and outer.test is node:
            return True
        if isinstance(outer, ast.Assign):
            return all(isinstance(target, ast.Name) for target in outer.targets)
        if isinstance(outer, ast.stmt):
            return False
        node = outer
    return False


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
