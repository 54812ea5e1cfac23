"""Runs commands inside the test process."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from remate.api.progress import Waiting
from remate.cli import main

DATA = Path(__file__).parent / "data"


class Outcome(NamedTuple):
    status: int
    out: str
    err: str

    def __str__(self) -> str:
        """Everything a person sees, as it stands in a golden file."""
        return f"{self.out}--- stderr\n{self.err}--- status {self.status}\n"


@pytest.fixture(autouse=True)
def silent_while_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence messages that commands print while they work on a busy machine."""
    monkeypatch.setattr(Waiting.__init__, "__defaults__", (3600.0, *(Waiting.__init__.__defaults__ or ())[1:]))


@pytest.fixture(autouse=True)
def quick(quick_searches: None) -> None:
    """No test here needs the best plan."""


@pytest.fixture
def remate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """`remate("check", "mlp.json")` runs in a folder with copies of the files of `data/`."""
    shutil.copytree(DATA, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)

    def run(*argv: str) -> Outcome:
        capsys.readouterr()
        status = main(argv)
        printed = capsys.readouterr()
        return Outcome(status, str(printed.out), str(printed.err))

    return run


@pytest.fixture(scope="session")
def planned_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("planned") / "s.json"
    target = f"{DATA / 'models.py'}:build"
    assert main(["plan", target, "--budget", "75%", "-o", str(path), "--cost", "cpu", "--quiet"]) == 0
    return path


@pytest.fixture
def planned(remate: Callable[..., Outcome], planned_once: Path) -> None:
    """Plan `models.py:build` and write `s.json` into the folder of the test."""
    shutil.copy(planned_once, "s.json")
