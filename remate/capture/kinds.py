"""The class of a value about which nothing is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# `type` itself, declared for such values: a test of its result leaves their type Any, as `isinstance` does not.
kind_of: Callable[[object], type[Any]] = type
