"""Names that code spells as text: `globals()["name"]`, `getattr(module, "name")`, `sys.modules["module"]`."""

from __future__ import annotations

import ast
import copy
from typing import Any

_SPELLING = frozenset({"globals", "vars", "getattr", "__dict__", "sys", "import_module", "importlib", "__import__"})


class Spelled(ast.NodeTransformer):
    """Replaces texts that are names by these names.

    Attributes:
        modules: By the name that stands for it, the module that code looks up by its text.
    """

    def __init__(self) -> None:
        self.modules: dict[str, str] = {}

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        holder, name = node.value, _text(node.slice)
        if name is None or not isinstance(node.ctx, ast.Load):
            return node
        if _is(holder, "sys", "modules"):
            return self._module(name)
        if isinstance(holder, ast.Attribute) and holder.attr == "__dict__":
            return _attribute(holder.value, name)
        if isinstance(holder, ast.Call) and _is(holder.func, "vars") and len(holder.args) == 1:
            return _attribute(holder.args[0], name)
        if isinstance(holder, ast.Call) and _is(holder.func, "globals"):
            return ast.Name(name, ast.Load())
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        return _attribute(node.value, node.attr) if isinstance(node.ctx, ast.Load) else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        texts = [_text(argument) for argument in node.args]
        if _is(node.func, "getattr") and len(texts) > 1 and texts[1] is not None:
            return _attribute(node.args[0], texts[1])
        imports = _is(node.func, "importlib", "import_module") or _is(node.func, "import_module")
        if len(texts) == 1 and texts[0] is not None and (imports or _is(node.func, "__import__")):
            return self._module(texts[0] if imports else texts[0].partition(".")[0])
        return node

    def _module(self, name: str) -> ast.Name:
        self.modules[f"module {name}"] = name
        return ast.Name(f"module {name}", ast.Load())


def spelled(function: Any) -> tuple[Any, dict[str, str]]:
    """Return the tree of a function with names in place of texts, and `Spelled.modules`."""
    words = {getattr(node, key, None) for node in ast.walk(function) for key in ("id", "attr")}
    if words.isdisjoint(_SPELLING):
        return function, {}
    names = Spelled()
    return names.visit(copy.deepcopy(function)), names.modules


def _text(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _is(node: ast.AST, *path: str) -> bool:
    """Return whether a node is a name, or an attribute of one."""
    for attribute in path[:0:-1]:
        if not isinstance(node, ast.Attribute) or node.attr != attribute:
            return False
        node = node.value
    return isinstance(node, ast.Name) and node.id == path[0]


def _attribute(holder: ast.expr, name: str) -> ast.expr:
    """Return the attribute of a holder; of `sys.modules[__name__]`, the global."""
    if isinstance(holder, ast.Subscript) and _is(holder.value, "sys", "modules") and _is(holder.slice, "__name__"):
        return ast.Name(name, ast.Load())
    return ast.Attribute(holder, name, ast.Load())
