"""The syntax tree of a function as text, independent of comments, whitespace, docstrings, annotations, names of local
variables, and the version of Python."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple

from ..format.json_values import is_list
from .spelled import spelled

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_DROPPED = frozenset({"ctx", "type_comment", "annotation", "returns", "kind", "type_params", "lineno"})
_DYNAMIC = frozenset({"locals", "vars", "eval", "exec", "dir"})  # with these the names of local variables may matter


def function_tree(function: Any) -> Function | None:
    """Return the syntax tree of a Python function or lambda; None if its source cannot be read or located."""
    code: CodeType = function.__code__
    lines = linecache.getlines(code.co_filename, getattr(function, "__globals__", None))
    if not lines:
        return None
    candidates = [
        node
        for node in _functions("".join(lines)).get(code.co_firstlineno, ())
        if getattr(node, "name", "<lambda>") == code.co_name
    ]
    if len(candidates) > 1:
        places = {(line, column) for line, _, column, _ in code.co_positions()}
        bodies = [node.body if isinstance(node, ast.Lambda) else node.body[-1] for node in candidates]
        candidates = [n for n, b in zip(candidates, bodies, strict=True) if (b.lineno, b.col_offset) in places]
    return candidates[0] if len(candidates) == 1 else None


def class_decorators(function: Any) -> int:
    """Return the number of decorators of the classes around a Python function; 0 if its source cannot be read."""
    code: CodeType = function.__code__
    lines = linecache.getlines(code.co_filename, getattr(function, "__globals__", None))
    around = (c for c in _classes("".join(lines)) if c.lineno <= code.co_firstlineno <= (c.end_lineno or 0))
    return sum(len(c.decorator_list) for c in around)


@functools.lru_cache(maxsize=64)
def _classes(text: str) -> list[ast.ClassDef]:
    try:
        return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
    except (SyntaxError, ValueError, RecursionError):
        return []


@functools.lru_cache(maxsize=64)
def _functions(text: str) -> dict[int, list[Function]]:
    """Return the functions of a file by their first line, decorators included."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    functions: dict[int, list[Function]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
            functions.setdefault(min([node.lineno, *(d.lineno for d in decorators)]), []).append(node)
    return functions


def canonical(function: Function) -> str:
    """Return the tree as text. Functions with equal texts are equal if their free names mean the same."""
    names: dict[str, str] = {}
    renamed = _renamable(function)

    def text(node: object) -> str:
        if isinstance(node, ast.Name) and node.id in renamed:
            return names.setdefault(node.id, f"${len(names)}")
        if isinstance(node, ast.AnnAssign):
            return text(ast.Assign([node.target], node.value)) if node.value is not None else ""
        if isinstance(node, ast.AST):
            fields = ((name, text(value)) for name, value in ast.iter_fields(node) if name not in _DROPPED)
            return f"{type(node).__name__}({','.join(f'{name}={value}' for name, value in fields if value)})"
        if is_list(node):
            items = [text(item) for item in node if not _says_nothing(item)]
            return f"[{';'.join(items)}]" if items else ""
        return "" if node is None else repr(node)

    return text(function)


def _says_nothing(node: object) -> bool:
    """Return whether a node is a docstring, a string used as a comment, or an annotation without a value."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.AnnAssign) and node.value is None


class _Scope:
    """The names that a function, lambda or comprehension binds, reads, and declares global or nonlocal."""

    def __init__(self, above: _Scope | None) -> None:
        self.above = above
        self.bound: set[str] = set()
        self.fixed: set[str] = set()  # bound by a node other than Name
        self.read: set[str] = set()

    def binds(self, name: str) -> bool:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.bound or name in scope.fixed:
                return True
            scope = scope.above
        return False


def _renamable(function: Function) -> frozenset[str]:
    """Return local variables that may be renamed: neither parameters nor visible from outside."""
    scopes: list[_Scope] = []
    if not _collect(function, _Scope(None), scopes, {}):
        return frozenset()
    bound = {name for scope in scopes for name in scope.bound}
    fixed = {name for scope in scopes for name in scope.fixed}
    outer = {name for scope in scopes for name in scope.read if not scope.binds(name)}
    return frozenset() if outer & _DYNAMIC else frozenset(bound - fixed - outer)


class Reference(NamedTuple):
    """A name that a function reads, and the attributes read of it: `F.gelu` is ("F", ("gelu",)).

    Attributes:
        name: The name.
        attributes: The attributes.
        own: The name is the first parameter (`self`), or `super` for `super().name`.
        imported: The module that the function itself imports the name from, with a leading dot for each level up.
    """

    name: str
    attributes: tuple[str, ...]
    own: bool
    imported: str = ""


def references(function: Function) -> list[Reference]:
    """Return the free names that a function reads, and the attributes that it reads of its first parameter.

    Decorators are left out: they ran at definition, and their result is what is called and followed.
    """
    scopes: list[_Scope] = []
    places: dict[int, _Scope] = {}
    function, modules = spelled(function)
    _collect(function, _Scope(None), scopes, places)
    decorators = {id(node) for each in getattr(function, "decorator_list", ()) for node in ast.walk(each)}
    above = {id(child): node for node in ast.walk(function) for child in ast.iter_child_nodes(node)}
    parameters = [*function.args.posonlyargs, *function.args.args]
    first = parameters[0].arg if parameters else ""
    reads: dict[Reference, None] = {}
    imported = dict(_imported(function)) | {name: (module, ()) for name, module in modules.items()}
    for node in ast.walk(function):
        if not isinstance(node, ast.Name) or id(node) not in places or id(node) in decorators:
            continue
        if node.id in imported:
            module, names = imported[node.id]
            reads[Reference(node.id, (*names, *_attributes(node, above)), False, module)] = None
            continue
        free = not places[id(node)].binds(node.id)
        if free and _is_written(node, above):
            continue
        if free or node.id == first:
            called = above.get(id(node))
            parent = called if node.id == "super" and isinstance(called, ast.Call) and called.func is node else None
            reads[Reference(node.id, _attributes(parent or node, above), not free or parent is not None)] = None
    return list(reads)


def _imported(function: Function) -> Iterator[tuple[str, tuple[str, tuple[str, ...]]]]:
    """Yield (variable, (module, attributes)) for what a function imports when it runs."""
    for node in ast.walk(function):
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            if isinstance(node, ast.ImportFrom):
                yield alias.asname or alias.name, ("." * node.level + (node.module or ""), (alias.name,))
            elif alias.asname:
                yield alias.asname, (alias.name, ())
            else:
                yield alias.name.partition(".")[0], (alias.name.partition(".")[0], ())


def class_reads(function: Function, is_class_method: bool) -> frozenset[str]:
    """Return the attributes that a function reads of anything but `self`, for example `type(self).depth`.

    For a class method, those of its first parameter count too.
    """
    parameters = [*function.args.posonlyargs, *function.args.args]
    first = parameters[0].arg if parameters and not is_class_method else ""
    taken = (node for node in ast.walk(function) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load))
    return frozenset(node.attr for node in taken if not (isinstance(node.value, ast.Name) and node.value.id == first))


def _is_written(node: ast.AST, above: dict[int, ast.AST]) -> bool:
    """Return whether a name is only written through, and nothing of it read: `STATE["calls"] += 1`."""
    while isinstance(outer := above.get(id(node)), ast.Attribute | ast.Subscript) and outer.value is node:
        if not isinstance(outer.ctx, ast.Load):
            return True
        node = outer
    return False


def _attributes(node: ast.AST, above: dict[int, ast.AST]) -> tuple[str, ...]:
    taken: list[str] = []
    outer = above.get(id(node))
    while isinstance(outer, ast.Attribute):
        taken.append(outer.attr)
        outer = above.get(id(outer))
    return tuple(taken)


def _collect(node: ast.AST, scope: _Scope, scopes: list[_Scope], places: dict[int, _Scope]) -> bool:
    """Collect the scopes of a function. Return False for a construct that is not supported.

    Args:
        node: The node to visit.
        scope: Its scope.
        scopes: All scopes.
        places: The scope of every Name that is read.
    """
    if isinstance(node, _SCOPES):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            scope.fixed.add(node.name)
        scope = _Scope(scope)
        scopes.append(scope)
    fine = not isinstance(node, ast.ClassDef)
    if isinstance(node, ast.Name):
        (scope.read if isinstance(node.ctx, ast.Load) else scope.bound).add(node.id)
        if isinstance(node.ctx, ast.Load):
            places[id(node)] = scope
    elif isinstance(node, ast.arg):
        scope.fixed.add(node.arg)
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar | ast.ClassDef) and node.name:
        scope.fixed.add(node.name)
    elif isinstance(node, ast.MatchMapping) and node.rest:
        scope.fixed.add(node.rest)
    elif isinstance(node, ast.Import | ast.ImportFrom):
        scope.fixed |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    elif isinstance(node, ast.Global):
        scope.read |= set(node.names)  # and not bound inside
        fine = False
    elif isinstance(node, ast.Nonlocal):
        scope.fixed |= set(node.names)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for child in value if is_list(value) else (value,):
            if isinstance(child, ast.AST):
                fine &= _collect(child, scope, scopes, places)
    return fine
