"""Planning leaves a script the choice of how it starts processes, although Pyomo makes that choice when it is imported."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import remate.strategy

CODE = """
import multiprocessing
from remate.strategy.registry import BOUNDS, STRATEGIES, bound, strategy
loaded = [*map(strategy, STRATEGIES), *map(bound, BOUNDS)]
multiprocessing.set_start_method("spawn")
"""


def test_a_script_can_choose_how_processes_start_after_planning() -> None:
    run = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.slow
def test_one_module_imports_pyomo() -> None:
    root = Path(remate.strategy.__file__).parents[1]
    using = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyomo") and not node.level)
        or (isinstance(node, ast.Import) and any(alias.name.startswith("pyomo") for alias in node.names))
    }
    assert using == {"strategy/pyomo_api.py"}
