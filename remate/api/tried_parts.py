"""Parts that a refusal proposes instead of the whole model: they are tried before they are proposed."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from remate_runtime.format import Digest
from remate_runtime.staleness import compare_digest

from ..capture.capture_step import capture
from ..capture.differentiated import OF_A_PART
from ..capture.parts import PartCalls, part_calls
from ..capture.recorded import RecordedCall
from ..errors import CaptureError, LostOutputWarning
from ..profile.devices import Device
from .elsewhere import on_device
from .options import PlanOptions


@contextmanager
def proposing_what_works(call: RecordedCall, options: PlanOptions, gpu: Device | None) -> Generator[None]:
    """Let a CaptureError in the `with` block propose only parts that can be captured.

    Where processes work together nothing is tried, because forward could wait for the others.
    """
    try:
        yield
    except CaptureError as error:
        if not error.parts or (torch.distributed.is_available() and torch.distributed.is_initialized()):
            raise
        differentiate = options.differentiate if options.at is not None else None  # else they are those of the whole
        parts = tried_parts(call, error.parts, differentiate, gpu)
        raise CaptureError(error.message, error.module, error.source, error.hint, parts, error.settles) from error


def tried_parts(
    call: RecordedCall, parts: Sequence[str], differentiate: Sequence[str] | None = None, gpu: Device | None = None
) -> list[str]:
    """Return those of the parts that can be captured, and parts within the others that can.

    Args:
        call: The call of the whole model.
        parts: Paths of parts, none within another.
        differentiate: As for `capture`, in each part.
        gpu: A GPU to capture for, which this machine need not have.
    """
    known: set[str] = set()
    with warnings.catch_warnings(record=True), on_device(gpu, call) as device_call:
        warnings.simplefilter("error", LostOutputWarning)  # the code around a part may use what would be lost
        while not known.issuperset(parts):
            try:
                every = part_calls(device_call, parts)
            except CaptureError as error:  # some are not called in training, or calls of one cannot be recorded
                left = error.parts or [path for path in parts if path != error.module]
                if set(left) == set(parts):
                    return []
                parts = left
                continue
            refused: dict[str, list[str]] = {}
            for calls in every:
                if not known.issuperset(calls.paths):
                    refused |= _refused(device_call.model, calls, differentiate or OF_A_PART)
            known |= {path for calls in every for path in calls.paths}
            within = [part for inner in refused.values() for part in inner]
            parts = [*(path for path in parts if path not in refused), *within]
    return list(parts)


def _refused(model: nn.Module, calls: PartCalls, differentiate: Sequence[str]) -> dict[str, list[str]]:
    """Return the parts of one kind that cannot be captured, each with the parts within it that are left.

    Args:
        model: The whole model.
        calls: The calls of the parts.
        differentiate: As for `capture`.
    """
    pending = list(calls.paths)
    while pending:
        part = calls.call(model, pending[0])
        try:
            with part.in_effect():
                digest = capture(part.model, part.args, part.kwargs, differentiate=differentiate).digest
        except CaptureError as error:
            return {path: [f"{path}.{inner}" for inner in error.parts] for path in pending}
        assert digest is not None
        pending = [path for path in pending[1:] if not _same(calls.call(model, path), digest)]
    return {}


def _same(part: RecordedCall, digest: Digest) -> bool:
    with part.in_effect():
        return not compare_digest(digest, torch.__version__.partition("+")[0], part.model).faults
