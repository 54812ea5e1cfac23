"""The self-check of an applied model: it runs the model's own forward beside the scheduled one and compares bitwise.

Digest and guard detect known kinds of changes. The self-check detects any change that affects the outputs, buffers,
attributes or random numbers of a call, and gradients where backward runs code of the user's.

- `policy`: the calls at which it runs. `check`: its order, and what happens with the result.
- `snapshot` (with `reached` and `iterators`): restores in place the state that a forward changed. `generators`: the
states of random number generators.
- `live_forward`: runs the model's own forward without keeping anything for backward.
- `checksum`, `outcome`, `comparison`: the results of a forward in a few bytes, and their comparison.
- `gradients`: compares a step with backward. `memory`: whether memory suffices for it.
- `locate`: the first operation and the first line that differ. `ranks`: the verdict of several processes.
"""

from __future__ import annotations

from .check import SelfCheck
from .checksum import Checksums
from .policy import CHECK_FIRST, Checks, Verify, checks_of
from .program import Program
from .snapshot import Snapshot

__all__ = ["CHECK_FIRST", "Checks", "Checksums", "Program", "SelfCheck", "Snapshot", "Verify", "checks_of"]
