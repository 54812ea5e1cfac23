"""Tensors without data. Import this where it is used: it loads much of torch."""

from __future__ import annotations

from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensor, FakeTensorMode, UnsupportedOperatorException

__all__ = ["FakeCopyMode", "FakeTensor", "FakeTensorMode", "UnsupportedOperatorException"]
