"""Writing a file whole or not at all: what every command and every measurement writes goes through here."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PROBE = bytes(1 << 16)  # written and removed again, to learn whether a folder takes a file
_ADVICE = {
    errno.ENOSPC: "make room on that disk, or name a file on another one",
    errno.EDQUOT: "make room in your quota of that disk, or name a file on another one",
    errno.EFBIG: "the shell limits the size of files (`ulimit -f`): raise it, or name a file elsewhere",
    errno.EACCES: "name a file that you may write, in a folder that you may write",
    errno.EPERM: "name a file that you may write, in a folder that you may write",
    errno.EROFS: "that disk is read-only: name a file on another one",
    errno.ENOENT: "name a file in a folder that exists",
    errno.ENOTDIR: "name a file in a folder that exists",
    errno.EISDIR: "this is a folder: name a file in it",
    errno.ENAMETOOLONG: "name a file with a shorter name",
    errno.EIO: "the disk reports an error: name a file on another one",
}


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Make `data` the contents of `path`: temporary file in the same folder, fsync, rename, fsync of the folder.

    A reader sees the old file or the new one, never part of one; links are followed, the permissions of an existing file
    stay, and if anything fails `path` is as it was and no temporary file is left. What is no regular file (a pipe,
    /dev/stdout) is written directly. Raises OSError, which names `path`; `advice` reports what to do about it.
    """
    target = Path(os.path.realpath(path))
    try:
        if _is_special(target):
            target.write_bytes(data)
            return
        _check_permission(target)
        _replace(target, data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    _sync_folder(target.parent)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise the OSError that `write_atomically` would, before the work whose result is to be written there. Leaves
    everything as it is; a disk that fills up later is not predicted."""
    target = Path(os.path.realpath(path))
    try:
        _check_permission(target)
        if _is_special(target):
            return
        probe = _temporary(target)
        try:
            _write(probe, _PROBE)
        finally:
            with suppress(OSError):
                probe.unlink()
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def advice(error: OSError) -> str:
    """What to do about a file that could not be written."""
    return _ADVICE.get(error.errno or 0, "name another file to write")


def _is_special(target: Path) -> bool:
    return target.exists() and not target.is_file() and not target.is_dir()


def _check_permission(target: Path) -> None:
    """A rename would replace what cannot be written, too."""
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _temporary(target: Path) -> Path:
    return target.with_name(f".{target.name[:64]}.{secrets.token_hex(6)}.tmp")


def _replace(target: Path, data: bytes) -> None:
    temporary = _temporary(target)
    try:
        _write(temporary, data)
        with suppress(FileNotFoundError):
            os.chmod(temporary, target.stat().st_mode & 0o777)
        os.replace(temporary, target)
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def alone(path: str | os.PathLike[str]) -> Iterator[None]:
    """One process at a time inside, where the system has locks of files; `path`, an empty file, is made for it. Elsewhere
    nobody waits. Raises OSError."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file gives the lock back


def _write(path: Path, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the system lets a folder be opened."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
