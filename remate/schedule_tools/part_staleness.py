"""Compares a file for parts of a model with the live model: the parts, their calls, and the step of a part."""

from __future__ import annotations

from collections.abc import Sequence

from remate_runtime.format import unfold_paths
from remate_runtime.staleness import part_digest

from ..capture.capture_step import capture
from ..capture.parts import PartCalls, part_calls
from ..capture.recorded import RecordedCall
from ..errors import CaptureError
from .analysis import Analysis
from .staleness import StalenessCause, differences, digest_differences_of


def part_differences(opened: Analysis, call: RecordedCall, used: Sequence[str]) -> list[StalenessCause]:
    """All causes of staleness; empty if the file fits.

    Args:
        call: Arguments of the whole model.
        used: Outputs that receive a gradient, as for `remate.plan(differentiate=)`.

    Raises:
        CaptureError: A part cannot be traced any more.
    """
    planned = opened.schedule.model
    paths = list(unfold_paths(planned.at))
    try:
        kinds = part_calls(call, paths)
    except CaptureError as error:
        return [StalenessCause("parts of the model", ", ".join(planned.at), str(error).splitlines()[0])]
    causes = min((_of_kind(opened, call, kind, used) for kind in kinds), key=len)
    digest = opened.schedule.digest
    if digest is not None:
        by_text: dict[str, StalenessCause] = {}
        with call.in_effect():
            for path in paths:
                module = call.model.get_submodule(path)
                for cause in digest_differences_of(part_digest(digest, path), planned.torch, module):
                    by_text.setdefault(cause.what, StalenessCause(f"part {path}: {cause.what}", cause.file, cause.live))
        causes += by_text.values()
    return causes


def _of_kind(opened: Analysis, call: RecordedCall, kind: PartCalls, used: Sequence[str]) -> list[StalenessCause]:
    planned = opened.schedule.model
    own = kind.call(call.model, kind.paths[0])
    with own.in_effect():
        live = capture(own.model, own.args, own.kwargs, differentiate=list(used))
        causes = differences(planned, live.model, opened.expanded.unsplit, live.graph)
    others = sorted(set(unfold_paths(planned.at)) - set(kind.paths))
    if others:
        causes.append(StalenessCause(f"calls of {', '.join(others)}", f"as of {kind.paths[0]}", "with other inputs"))
    if kind.calls != planned.calls:
        causes.append(StalenessCause("calls of each part in a step", str(planned.calls), str(kind.calls)))
    return causes
