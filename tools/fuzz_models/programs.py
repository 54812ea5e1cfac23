"""Generated models: their source, and the module that it is."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

_SKELETONS = Path(__file__).with_name("skeletons")
_PLACE = "  # the generated statements"
_numbers = itertools.count()


@dataclass(frozen=True)
class Program:
    """A skeleton's name, and the statements of forward, each of one or several lines."""

    skeleton: str
    statements: tuple[str, ...]

    @property
    def source(self) -> str:
        """The whole module."""
        lines = (_SKELETONS / f"{self.skeleton}.py").read_text("utf-8").splitlines()
        at = next(index for index, line in enumerate(lines) if line.endswith(_PLACE))
        indent = " " * (len(lines[at]) - len(lines[at].lstrip()))
        body = [indent + line for statement in self.statements for line in statement.splitlines()]
        return "\n".join([*lines[:at], *body, *lines[at + 1 :]]) + "\n"


@contextmanager
def imported(source: str) -> Iterator[ModuleType]:
    """The module of a source, from a file of its own, which remate can read lines of."""
    with tempfile.TemporaryDirectory() as folder:
        name = f"generated_{next(_numbers)}"
        path = Path(folder) / f"{name}.py"
        path.write_text(source, "utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
            yield module
        finally:
            del sys.modules[name]
