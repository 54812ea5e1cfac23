"""What forward makes at its first call and keeps (masks, tables of positions, flags): made before planning, so that the
planned step is that of every later call."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from remate_runtime.staleness import make_caches

from ..errors import CaptureError
from .assigned import assigned_at
from .captured import Captured
from .outside import remembered

_SHOWN = 5
_PLAIN = (bool, int, float, str, type(None))


class Caches:
    """paths: of what was made."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.paths: tuple[str, ...] = ()
        self.remembered = False  # a function that remembers results (lru_cache) holds some that it did not

    def may_be(self, captured: Captured) -> bool:
        """Whether the step sets attributes that were no tensors before, or reads some that it changes, flags and
        numbers apart: what is captured is the same step before and after these changed."""
        tree = captured.model.outputs
        set_ = tree.get("attributes", {}) if isinstance(tree, dict) and "returns" in tree else {}
        groups = (*captured.digest.modules, *captured.digest.objects) if captured.digest is not None else ()
        read = (value for group in groups for value in group.reads.values())
        changed = [value["either"] for value in read if isinstance(value, dict) and "either" in value]
        return bool(set_) or not all(isinstance(each, _PLAIN) for both in changed for each in both)

    def make(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Make them, and say so. Returns whether there are any. Raises CaptureError where they would be made of data:
        the first call is another step then, and what it leaves is not known before."""
        memories = remembered()
        first = make_caches(self._model, args, kwargs)
        self.remembered = any(memory.cache_info().currsize != size for memory, size in memories)
        if first.by_data:
            path = first.by_data[0]
            raise CaptureError(
                f"the first call of forward makes {self._listed(first.by_data)} from data or random numbers, and later "
                "calls are another step",
                path.rpartition(".")[0],
                self._line(path),
                "call the model once on a batch before planning, and in training before remate_runtime.apply",
            )
        if first.carried:
            path = first.carried[0]
            raise CaptureError(
                f"forward keeps {self._listed(first.carried)} for its next call, which computes something else "
                "than the first",
                path.rpartition(".")[0],
                self._line(path),
                f"let it be there from the beginning: self.register_buffer({path.rpartition('.')[2]!r}, "
                "torch.zeros(...)) in __init__, of the shape that forward gives it",
            )
        self.paths = first.caches
        if self.paths:
            warnings.warn(
                f"forward makes {self._listed(self.paths)} at its first call and keeps it: made before planning, so "
                "that the plan is that of all later calls",
                UserWarning,
                stacklevel=6,
            )
        return bool(self.paths)

    def _listed(self, paths: Sequence[str]) -> str:
        more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
        return ", ".join(map(repr, paths[:_SHOWN])) + more

    def _line(self, path: str) -> str:
        above, _, name = path.rpartition(".")
        return assigned_at(self._model.get_submodule(above), name)


@contextmanager
def caches_made(model: nn.Module, kept: bool) -> Iterator[Caches]:
    """Gives what makes them. kept: the model has them from now on; otherwise it is as before in the end, but for a
    failure."""
    before = {id(m): (m, dict(vars(m)), dict(m._buffers), set(m._non_persistent_buffers_set)) for m in model.modules()}
    caches = Caches(model)
    done = False
    try:
        yield caches
        done = True
    finally:
        if caches.paths and not (kept and done):
            for module, attributes, buffers, unsaved in before.values():
                held = vars(module)
                for name in [name for name in held if name not in attributes]:
                    del held[name]
                held.update(attributes)
                module._buffers.clear()
                module._buffers.update(buffers)
                module._non_persistent_buffers_set.clear()
                module._non_persistent_buffers_set.update(unsaved)
