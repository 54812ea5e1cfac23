"""One line in a training script: remate plans a model's first training call and runs the schedule from then on.

It uses `record`, `plan` and `apply`, and raises their errors unchanged.
"""

from __future__ import annotations

from .auto import auto
from .state import state_of
from .taken_over import is_taken_over

__all__ = ["auto", "is_taken_over", "state_of"]
