"""Calls that run the model's own forward whatever is planned."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

from remate_runtime.applied import refuse_transforms
from remate_runtime.errors import ExecutionError, SteppedAsideWarning
from remate_runtime.staleness import global_hooks
from remate_runtime.support.callers import frames_to_caller


def wanted_as_program(given: Sequence[torch.Tensor]) -> bool:
    """Return whether a call exports, traces or transforms the model instead of training it."""
    from remate_runtime.torch_private.fake_tensors import FakeTensor

    try:
        refuse_transforms()
    except ExecutionError:
        return True
    return any(isinstance(tensor, FakeTensor) for tensor in given)


class HooksOfAllModules:
    """Hooks that are registered for all modules, of a debugger or a profiler: a schedule would not call them.

    Attributes:
        calls: Number of calls that run the own forward because of them.
    """

    def __init__(self, model: str) -> None:
        """Watch for hooks. model: name of the model's class."""
        self._model = model
        self.calls = 0

    def around_all_modules(self) -> bool:
        """Return whether there are such hooks, and warn of the first ones."""
        hooks = global_hooks()
        if hooks and not self.calls:
            warnings.warn(
                f"the {self._model} runs its own forward, without a memory budget, while the hook {hooks[0]!r} is "
                "registered for all modules: a schedule would not call it",
                SteppedAsideWarning,
                stacklevel=frames_to_caller(),
            )
        self.calls += bool(hooks)
        return bool(hooks)
