"""The folder for torch's compiled files, if it cannot be created.

torch imports `torch._dynamo` with its first tensor without data, and the import creates the folder. If that fails, the
import fails for the rest of the process. Only the engine that compiles needs the folder.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib import import_module

NAME = "TORCHINDUCTOR_CACHE_DIR"  # torch offers no other way to set the folder


@contextmanager
def in_folder(path: str) -> Generator[None]:
    """Make torch use this folder meanwhile."""
    before = os.environ.get(NAME)
    os.environ[NAME] = path
    try:
        yield
    finally:
        os.environ.pop(NAME, None)
        if before is not None:
            os.environ[NAME] = before


def import_without_folder() -> None:
    """Import the module that creates the folder, if the configured folder cannot be created.

    Call this before tensors without data are created. Without configuration, torch uses the system's folder for
    temporary files.
    """
    path = os.environ.get(NAME)
    if path is None or "torch._dynamo" in sys.modules:
        return
    try:
        os.makedirs(path, exist_ok=True)
    except OSError:
        # If that fails too, torch reports the reason.
        with suppress(OSError), tempfile.TemporaryDirectory() as other, in_folder(other):
            import_module("torch._dynamo")
