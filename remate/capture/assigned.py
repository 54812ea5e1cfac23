"""Where a class sets an attribute."""

from __future__ import annotations

import ast
import inspect
import os
import textwrap

from torch import nn


def assigned_at(module: nn.Module, name: str) -> str:
    """`file.py:line` where a method of the module's class sets `self.name`, outside of `__init__`; "" if none is found."""
    for kind in type(module).__mro__:
        if kind is nn.Module:
            break
        try:
            lines, first = inspect.getsourcelines(kind)
            tree = ast.parse(textwrap.dedent("".join(lines)))
            file = os.path.basename(inspect.getfile(kind))
        except (OSError, TypeError, SyntaxError):  # made without a file
            continue
        methods = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name != "__init__")
        for line in (found.lineno for method in methods for found in ast.walk(method) if _sets(found, name)):
            return f"{file}:{first + line - 1}"
    return ""


def _sets(node: ast.AST, name: str) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and node.attr == name
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )
