"""Tensors without data. Import this where it is used: it loads much of torch."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator

from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensor, FakeTensorMode, UnsupportedOperatorException

__all__ = ["FakeCopyMode", "FakeTensor", "FakeTensorMode", "UnsupportedOperatorException", "quiet_meta_failures"]


class _MetaFailures(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("failed while attempting to run meta")


@contextlib.contextmanager
def quiet_meta_failures() -> Generator[None]:
    """Suppress the tracebacks that torch logs for operators that refuse fake tensors. The exception itself remains."""
    log, silent = logging.getLogger(FakeTensor.__module__), _MetaFailures()
    log.addFilter(silent)
    try:
        yield
    finally:
        log.removeFilter(silent)
