"""Which files belong to installed packages, wherever they were installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from remate_runtime.staleness import is_own_path
from remate_runtime.staleness.ownership import _installed_names, _is_own_file


@pytest.fixture(autouse=True)
def fresh() -> None:
    _is_own_file.cache_clear()
    _installed_names.cache_clear()


def _file(folder: Path, name: str, text: str = "") -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def test_a_package_in_a_folder_of_its_own(tmp_path: Path) -> None:
    """`pip install --target` writes a RECORD beside packages and single modules."""
    inner = _file(tmp_path, "symbolic/core/basic.py")
    module = _file(tmp_path, "one_file.py")
    mine = _file(tmp_path, "model.py")
    _file(
        tmp_path,
        "symbolic-1.0.dist-info/RECORD",
        'symbolic/core/basic.py,sha256=abc,12\none_file.py,,\n"symbolic-1.0.dist-info/RECORD",,\n',
    )
    assert not is_own_path(inner)
    assert not is_own_path(module)
    assert is_own_path(mine)


def test_an_editable_installation_stays_the_users_own(tmp_path: Path) -> None:
    source = _file(tmp_path, "src/project/model.py")
    _file(tmp_path, "packages/project-0.1.dist-info/RECORD", "__editable__.project-0.1.pth,,\n")
    assert is_own_path(source)


@pytest.mark.parametrize("text", ["\udcff", '"unclosed', ""])
def test_a_damaged_record_is_no_package(tmp_path: Path, text: str) -> None:
    source = _file(tmp_path, "project/model.py")
    record = Path(_file(tmp_path, "project-0.1.dist-info/RECORD"))
    record.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert is_own_path(source)
