"""Compiles segments in parallel, in Inductor's worker processes. They fill Inductor's cache on disk, which
`inductor.compiled` reads. So a process that fails costs only time."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from .graphs import SegmentGraph
from .inductor import compile_side_by_side, has_been_compiled, processes

_log = logging.getLogger(__name__)
_WORTHWHILE = 4  # functions; starting processes takes as long as compiling two or three


def prepare(graphs: Sequence[tuple[str, SegmentGraph]]) -> None:
    """Compile graphs that were never compiled on this machine, if they are many and there is more than one core.

    Args:
        graphs: Pairs of tag and graph, without duplicates.
    """
    cold = [(tag, about) for tag, about in graphs if not has_been_compiled(tag)]
    count = min(len(cold), processes())
    if len(cold) < _WORTHWHILE or count < 2:
        return
    _log.info("compiling %d functions in %d processes", len(cold), count)
    # Start with the largest ones.
    cold.sort(key=lambda pair: -len(pair[1].module.graph.nodes))
    cpu = torch.device("cpu")
    jobs = [
        (about.module, about.input_types, about.output_types, about.donated, about.free, cpu, tag)
        for tag, about in cold
    ]
    for done, failed in enumerate(compile_side_by_side(jobs, count), 1):
        _log.info("%d of %d functions compiled%s", done, len(cold), f"; failed: {failed}" if failed else "")
