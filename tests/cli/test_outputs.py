"""Outputs of commands: never over files of another kind, atomic, checked before long work, or written to `-`."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remate_runtime.format import load
from remate_runtime.support import files

from .processes import in_shell

Remate = Callable[..., Any]
SOURCE = "# mine\n"
PLAN = ("plan", "models.py:build", "--budget", "75%", "--cost", "cpu", "--quiet", "-o")
# every command that writes a file, up to the file's name; what it writes, to be overwritten on its own alone
WRITERS = {
    "report": ("report", "mlp.json", "-o"),
    "trace": ("trace", "mlp.json", "-o"),
    "snapshot": ("trace", "mlp.json", "--snapshot"),
    "edit": ("edit", "mlp.json", "--keep", "layers.2.addmm", "-o"),
    "migrate": ("migrate", "mlp.json", "-o"),
    "plot": ("show", "mlp.json", "--plot"),
    "plan": PLAN,
    "instance": ("instance", "models.py:build", "--cost", "cpu", "--quiet", "-o"),
    "solve": ("solve", "graph.json", "--budget", "90%", "--quiet", "-o"),
}
NAMES = {"plot": "out.svg"}


@pytest.mark.quick("report")
@pytest.mark.parametrize("writer", WRITERS)
def test_another_kind_of_file_is_left_as_it_is(remate: Remate, writer: str) -> None:
    """Files of the same kind are overwritten, others only with --force."""
    path = Path(NAMES.get(writer, "out"))
    path.write_text(SOURCE)
    outcome = remate(*WRITERS[writer], str(path))
    assert outcome.status == 2
    assert outcome.err.startswith(f"error: {path} exists and is not a")
    assert "--force" in outcome.err
    assert path.read_text() == SOURCE
    assert remate(*WRITERS[writer], str(path), "--force").status == 0
    content = path.read_bytes()
    assert content != SOURCE.encode()
    assert remate(*WRITERS[writer], str(path)).status == 0
    assert path.read_bytes() == content
    path.write_text("")
    assert remate(*WRITERS[writer], str(path)).status == 0, "in an empty file there is nothing to lose"


@pytest.mark.parametrize(
    "writer", [w for w in WRITERS if w not in ("edit", "migrate", "plan", "plot", "instance", "solve")]
)
def test_no_command_writes_over_its_own_schedule(remate: Remate, writer: str) -> None:
    before = Path("mlp.json").read_bytes()
    assert remate(*WRITERS[writer], "mlp.json").status == 2
    assert Path("mlp.json").read_bytes() == before


def test_plan_does_not_write_over_the_model(remate: Remate) -> None:
    before = Path("models.py").read_bytes()
    outcome = remate(*PLAN, "models.py")
    assert outcome.status == 2
    assert outcome.err.startswith("error: models.py exists and is not a schedule\n")
    assert Path("models.py").read_bytes() == before


def test_a_damaged_schedule_is_a_schedule_still(remate: Remate) -> None:
    Path("s.json").write_text(Path("mlp.json").read_text()[:-100])
    assert remate("migrate", "mlp.json", "-o", "s.json").status == 0


def test_what_others_have_measured_is_not_a_trace_of_ours(remate: Remate) -> None:
    Path("profiler.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    assert remate("trace", "mlp.json", "-o", "profiler.json").status == 2
    Path("snapshot.pickle").write_bytes(pickle.dumps({"segments": [], "device_traces": [[]]}))
    assert remate("trace", "mlp.json", "--snapshot", "snapshot.pickle").status == 2
    assert remate("trace", "mlp.json", "-o", "a", "--snapshot", "a").status == 2


@pytest.mark.usefixtures("planned")
def test_memory_trace(remate: Remate) -> None:
    command = ("run", "s.json", "--model", "models.py:build", "--steps", "1", "--memory-trace")
    assert remate(*command, "models.py").status == 2
    assert remate(*command, "curve.json").status == 0
    assert remate(*command, "curve.json").status == 0
    outcome = remate(*command, "-")
    assert json.loads(outcome.out)["format"] == "remate.memory-trace"
    assert "measured peak" in outcome.err


def test_frontier_looks_at_every_file(remate: Remate) -> None:
    command = ("frontier", "models.py:build", "--budgets", "75%,100%", "--cost", "cpu", "--quiet", "-o")
    for name in ("budget-075.json", "frontier.json", "frontier.txt", "frontier.svg"):
        folder = Path(name.replace(".", "-"))
        folder.mkdir()
        (folder / name).write_text(SOURCE)
        outcome = remate(*command, str(folder))
        assert (outcome.status, list(folder.iterdir())) == (2, [folder / name])
        assert outcome.err.startswith(f"error: {folder / name} exists and is not a ")
    assert remate(*command, "frontier-txt", "--force").status == 0
    assert remate(*command, "frontier-txt").status == 0
    assert remate(*command, "-").status == 2


@pytest.mark.slow
@pytest.mark.parametrize("writer", ["report", "snapshot", "instance"])
def test_standard_output(remate: Remate, writer: str, tmp_path: Path) -> None:
    """`-` writes only the bytes of the file. Messages go to standard error."""
    path = NAMES.get(writer, "-o.json")
    argv = WRITERS[writer]
    named = ("--name", "same") if writer in ("plan", "instance") else ()
    assert remate(*argv[:-1], f"{argv[-1]}={path}" if argv[-1].startswith("--") else f"-o{path}", *named).status == 0
    line = " ".join(f"'{word}'" for word in (*argv, "-", *named))
    done = in_shell(f"remate {line} > out.bin", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.bin").read_bytes() == Path(path).read_bytes()
    assert not Path("-").exists()


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("why", ["no such folder", "a folder", "not to be written"])
def test_told_before_the_work(remate: Remate, writer: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes before a schedule is read or a model imported."""
    path = NAMES.get(writer, "out")
    if why == "no such folder":
        path = f"no/{path}"
    elif why == "a folder":
        Path(path).mkdir()
    else:
        Path(path).touch()
        monkeypatch.setattr(os, "access", lambda *_: False)  # who runs the tests may be permitted everything
    argv = [word.replace("mlp.json", "nowhere.json").replace("build", "raises") for word in WRITERS[writer]]
    outcome = remate(*argv, path)
    assert outcome.status == 2
    assert outcome.err.startswith(f"error: {path}: ")
    assert "hint: " in outcome.err


@pytest.mark.slow
@pytest.mark.parametrize("writer", WRITERS)
def test_a_file_size_limit(tmp_path: Path, writer: str) -> None:
    path = NAMES.get(writer, "out")
    line = " ".join(f"'{word}'" for word in (*WRITERS[writer], path))
    done = in_shell(f"ulimit -f 1; remate {line}", tmp_path, PYTHONDONTWRITEBYTECODE="1")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {path}: File too large\nhint: the shell limits the size of files")
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp") or name == path]


@pytest.mark.slow("plan", "solve", "instance")
@pytest.mark.parametrize("writer", WRITERS)
def test_a_disk_that_is_full_at_the_end(remate: Remate, monkeypatch: pytest.MonkeyPatch, writer: str) -> None:
    """A command that took minutes saves its result elsewhere."""
    path = Path(NAMES.get(writer, "out"))
    replace = os.replace

    def full(source: Any, target: Any) -> None:
        if Path(target).name == path.name and Path(target).parent == Path.cwd():
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    Path("elsewhere").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(Path("elsewhere").resolve()))
    outcome = remate(*WRITERS[writer], str(path))
    assert outcome.status == 2
    assert outcome.err.startswith(f"error: {path}: No space left on device\nhint: make room on that disk")
    assert not path.exists()
    saved = list(Path("elsewhere").rglob("out"))
    if writer == "plan":
        assert load(saved[0]).budget_bytes
        assert str(saved[0].resolve()) in outcome.err
    elif writer in ("instance", "solve"):
        assert b"format" in saved[0].read_bytes()
    else:
        assert saved == []


def test_a_probe_leaves_nothing(tmp_path: Path) -> None:
    files.check_writable(tmp_path / "new.json")
    (tmp_path / "old.json").write_text("old")
    files.check_writable(tmp_path / "old.json")
    files.check_writable("/dev/null")
    assert os.listdir(tmp_path) == ["old.json"]
    assert (tmp_path / "old.json").read_text() == "old"


@pytest.mark.parametrize("command", ["plan", "frontier"])
@pytest.mark.parametrize(
    ("profile", "said"),
    [("no/p.json", "No such file or directory"), ("models.py", "is not a profile"), (".", "cannot be read")],
)
def test_a_profile_that_cannot_be_used_is_told_before_the_work(
    remate: Remate, monkeypatch: pytest.MonkeyPatch, command: str, profile: str, said: str
) -> None:
    """The error comes before the model is traced."""
    import remate.api.plan as api

    monkeypatch.setattr(api, "captured", lambda *_, **__: pytest.fail("too late"))
    more = ("--budget", "80%", "-o", "s.json") if command == "plan" else ("--budgets", "80%", "-o", "out")
    outcome = remate(command, "models.py:build", "--profile", profile, *more)
    assert outcome.status == 2
    assert said in outcome.err
