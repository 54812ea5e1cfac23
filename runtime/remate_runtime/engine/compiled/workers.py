"""Segments compiled side by side, in processes of Inductor's own kind. What they make goes to its cache on disk, where
`inductor.compiled` finds it: a process that fails costs time and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from .graphs import SegmentGraph
from .inductor import compile_side_by_side, has_been_compiled, processes

_log = logging.getLogger(__name__)
_WORTHWHILE = 4  # functions: to start processes takes the time of compiling two or three


def prepare(graphs: Sequence[tuple[str, SegmentGraph]]) -> None:
    """Compile what has not been compiled on this machine, if that is much and there is more than one core. graphs: with
    their tags, each once."""
    cold = [(tag, about) for tag, about in graphs if not has_been_compiled(tag)]
    count = min(len(cold), processes())
    if len(cold) < _WORTHWHILE or count < 2:
        return
    _log.info("%d functions are compiled in %d processes", len(cold), count)
    # The largest first, so that none of them comes last.
    cold.sort(key=lambda pair: -len(pair[1].module.graph.nodes))
    cpu = torch.device("cpu")
    jobs = [(about.module, about.takes, about.gives, about.donated, about.free, cpu, tag) for tag, about in cold]
    for done, failed in enumerate(compile_side_by_side(jobs, count), 1):
        _log.info("%d of %d functions compiled%s", done, len(cold), f"; not one of them: {failed}" if failed else "")
