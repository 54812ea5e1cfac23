"""Compiled functions by content: equal segments share one."""

from __future__ import annotations

import hashlib
import logging

from .graphs import SegmentGraph
from .inductor import Compiled, compiled

_log = logging.getLogger(__name__)


class Artefacts:
    """What has been compiled for a step, in all its forms. None stands for a segment that does not compile."""

    def __init__(self) -> None:
        self._known: dict[str, Compiled | None] = {}

    def __len__(self) -> int:
        return sum(one is not None for one in self._known.values())

    def get(self, segment: SegmentGraph, what: str) -> Compiled | None:
        """The function of a segment. what: names the segment in the log, which says why if there is none."""
        key = hashlib.sha256(segment.key.encode()).hexdigest()
        if key not in self._known:
            try:
                made = compiled(segment.module, segment.takes, segment.gives, segment.donated, key)
            except Exception as error:  # Inductor raises whatever it meets; operator by operator the step is right
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                _log.warning("%s does not compile and is interpreted: %s", what, reason)
                made = None
            self._known[key] = made
        return self._known[key]
