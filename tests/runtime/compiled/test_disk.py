"""Folders that are not writable and files that are not readable: one warning, and the step runs."""

from __future__ import annotations

import copy
import errno
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from remate.capture.capture_step import capture
from remate.errors import CaptureError
from remate_runtime import apply
from remate_runtime.engine.compiled import artefacts, inductor
from remate_runtime.format.writer import save

from ..small import data, seeded
from ..stepping import assert_same, just_in_time, schedule_of, step
from .test_workers import Layers

NAME = "TORCHINDUCTOR_CACHE_DIR"
X = data(4, 8)


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.WARNING, "remate_runtime"):
        yield caplog


class Subject:
    """A compiled step, compiled anew each time, is eager's."""

    def __init__(self, at: float, count: int) -> None:
        self.model = seeded(Layers(at, count))
        self.schedule = schedule_of(self.model, (X,), recomputes=just_in_time)

    def steps(self) -> None:
        planned = apply(copy.deepcopy(self.model), self.schedule, engine="compiled")
        assert_same(step(planned, (X,)), step(self.model, (X,)), 1e-5)


@pytest.fixture(scope="module")
def subject() -> Subject:
    result = Subject(0.375, 2)
    result.steps()  # Inductor's folder has it
    return result


def full(*given: Any) -> Any:
    """As Inductor fails where its compiler has no room left."""
    try:
        raise RuntimeError(f"/tmp/x.s: fatal error: error writing: {os.strerror(errno.ENOSPC)}")
    except RuntimeError as error:
        raise ValueError("C++ compile error") from error


@pytest.mark.slow
def test_a_folder_that_is_a_file(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warned: pytest.LogCaptureFixture
) -> None:
    """Compiled code is in a temporary folder for the lifetime of the model."""
    here, file, seen = os.environ[NAME], tmp_path / "file", set[str]()
    file.write_text("")
    compiled = inductor.compiled

    def elsewhere(*given: Any) -> Any:
        seen.add(os.environ[NAME])
        monkeypatch.setenv(NAME, here)  # where it has been compiled
        return compiled(*given)

    monkeypatch.setattr(artefacts, "compiled", elsewhere)
    monkeypatch.setenv(NAME, str(file))
    subject.steps()
    (line,) = warned.messages
    assert line == f"{file} is not writable (File exists): compiled code is kept for this process only"
    assert not any(Path(path).exists() for path in seen - {str(file), here})
    assert len(seen - {here}) == 1
    assert str(file) not in seen


@pytest.mark.slow
def test_a_disk_that_becomes_full(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, warned: pytest.LogCaptureFixture
) -> None:
    """The first function finds out; the others are compiled elsewhere at once."""
    here, tried = os.environ[NAME], list[str]()
    compiled = inductor.compiled

    def sometimes(*given: Any) -> Any:
        tried.append(os.environ[NAME])
        if tried[-1] == here:
            full()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(NAME, here)
            return compiled(*given)

    monkeypatch.setattr(artefacts, "compiled", sometimes)
    subject.steps()
    (line,) = warned.messages
    assert line.startswith(f"{here} is not writable (No space left on device)")
    assert tried.count(here) == 1
    assert len(tried) > 1
    assert os.environ[NAME] == here


@pytest.mark.slow
def test_a_disk_on_which_nothing_can_be_written(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, warned: pytest.LogCaptureFixture
) -> None:
    tried: list[int] = []

    def never(*given: Any) -> Any:
        tried.append(1)
        full()

    monkeypatch.setattr(artefacts, "compiled", never)
    subject.steps()
    first, second = warned.messages
    assert "is not writable (No space left on device)" in first
    assert second.startswith("no temporary folder is writable either")
    assert second.endswith("segments that are not compiled yet are interpreted")
    assert len(tried) == 2


@pytest.mark.slow
def test_no_temporary_folder(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warned: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(NAME, str(tmp_path / "file"))

    def none(**about: Any) -> Any:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("remate_runtime.engine.compiled.disk.tempfile.TemporaryDirectory", none)
    subject.steps()
    assert ["writable" in line for line in warned.messages] == [True, True]


def test_a_planner_whose_torch_has_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "file")
    monkeypatch.setenv(NAME, path)

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise FileExistsError(errno.EEXIST, "File exists", path)

    with pytest.raises(CaptureError, match=r"torch cannot make its folder .*file \(File exists\)") as refused:
        capture(Model(), (X,), {})
    assert f"let {NAME} name a folder that can be written" in str(refused.value)


@pytest.mark.slow
def test_a_damaged_file_in_the_cache_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warned: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(NAME, str(tmp_path))
    subject = Subject(0.875, 1)
    for damaged in (False, True):
        inductor.forget()
        warned.clear()
        subject.steps()
        assert any("cannot be read" in line for line in warned.messages) == damaged
        assert not any("is interpreted" in line for line in warned.messages)
        files = list(tmp_path.rglob("*.py"))
        assert files
        for file in files:
            file.unlink()
            file.write_bytes(b"damaged")
    inductor.forget()


@pytest.mark.slow
def test_a_file_that_another_process_left_unfinished_is_compiled_again(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inductor loads what is there, whole or not."""
    here, tried = os.environ[NAME], list[bool]()
    compiled = inductor.compiled

    def unfinished(*given: Any) -> Any:
        tried.append(os.environ[NAME] == here)
        if not tried[-1]:
            monkeypatch.setenv(NAME, here)  # where it is whole
            return compiled(*given)
        try:
            raise ImportError("x.so: file too short")
        except ImportError:
            raise RuntimeError("ImportError: x.so: file too short")  # noqa: B904 (as Inductor does)

    monkeypatch.setattr(artefacts, "compiled", unfinished)
    monkeypatch.setattr(artefacts, "has_been_compiled", lambda tag: False)
    subject.steps()
    assert tried == [True, False] * (len(tried) // 2)
    assert tried


SCRIPT = """
import logging, sys
import torch
logging.basicConfig(stream=sys.stdout, format="%(message)s")
torch.set_num_threads(1)
from remate_runtime import apply
model = torch.nn.Sequential(torch.nn.Linear(8, 9), torch.nn.Tanh(), torch.nn.Linear(9, 9))
with torch.no_grad():
    for parameter in model.parameters():
        parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
x = torch.linspace(-1, 1, 32).view(4, 8)
apply(model, sys.argv[1], engine=sys.argv[2])(x).square().sum().backward()
print(*model[0].weight.grad[0, :3].mul(1e3).round().tolist())
"""


def started(schedule: str, engine: str, folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, NAME: str(folder)}
    command = [sys.executable, "-c", SCRIPT, schedule, engine]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def schedule(tmp_path: Path) -> str:
    model = torch.nn.Sequential(torch.nn.Linear(8, 9), torch.nn.Tanh(), torch.nn.Linear(9, 9))
    path = str(tmp_path / "s.json")
    save(schedule_of(model, (X,), recomputes=just_in_time), path)
    return path


def ended(process: subprocess.Popen[str]) -> list[str]:
    out, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    return out.splitlines()


@pytest.mark.slow
def test_a_process_that_never_had_a_folder(schedule: str, tmp_path: Path) -> None:
    """torch itself cannot be imported whole there, whatever executes the step."""
    file = tmp_path / "file"
    file.write_text("")
    (wanted,) = ended(started(schedule, "eager", file))
    result = ended(started(schedule, "compiled", file))
    assert result == [
        f"{file} is not writable (File exists): compiled code is kept for this process only",
        wanted,
    ]


@pytest.mark.slow
def test_processes_that_compile_the_same_at_once(schedule: str, tmp_path: Path) -> None:
    both = [started(schedule, "compiled", tmp_path / "new") for _ in range(2)]
    results = [ended(process) for process in both]
    assert [len(lines) for lines in results] == [1, 1]
    assert results[0] == results[1]
