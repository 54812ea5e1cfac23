"""The self-check of an applied model: the model's own forward runs beside the scheduled one, and results are compared
bit for bit.

The digest and the guard see what they know to look at. The self-check needs to know nothing: it sees any change whose
effect reaches the outputs, buffers, attributes or random numbers of a call, and where backward runs code of the user's
own, the gradients.

- `policy`: at which calls it runs. `check`: the order of what it does, and what becomes of the result.
- `snapshot` (with `reached` and `iterators`): puts the state back that a forward changed, in place. `generators`: of
  random numbers.
- `live_forward`: runs the model's own forward so that it keeps nothing for backward.
- `checksum`, `outcome`, `comparison`: what a forward gave, in a few bytes, and whether two are the same.
- `gradients`: compares one step with backward. `memory`: whether there is room for it.
- `locate`: the first operation and the first line that differ. `ranks`: the verdict of several processes.
"""

from __future__ import annotations

from .check import SelfCheck
from .checksum import Checksums
from .policy import CHECK_FIRST, Checks, Verify, checks_of
from .program import Program

__all__ = ["CHECK_FIRST", "Checks", "Checksums", "Program", "SelfCheck", "Verify", "checks_of"]
