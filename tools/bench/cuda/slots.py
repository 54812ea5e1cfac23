"""What processes of one model share: turns on the GPU, and plans. Locks on files, which end with their process.
Standard library alone."""

from __future__ import annotations

import contextlib
import fcntl
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

SLOTS = 3  # configurations that run steps at the same time while they are set up
_WAIT = 0.1  # seconds between attempts


@contextlib.contextmanager
def slot(folder: Path, name: str, count: int) -> Iterator[float]:
    """Hold one of `count` slots of this name, and wait until one is free. Yields the seconds that it waited."""
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context((folder / f"{name}.{number}.lock").open("w")) for number in range(count)]
        while (held := next((file for file in files if _locked(file.fileno())), None)) is None:
            time.sleep(_WAIT)
        try:
            yield time.monotonic() - started
        finally:
            fcntl.flock(held, fcntl.LOCK_UN)  # a child that was forked meanwhile may have the file open for longer


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def shared_file(file: Path, write: Callable[[Path], None]) -> Path:
    """Return a file that the first process to ask for writes. Where that fails, all that ask get its error."""
    failure = file.with_name(f"{file.name}.failure")
    with slot(file.parent, file.name, 1):
        if failure.exists():
            raise RuntimeError(f"the same plan failed in another process\n{failure.read_text(encoding='utf-8')}")
        if not file.exists():
            part = file.with_name(f"{file.name}.part")
            try:
                write(part)
            except Exception:
                failure.write_text(traceback.format_exc(), encoding="utf-8")
                raise
            part.rename(file)
    return file
