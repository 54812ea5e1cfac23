"""The cost of an operation."""

from __future__ import annotations

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]


class Cost(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The cost of an operation.

    Attributes:
        ns: Time of an execution.
        workspace: Bytes allocated and freed beyond the outputs.
        note: How the cost was obtained, if not as usual.
    """

    ns: Count
    workspace: Count = 0
    note: str = ""
