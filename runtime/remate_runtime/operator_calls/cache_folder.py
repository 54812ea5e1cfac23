"""The folder in which torch keeps what it compiles, where it cannot be made.

torch imports `torch._dynamo` with its first tensor without data, and that makes the folder; where it cannot, the import
fails, and fails for good. Nothing of a step needs the folder, but for the engine that compiles.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

NAME = "TORCHINDUCTOR_CACHE_DIR"  # there is no other way to name it to torch


@contextmanager
def in_folder(path: str) -> Iterator[None]:
    """Have torch keep it there meanwhile."""
    before = os.environ.get(NAME)
    os.environ[NAME] = path
    try:
        yield
    finally:
        os.environ.pop(NAME, None)
        if before is not None:
            os.environ[NAME] = before


def import_without_folder() -> None:
    """Import what would make the folder, if that is requested where it cannot be made; to be called before tensors
    without data. (Where none is named it is made among the system's temporary files.)"""
    path = os.environ.get(NAME)
    if path is None or "torch._dynamo" in sys.modules:
        return
    try:
        os.makedirs(path, exist_ok=True)
    except OSError:
        # If there is no other, torch reports what it misses.
        with suppress(OSError), tempfile.TemporaryDirectory() as other, in_folder(other):
            import torch._dynamo  # noqa: F401
