"""Where a class sets an attribute."""

from __future__ import annotations

import ast
import inspect
import os
import textwrap

from torch import nn


def assigned_at(module: nn.Module, name: str) -> str:
    """Return `file.py:line` where a method of the module's class sets `self.name` outside of `__init__`, or ""."""
    for kind in type(module).__mro__:
        if kind is nn.Module:
            break
        try:
            lines, first = inspect.getsourcelines(kind)
            tree = ast.parse(textwrap.dedent("".join(lines)))
            file = os.path.basename(inspect.getfile(kind))
        except (OSError, TypeError, SyntaxError):  # a class without a file
            continue
        methods = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name != "__init__")
        for node_of_method in (node for method in methods for node in ast.walk(method)):
            if isinstance(node_of_method, ast.Attribute) and _sets(node_of_method, name):
                return f"{file}:{first + node_of_method.lineno - 1}"
    return ""


def _sets(node: ast.Attribute, name: str) -> bool:
    of = node.value
    return isinstance(node.ctx, ast.Store) and node.attr == name and isinstance(of, ast.Name) and of.id == "self"
