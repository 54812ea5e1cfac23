"""Named pipes, sockets, devices and folders are refused at once, and leftovers of killed writers are removed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from remate.errors import InstanceError
from remate.profile import store
from remate.profile.store import ProfileError
from remate.standalone_graphs import readers
from remate_runtime.errors import ScheduleError
from remate_runtime.format.reader import read
from remate_runtime.support import files


@pytest.fixture(autouse=True)
def _no_waiting():
    """Fail instead of waiting for the other end of a pipe."""

    def late(*_: object) -> None:
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def special(folder: Path, kind: str) -> Path:
    path = folder / "it"
    if kind == "a named pipe":
        os.mkfifo(path)
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
    elif kind == "a folder":
        path.mkdir()
    else:
        return Path("/dev/zero")
    return path


KINDS = ["a named pipe", "a socket", "a folder", "a device"]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_read_from(kind: str, tmp_path: Path) -> None:
    path = special(tmp_path, kind)
    with pytest.raises(ScheduleError, match="not a file") as caught:
        read(path)
    assert caught.value.code == "R000"
    assert kind in str(caught.value)
    with pytest.raises(ProfileError, match="not a file"):
        store.read(path)
    with pytest.raises((OSError, InstanceError), match="not a file"):
        readers.read(path)


def test_a_pipe_that_nobody_reads_is_not_written_to(tmp_path: Path) -> None:
    path = special(tmp_path, "a named pipe")
    for write in (files.check_writable, lambda path: files.write_atomically(path, b"text")):
        with pytest.raises(OSError, match="not a file") as caught:
            write(path)
        assert "nobody reads" in files.advice(caught.value)
    with pytest.raises(OSError, match="not a file"), files.alone(path):
        pass


def test_what_a_shell_opens_is_read(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text("{}")
    code = "import sys; from remate_runtime.format.reader import read; print(read(sys.argv[1]))"
    command = [
        "bash",
        "-c",
        f'{sys.executable} -c "{code}" <(cat s.json); {sys.executable} -c "{code}" /dev/stdin < s.json',
    ]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout == "b'{}'\nb'{}'\n", done.stderr


def _write_and_hang(path: Path) -> None:
    os.replace = lambda *_: time.sleep(60)  # type: ignore[assignment]
    files.write_atomically(path, b"one")


def test_what_a_killed_writer_left_goes_with_the_next_write(tmp_path: Path) -> None:
    path = tmp_path / "s[1].json"
    writer = multiprocessing.get_context("fork").Process(target=_write_and_hang, args=(path,))
    writer.start()
    while not any(path.stat().st_size for path in tmp_path.iterdir()):  # it is locked before it is written
        time.sleep(0.01)
    (left,) = tmp_path.iterdir()
    os.utime(left, (0, 0))
    files.write_atomically(path, b"two")
    assert left.exists(), "its writer is running"
    writer.kill()
    writer.join()
    new = tmp_path / ".s[1].json.0123456789ab.tmp"
    new.touch()
    files.write_atomically(path, b"three")
    assert sorted(tmp_path.iterdir()) == [new, path], "one that is new may be about to be locked"
    os.utime(new, (0, 0))
    files.write_atomically(path, b"four")
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"four"
