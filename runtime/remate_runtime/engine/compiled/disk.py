"""Inductor's cache folder, and a temporary one if it is not writable."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager

from ...operator_calls.cache_folder import in_folder
from .inductor import folder, forget

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_BARRED = frozenset((*_FULL, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.EISDIR))


class Disk:
    """Inductor's cache on disk.

    Attributes:
        path: Inductor's cache folder.
        reason: Why it is not writable; "" if it is, as far as is known.
    """

    def __init__(self) -> None:
        self.path = folder()
        self.reason = _unwritable(self.path)
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    @contextmanager
    def use(self) -> Generator[None]:
        """Make Inductor use a writable folder meanwhile. Raises OSError if there is none."""
        if not self.reason:
            yield
            return
        with self.aside():
            yield

    @contextmanager
    def aside(self) -> Generator[None]:
        """Make Inductor use a temporary folder meanwhile, which starts empty."""
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="remate-inductor-", ignore_cleanup_errors=True)
        with in_folder(self._temporary.name):
            yield

    def is_barred(self, error: BaseException) -> bool:
        """Return whether an error says that the folder is not writable. If so, `use` selects a temporary one from now
        on."""
        reason = next((text for cause in causes(error) if (text := _barred(cause))), "")
        if reason:
            self.reason = reason
            forget()
        return bool(reason)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        inner = getattr(error, "inner_exception", None)  # an attribute of Inductor's errors
        if isinstance(inner, BaseException):
            yield inner
        error = error.__cause__ or error.__context__


def _barred(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno in _BARRED:
        return error.strerror or str(error)
    # Errors of the C++ compiler arrive as text.
    return next((text for code in _FULL if (text := os.strerror(code)) in str(error)), "")


def _unwritable(path: str) -> str:
    try:
        os.makedirs(path, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return ""
    except OSError as error:
        return error.strerror or str(error)
