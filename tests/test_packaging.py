"""What an installation puts on a user's machine."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from remate_runtime.version import __version__

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel, built without the network."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", str(folder), str(ROOT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.whl")
    return made


def test_wheel_holds_the_two_packages_and_the_schema(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    info = f"remate-{__version__}.dist-info"
    assert {name.partition("/")[0] for name in names} == {"remate", "remate_runtime", info}
    page = [f"remate/present/report/{name}" for name in ("page.html", "report.css", "report.js")]
    for name in ("remate/py.typed", "remate_runtime/py.typed", "remate/schedule-1.schema.json", *page):
        assert name in names
    assert f"{info}/licenses/LICENSE" in names


def test_unpacked_wheel_finds_its_schema(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = "from remate.inspect.schema_file import load_schema, schema_path; load_schema(); print(schema_path())"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == tmp_path / "remate" / "schedule-1.schema.json"


def test_source_tree_finds_its_schema() -> None:
    from remate.inspect.schema_file import load_schema

    assert load_schema()["$schema"]
