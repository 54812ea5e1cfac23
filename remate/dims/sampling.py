"""Captures of one model at several sizes, each taken once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import torch

from ..capture.captured import Captured
from ..capture.sizes import SizeLog
from ..errors import CaptureError
from ..live_attributes.capturing import captured
from .requested_sizes import Asking
from .resize import resized
from .words import spelled

Progress = Callable[[str], None]
Sizes = dict[str, int]


class TraceSample(msgspec.Struct, frozen=True):
    """The step at some sizes, and forward's decisions by them."""

    sizes: Sizes
    captured: Captured
    log: SizeLog


Captures = dict[tuple[int, ...], TraceSample | CaptureError]  # by sizes


def _is_complete(known: TraceSample | CaptureError) -> bool:
    """Return whether a capture may be the first of a sampling, which has the digest."""
    return isinstance(known, CaptureError) or known.captured.digest is not None


class Sampling:
    """Captures a model.

    Args:
        model: As in `captured`, like args, kwargs, differentiate and live: the example.

    Attributes:
        asking: The sizes that may vary.
        earlier: Sizes of `captures`, which an earlier sampling of the same example has taken. It adds its own.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        differentiate: Sequence[str] | None,
        asking: Asking,
        progress: Progress,
        live: Sequence[str] = (),
        captures: Captures | None = None,
    ) -> None:
        self.asking = asking
        self._model, self._args, self._kwargs, self._differentiate = model, tuple(args), dict(kwargs), differentiate
        self._progress, self._live = progress, tuple(live)
        self._trace_samples: Captures = {} if captures is None else captures
        self.earlier = [each.sizes for each in self._trace_samples.values() if isinstance(each, TraceSample)]
        self._started = False

    @property
    def example(self) -> Sizes:
        return {size.name: size.planned for size in self.asking.sizes}

    def at(self, sizes: Sizes) -> TraceSample:
        """Return the step at some sizes. Raises CaptureError."""
        key = tuple(sizes[size.name] for size in self.asking.sizes)
        known = self._trace_samples.get(key)
        if known is None or not (self._started or _is_complete(known)):
            other = "" if sizes == self.example else f" at other sizes, {spelled(sizes)}"
            self._progress(f"tracing forward and backward{other}")
            try:
                self._trace_samples[key] = self._captured(sizes)
            except CaptureError as error:
                self._trace_samples[key] = error
        sample = self._trace_samples[key]
        if isinstance(sample, CaptureError):
            raise sample
        return sample

    def _captured(self, sizes: Sizes) -> TraceSample:
        log = SizeLog()
        args, kwargs = self._args, self._kwargs
        if sizes != self.example:
            args, kwargs = resized(self.asking, args, kwargs, sizes)
        is_first, self._started = not self._started, True
        options: Any = {
            "sizes": log,
            "probing": is_first,
            "digested": is_first,
            "stepwise": True,
            "say": self._progress,
        }
        with warnings.catch_warnings():
            if not is_first:
                warnings.simplefilter("ignore")  # the first trace has warned already
            step = captured(self._model, args, kwargs, self._differentiate, self._live, **options)
        return TraceSample(sizes, step, log)
