"""Follows the page on adding a strategy literally: a separate package, registered by its entry point."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

import remate
import remate.strategy
from remate.errors import InfeasibleError
from remate.strategy import Request, StepInstance, policy, solve
from remate.strategy.registry import strategy_names
from tests.standalone_graphs.dags import random_dag

from .strategy_graphs import transformer

PAGE = Path(remate.strategy.__file__).with_name("ADDING.md")
BLOCK = re.compile(r"```(\w+) (\S+)\n(.*?)```", re.DOTALL)


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that the page shows, installed as pip would."""
    files = {name: text for _, name, text in BLOCK.findall(PAGE.read_text("utf-8"))}
    assert set(files) == {"my_package/dearest.py", "my_package/pyproject.toml"}
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "dearest.py").write_text(files["my_package/dearest.py"])
    points = tomllib.loads(files["my_package/pyproject.toml"])["project"]["entry-points"]
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in result.items()) for group, result in points.items()]
    info = tmp_path / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("my_package", "my_package.dearest"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.invalidate_caches()


@pytest.mark.usefixtures("followed")
def test_it_plans_steps_and_bare_instances() -> None:
    assert "largest" in strategy_names()
    instance = StepInstance(transformer(2))
    solution = solve(instance, Request(int(0.95 * instance.baseline.peak)), policy("largest"))
    assert solution.strategy == "largest"
    assert solution.peak <= 0.95 * instance.baseline.peak
    met = 0
    for seed in range(6):
        bare = random_dag(seed, 14)
        try:
            result = remate.solve(bare, "90%", "largest")
        except InfeasibleError as error:
            result = remate.solve(bare, error.smallest, "largest")
        assert result.peak <= result.budget
        met += result.strategy == "largest"
    assert met
