"""Hooks that only look: those that return nothing and write nothing, as their source says. A schedule does not call
them, and computes the same without them."""

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
_DEEP = 4  # partials and methods around a function


def observes(hook: Any) -> bool:
    """Whether a hook of a forward can be seen to compute nothing: no `return` of a value, nothing that looks as if it
    wrote into a tensor. False where its source cannot be read."""
    function = _function(hook, 0)
    if function is None or inspect.isgeneratorfunction(function):
        return False
    tree = function_tree(function)
    return tree is not None and _only_looks(tree)


def _function(hook: Any, depth: int) -> Any:
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
    """Whether every use of what the hook is given only asks for something, or takes a detached copy."""
    lambda_ = isinstance(function, ast.Lambda)
    if lambda_ and not _is_logging(function.body):
        return False
    above = {id(child): node for node in ast.walk(function) for child in ast.iter_child_nodes(node)}
    names = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
    module, *passed = names[1:] if names[:1] == ["self"] else names or [""]
    given = set(passed)
    given |= {arg.arg for arg in (function.args.vararg, function.args.kwarg) if arg is not None}
    nodes = [node for each in ([function.body] if lambda_ else function.body) for node in ast.walk(each)]
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    for node in nodes:  # a local variable that stands for what was given
        if isinstance(node, ast.Assign) and any(
            isinstance(one, ast.Name) and one.id in given for one in ast.walk(node.value)
        ):
            given |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    if not all(_reads(node, above) for node in nodes if isinstance(node, ast.Name) and node.id == module):
        return False
    for node in nodes:
        if isinstance(node, ast.Return) and not (node.value is None or _is_none(node.value)):
            return False
        if _may_write(node, given | bound - _declared(nodes)):
            return False
        if (
            isinstance(node, ast.Name)
            and node.id in given
            and isinstance(node.ctx, ast.Load)
            and not _asks(node, above)
        ):
            return False
    return True


def _reads(node: ast.AST, above: Mapping[int, ast.AST]) -> bool:
    """Whether a use of the module itself only reads an attribute, or asks what it is: what is called with it may change
    it."""
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
    """Whether a lambda gives back nothing: None, or what a method of a list gives that fills it."""
    called = body.func if isinstance(body, ast.Call) else None
    return _is_none(body) or (isinstance(called, ast.Attribute) and called.attr in _FILLS)


def _declared(nodes: list[ast.AST]) -> set[str]:
    return {name for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}


def _may_write(node: ast.AST, local: set[str]) -> bool:
    """local: variables that may stand for a tensor of the step."""
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
    """Whether what becomes of a name is a number, a text or a detached tensor, or goes into a local variable."""
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
