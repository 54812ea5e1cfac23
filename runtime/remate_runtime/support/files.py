"""Reads regular files, and writes files atomically. All commands and measurements use it."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_PROBE = bytes(1 << 16)  # written and removed again to test whether a folder accepts a file
_STALE = 60.0  # age in seconds after which an unlocked temporary file comes from a killed process
_ADVICE = {
    errno.ENXIO: "nobody reads from it: name a file, or - for standard output",
    errno.ENOTBLK: "name a file",
    errno.EINVAL: "name a file, or use - where the command takes standard input or output",
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

    A reader sees the old file or the new one, never part of one. Links are followed, and the permissions of an existing
    file stay. If anything fails, `path` does not change and no temporary file remains; one of a killed process is
    removed at the next write. A pipe with a reader and a terminal are written directly, without waiting for a reader.

    Raises:
        OSError: With `path`; `advice` returns what to do.
    """
    target = Path(os.path.realpath(path))
    try:
        if _is_special(target):
            with _open_special(target) as file:
                file.write(data)
            return
        _check_permission(target)
        _remove_stale(target)
        _replace(target, data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    _sync_folder(target.parent)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise the OSError that `write_atomically` would raise, before the work that produces the result.

    Nothing changes on disk. A disk that fills up later is not predicted.
    """
    target = Path(os.path.realpath(path))
    try:
        _check_permission(target)
        if _is_special(target):
            _open_special(target).close()
            return
        probe = _temporary(target)
        try:
            _written(probe, _PROBE).close()
        finally:
            with suppress(OSError):
                probe.unlink()
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for reading without waiting for another process to open its other end.

    What a shell has opened already (`/dev/stdin`, `<(command)`) and terminals can be read.

    Raises:
        OSError: For named pipes, sockets, devices and folders.
    """
    name = os.fspath(path)
    try:
        handle = os.open(name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.EINVAL, "a socket or a device without a reader, not a file", name) from None
        raise
    try:
        kind = _not_read(handle, name)
        if kind:
            raise OSError(errno.EISDIR if kind == "a folder" else errno.EINVAL, f"{kind}, not a file", name)
        if hasattr(os, "set_blocking"):
            os.set_blocking(handle, True)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _not_read(handle: int, name: str) -> str:
    """Return the kind of an open file that cannot be read, as text; "" if it can."""
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return ""
    if stat.S_ISFIFO(mode):  # the parent process opened a pipe without a name
        return "" if not os.path.exists(os.path.realpath(name)) else "a named pipe"
    if stat.S_ISCHR(mode):
        return "" if os.isatty(handle) or os.path.realpath(name) == os.devnull else "a device"
    return "a folder" if stat.S_ISDIR(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"


def advice(error: OSError) -> str:
    """Return what to do about a file that could not be written."""
    return _ADVICE.get(error.errno or 0, "name another file to write")


def _is_special(target: Path) -> bool:
    return target.exists() and not target.is_file() and not target.is_dir()


def _open_special(target: Path) -> BinaryIO:
    """Open a pipe, a terminal or /dev/null for writing. Raises OSError for a disk, and for a pipe without a reader."""
    if stat.S_ISBLK(target.stat().st_mode):
        raise OSError(errno.ENOTBLK, "a disk, not a file")
    try:
        handle = os.open(target, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "a named pipe or socket, not a file") from None
        raise
    if hasattr(os, "set_blocking"):
        os.set_blocking(handle, True)
    return os.fdopen(handle, "wb")


def _check_permission(target: Path) -> None:
    """Check permissions, because a rename would also replace a read-only file."""
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _temporary(target: Path) -> Path:
    return target.with_name(f".{target.name[:64]}.{secrets.token_hex(6)}.tmp")


def _replace(target: Path, data: bytes) -> None:
    temporary = _temporary(target)
    try:
        with _written(temporary, data):  # locked until it is renamed
            with suppress(FileNotFoundError):
                os.chmod(temporary, target.stat().st_mode & 0o777)
            if os.name != "nt":
                os.replace(temporary, target)
        if os.name == "nt":  # where an open file cannot be renamed
            os.replace(temporary, target)
    finally:
        with suppress(OSError):
            temporary.unlink()


def _remove_stale(target: Path) -> None:
    """Remove temporary files of this target from killed processes. Those of running ones are locked, or new."""
    for left in target.parent.glob(f".{_escaped(target.name[:64])}.*.tmp"):
        with suppress(OSError):
            if time.time() - left.lstat().st_mtime > _STALE and stat.S_ISREG(left.lstat().st_mode):
                with open(left, "rb") as file:
                    _lock_at_once(file)
                    left.unlink()


def _escaped(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _lock_at_once(file: BinaryIO) -> None:
    """Lock a file. Raises OSError if another process has locked it. Does nothing if the system has no locks."""
    try:
        import fcntl
    except ImportError:
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def alone(path: str | os.PathLike[str]) -> Generator[None]:
    """Let one process at a time enter, if the system has file locks; creates the empty file `path`.

    Raises:
        OSError: The file cannot be created.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    with os.fdopen(_opened_lock(path), "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file releases the lock


def _opened_lock(path: str | os.PathLike[str]) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "a pipe or a device, not a file", os.fspath(path))
    return handle


def _written(path: Path, data: bytes) -> BinaryIO:
    """Return a new open file with this content on disk, locked if the system has locks."""
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666), "r+b")
    try:
        with suppress(OSError):  # a network folder without locks: only the age marks it as stale
            _lock_at_once(file)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    except BaseException:
        with suppress(OSError):
            file.close()
        raise
    return file


def _sync_folder(folder: Path) -> None:
    """Make the rename durable, if the system can open folders."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
