"""The rooms of the two packages, in the order that `tests/test_architecture.py` enforces."""

from __future__ import annotations

import ast
from pathlib import Path

from .results import ROOT, Table

_TEST = ROOT / "tests" / "test_architecture.py"
_TOP = {  # modules at the top of a package, which have no folder
    "__init__": "The public names, loaded on first use.",
    "__main__": "The command as a process.",
}


def rooms(name: str, package: Path) -> Table:
    """A table of the rooms in the list `name` of the test, with the first sentence of each."""
    rows = []
    for room in _listed(name):
        path = package / room / "__init__.py" if (package / room).is_dir() else package / f"{room}.py"
        rows.append([f"`{room}`", _TOP.get(room) or _first_sentence(path)])
    return [["room", "contents"], *rows]


def _listed(name: str) -> list[str]:
    """The list `name` in the test: its assigned items and the items added later."""
    names: list[str] = []
    for node in ast.parse(_TEST.read_text(encoding="utf-8")).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
        )
        if isinstance(node, ast.Assign | ast.AugAssign) and any(ast.unparse(target) == name for target in targets):
            names += ast.literal_eval(node.value)
    return names


def _first_sentence(path: Path) -> str:
    text = " ".join((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split())
    first, dot, _ = text.partition(". ")
    return (first + "." if dot else first).replace("|", "\\|")
