"""The syntax tree of a function as text that does not depend on what changes nothing: comments, whitespace, docstrings,
annotations, names of local variables, the version of Python."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_DROPPED = frozenset({"ctx", "type_comment", "annotation", "returns", "kind", "type_params", "lineno"})
_DYNAMIC = frozenset({"locals", "vars", "eval", "exec", "dir"})  # a local variable's name may matter


def function_tree(function: Any) -> Function | None:
    """The syntax tree of a Python function or lambda; None where its source cannot be read or found."""
    code: CodeType = function.__code__
    lines = linecache.getlines(code.co_filename, getattr(function, "__globals__", None))
    if not lines:
        return None
    found = [
        node
        for node in _functions("".join(lines)).get(code.co_firstlineno, ())
        if getattr(node, "name", "<lambda>") == code.co_name
    ]
    if len(found) > 1:
        places = {(line, column) for line, _, column, _ in code.co_positions()}
        bodies = [node.body if isinstance(node, ast.Lambda) else node.body[-1] for node in found]
        found = [n for n, b in zip(found, bodies, strict=True) if (b.lineno, b.col_offset) in places]
    return found[0] if len(found) == 1 else None


@functools.lru_cache(maxsize=64)
def _functions(text: str) -> dict[int, list[Function]]:
    """The functions of a file by the line that they start on, decorators included."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    found: dict[int, list[Function]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
            found.setdefault(min([node.lineno, *(d.lineno for d in decorators)]), []).append(node)
    return found


def canonical(function: Function) -> str:
    """The tree as text. Equal texts are equal functions, given equal meanings of the names that they do not bind."""
    names: dict[str, str] = {}
    renamed = _renamable(function)

    def text(node: Any) -> str:
        if isinstance(node, ast.Name) and node.id in renamed:
            return names.setdefault(node.id, f"${len(names)}")
        if isinstance(node, ast.AnnAssign):
            return text(ast.Assign([node.target], node.value)) if node.value is not None else ""
        if isinstance(node, ast.AST):
            fields = ((name, text(value)) for name, value in ast.iter_fields(node) if name not in _DROPPED)
            return f"{type(node).__name__}({','.join(f'{name}={value}' for name, value in fields if value)})"
        if isinstance(node, list):
            items = [text(item) for item in node if not _says_nothing(item)]
            return f"[{';'.join(items)}]" if items else ""
        return "" if node is None else repr(node)

    return text(function)


def _says_nothing(node: Any) -> bool:
    """A docstring, a string in place of a comment, an annotation without a value."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.AnnAssign) and node.value is None


class _Scope:
    """Names that one function, lambda or comprehension binds, reads, and declares to be another scope's."""

    def __init__(self, above: _Scope | None) -> None:
        self.above = above
        self.bound: set[str] = set()
        self.fixed: set[str] = set()  # bound, but by a name that the tree holds elsewhere than in a Name
        self.read: set[str] = set()

    def binds(self, name: str) -> bool:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.bound or name in scope.fixed:
                return True
            scope = scope.above
        return False


def _renamable(function: Function) -> frozenset[str]:
    """Local variables whose names are free to differ: neither parameters nor seen from outside."""
    scopes: list[_Scope] = []
    if not _collect(function, _Scope(None), scopes, {}):
        return frozenset()
    bound = {name for scope in scopes for name in scope.bound}
    fixed = {name for scope in scopes for name in scope.fixed}
    outer = {name for scope in scopes for name in scope.read if not scope.binds(name)}
    return frozenset() if outer & _DYNAMIC else frozenset(bound - fixed - outer)


class Reference(NamedTuple):
    """A name that a function reads, and the attributes taken of it: `F.gelu` is ("F", ("gelu",)). own: the name is the
    function's first parameter (`self`), or `super` for `super().name`. imported: the module that the function itself
    imports the name from, with a dot in front for each level up."""

    name: str
    attributes: tuple[str, ...]
    own: bool
    imported: str = ""


def references(function: Function) -> list[Reference]:
    """What a function reads that it does not bind, and what it takes of its first parameter. Its decorators ran when it
    was defined: what they made of it is what is called, and followed."""
    scopes: list[_Scope] = []
    places: dict[int, _Scope] = {}
    _collect(function, _Scope(None), scopes, places)
    decorators = {id(node) for each in getattr(function, "decorator_list", ()) for node in ast.walk(each)}
    above = {id(child): node for node in ast.walk(function) for child in ast.iter_child_nodes(node)}
    parameters = [*function.args.posonlyargs, *function.args.args]
    first = parameters[0].arg if parameters else ""
    found: dict[Reference, None] = {}
    imported = dict(_imported(function))
    for node in ast.walk(function):
        if not isinstance(node, ast.Name) or id(node) not in places or id(node) in decorators:
            continue
        if node.id in imported:
            module, names = imported[node.id]
            found[Reference(node.id, (*names, *_attributes(node, above)), False, module)] = None
            continue
        free = not places[id(node)].binds(node.id)
        if free and _is_written(node, above):
            continue
        if free or node.id == first:
            top: ast.AST = node
            called = above.get(id(node))
            parent = node.id == "super" and isinstance(called, ast.Call) and called.func is node
            if parent:
                top = called  # type: ignore[assignment]
            found[Reference(node.id, _attributes(top, above), not free or parent)] = None
    return list(found)


def _imported(function: Function) -> Iterator[tuple[str, tuple[str, tuple[str, ...]]]]:
    """(variable, (module, attributes of it)) of what a function imports when it runs."""
    for node in ast.walk(function):
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            if isinstance(node, ast.ImportFrom):
                yield alias.asname or alias.name, ("." * node.level + (node.module or ""), (alias.name,))
            elif alias.asname:
                yield alias.asname, (alias.name, ())
            else:
                yield alias.name.partition(".")[0], (alias.name.partition(".")[0], ())


def class_reads(function: Function, is_class_method: bool) -> frozenset[str]:
    """Attributes that a function takes of anything but `self`: `type(self).depth`, of a class method's first parameter,
    too."""
    parameters = [*function.args.posonlyargs, *function.args.args]
    first = parameters[0].arg if parameters and not is_class_method else ""
    taken = (node for node in ast.walk(function) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load))
    return frozenset(node.attr for node in taken if not (isinstance(node.value, ast.Name) and node.value.id == first))


def _is_written(node: ast.AST, above: dict[int, ast.AST]) -> bool:
    """Whether something in what a name stands for is set there, and nothing of it read: `STATE["calls"] += 1`."""
    while isinstance(outer := above.get(id(node)), ast.Attribute | ast.Subscript) and outer.value is node:
        if not isinstance(outer.ctx, ast.Load):
            return True
        node = outer
    return False


def _attributes(node: ast.AST, above: dict[int, ast.AST]) -> tuple[str, ...]:
    taken = []
    outer = above.get(id(node))
    while isinstance(outer, ast.Attribute):
        taken.append(outer.attr)
        outer = above.get(id(outer))
    return tuple(taken)


def _collect(node: ast.AST, scope: _Scope, scopes: list[_Scope], places: dict[int, _Scope]) -> bool:
    """Walk a function. places: the scope of every Name that is read. False if it holds what is not understood."""
    if isinstance(node, _SCOPES):
        if not isinstance(node, ast.Lambda) and hasattr(node, "name"):
            scope.fixed.add(node.name)  # type: ignore[union-attr]
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
        scope.read |= set(node.names)  # and bound nowhere inside
        fine = False
    elif isinstance(node, ast.Nonlocal):
        scope.fixed |= set(node.names)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                fine &= _collect(child, scope, scopes, places)
    return fine
