"""Caches that the first call of forward creates and keeps: masks, tables of positions, flags. They are created before
planning, so that the plan is for every later call."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from torch import nn

from remate_runtime.format import attributes_of, is_object, plain_attributes
from remate_runtime.staleness import FirstCall, make_caches

from ..errors import CaptureError
from . import lru_caches
from .assigned import assigned_at
from .captured import Captured
from .carried import APART

_SHOWN = 5
_PLAIN = (bool, int, float, str, type(None))


class Caches:
    """Creates the caches of a model. paths: the attributes that were created."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.paths: tuple[str, ...] = ()
        self.remembered = False  # a function with lru_cache has new results

    def may_be(self, captured: Captured) -> bool:
        """Whether the step sets attributes to tensors, or reads attributes that it changes. Flags and numbers do not
        count, because the capture has compared the step before and after their change."""
        set_ = len(attributes_of(captured.model.outputs)) > len(plain_attributes(captured.model.outputs))
        groups = (*captured.digest.modules, *captured.digest.objects) if captured.digest is not None else ()
        read = (value for group in groups for value in group.reads.values())
        changed = [value["either"] for value in read if is_object(value) and "either" in value]
        return set_ or not all(isinstance(each, _PLAIN) for both in changed for each in both)

    def make(self, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
        """Create the caches, with a warning. Returns whether there are any. Raises CaptureError for caches that depend
        on data, because the first call then runs another step."""
        before = lru_caches.sizes()
        first = make_caches(self._model, args, kwargs)
        self.remembered = any(function.cache_info().currsize != size for function, size in before)
        refuse_unlike(self._model, first)
        self.paths = first.caches
        if self.paths:
            warnings.warn(
                f"forward makes {_listed(self.paths)} at its first call and keeps it: made before planning, so "
                "that the plan is that of all later calls",
                UserWarning,
                stacklevel=6,
            )
        return bool(self.paths)


def refuse_unlike(model: nn.Module, first: FirstCall, left: Sequence[str] = ()) -> None:
    """Raise CaptureError if the first call of forward is another step than later ones. A call of its own may settle it.

    left: where the first call leaves tensors outside of modules.
    """
    if first.by_data:
        path = first.by_data[0]
        raise CaptureError(
            f"the first call of forward makes {_listed(first.by_data)} from data or random numbers, and later calls "
            "are another step",
            path.rpartition(".")[0],
            _line(model, path),
            "call the model once on a batch before planning, and in training before remate_runtime.apply",
            settles=True,
        )
    if first.carried:
        path = first.carried[0]
        raise CaptureError(
            f"forward keeps {_listed(first.carried)} for its next call, which computes something else than the first",
            path.rpartition(".")[0],
            _line(model, path),
            "call the model once on a batch before planning, and in training before remate_runtime.apply; or create it "
            f"in __init__: self.{path.rpartition('.')[2]} = torch.zeros(...)",
            settles=True,
        )
    if first.unlike and left:
        raise CaptureError(
            f"forward keeps tensors in {', '.join(left[:_SHOWN])} for its next call, which computes something else "
            "than the first",
            hint=f"call the model once on a batch before planning, and {APART}",
            settles=True,
        )


def _listed(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(map(repr, paths[:_SHOWN])) + more


def _line(model: nn.Module, path: str) -> str:
    above, _, name = path.rpartition(".")
    return assigned_at(model.get_submodule(above), name)


@contextmanager
def caches_made(model: nn.Module, kept: bool) -> Generator[Caches]:
    """Yield the Caches of a model. kept: keep created caches after the `with` block, unless it fails."""
    now = [(module, vars(module)) for module in model.modules()]
    before = [(m, dict(has), dict(has["_buffers"]), set(has["_non_persistent_buffers_set"])) for m, has in now]
    caches = Caches(model)
    done = False
    try:
        yield caches
        done = True
    finally:
        if caches.paths and not (kept and done):
            for module, attributes, buffers, unsaved in before:
                held = vars(module)
                for name in [name for name in held if name not in attributes]:
                    del held[name]
                held.update(attributes)
                held["_buffers"].clear()
                held["_buffers"].update(buffers)
                held["_non_persistent_buffers_set"].clear()
                held["_non_persistent_buffers_set"].update(unsaved)
