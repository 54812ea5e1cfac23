"""One line on any training script: a model whose first training call is planned, and whose other calls run the
schedule.

It sits on `record`, `plan` and `apply`: what they refuse is refused here, with the same words.
"""

from __future__ import annotations

from .auto import auto
from .state import state_of
from .taken_over import is_taken_over

__all__ = ["auto", "is_taken_over", "state_of"]
