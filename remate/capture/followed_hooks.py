"""The hooks of submodules while a model is traced."""

from __future__ import annotations

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch

from remate_runtime.bind import modules_by_path
from remate_runtime.staleness import (
    CHECKPOINTS,
    checkpoints,
    global_hooks,
    hook_name,
    is_forwards_own,
    is_torchs,
    not_called,
    only_looks,
)

from ..errors import CaptureError

_KEYS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Hooks:
    """Handle the hooks of a model during a trace. Hooks of the model itself do not run, because they run around the
    scheduled step. Hooks of submodules become part of the step; a hook without a result would be lost."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._answered: dict[tuple[str, str, int], bool] = {}
        self._looking: set[tuple[str, int]] = set()  # hooks that compute nothing

    @contextmanager
    def followed(self) -> Generator[None]:
        if hooks := global_hooks():
            raise CaptureError(
                f"the hook {hooks[0]!r}, registered for all modules, would never be called by a schedule",
                hint="remove it while planning and training",
            )
        saved: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        try:
            for path, module in modules_by_path(self._model, each_once=True).items():
                for key in _KEYS:
                    hooks = vars(module).get(key)
                    if hooks:
                        saved.append((hooks, dict(hooks)))
                        self._prepare(path, key, hooks)
            yield
        finally:
            for hooks, before in saved:
                hooks.clear()
                hooks.update(before)
        self._refuse_lost()

    def _prepare(self, path: str, key: str, hooks: dict[Any, Any]) -> None:
        for number, hook in list(hooks.items()):
            if is_torchs(hook) or is_forwards_own(hook):
                continue
            if not path:
                del hooks[number]
            else:
                kind = key.strip("_").removesuffix("_hooks")
                if only_looks(kind, hook):
                    self._looking.add((path, number))
                hooks[number] = self._follow((path, hook_name(kind, hook), number), hook)

    def _follow(self, name: tuple[str, str, int], hook: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            result = hook(*args, **kwargs)
            self._answered[name] = self._answered.get(name, False) or result is not None
            return result

        return run

    def _refuse_lost(self) -> None:
        lost = [name for name, answered in self._answered.items() if not answered]
        for path, name, number in lost:
            if (path, number) not in self._looking:
                self._refuse(path, name)
        if lost:
            warnings.warn(not_called([f"{path}: {name}" for path, name, _ in lost]), UserWarning, stacklevel=5)

    def _refuse(self, path: str, name: str) -> None:
        hint = (
            "let forward return what the hook collects (features for a loss), remove it while planning and training, "
            "or register it on the model itself, whose hooks do run"
        )
        if any(checkpoints(*item) for module in self._model.modules() for item in vars(module).items()):
            hint = CHECKPOINTS
        raise CaptureError(f"the hook {name!r} of a submodule would never be called by a schedule", path, hint=hint)
