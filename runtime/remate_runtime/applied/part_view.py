"""A view of a model in which some parts run schedules. It shares all other modules with the model.

In the view, each module above a part is an instance of a subclass of its class. The instance shares the module's
attributes and has the scheduled part as a child. The model itself does not change.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from ..bind.modules import modules_by_path
from ..errors import StaleModelError, SteppedAsideWarning
from ..staleness import own_class, qualified
from .dispatch import Dispatch
from .programs import CompiledForward

Again = Callable[..., nn.Module]  # applies the same schedules to a copy of the model


class AppliedParts:
    """The schedules that were applied to parts of `model`.

    Attributes:
        model: The live model.
        steps: Dispatches by path.
        pickled: Returns the reduced form for pickle.
        again: Applies the same schedules to a copy of the model.
        arguments: Further arguments of `pickled` and `again`.
    """

    def __init__(
        self,
        model: nn.Module,
        steps: Mapping[str, Dispatch],
        pickled: Callable[..., tuple[object, ...]],
        again: Again,
        arguments: tuple[object, ...],
    ) -> None:
        self.model, self.steps, self.again, self.arguments = model, dict(steps), again, arguments
        self.pickled = pickled
        self._warned = False

    @property
    def calls(self) -> int:
        return sum(step.calls for step in self.steps.values())

    @property
    def calls_aside(self) -> int:
        """Number of calls of parts that ran their own forward."""
        return sum(step.calls_aside for step in self.steps.values())

    def warn_bypassed(self) -> None:
        """Warn, once, that forward did not call the parts of the view."""
        if not self._warned:
            self._warned = True
            warnings.warn(
                "the schedules step aside: forward called no part with a schedule. It does not reach its modules "
                "through attributes; apply the schedules to the parts, and put these into the model",
                SteppedAsideWarning,
                stacklevel=3,
            )


def part_view(parts: AppliedParts, planned: Mapping[str, nn.Module]) -> nn.Module:
    """Return the view.

    Args:
        parts: The applied parts.
        planned: Scheduled modules by path; none is inside another.
    """
    return _view(parts.model, {tuple(path.split(".")): module for path, module in planned.items()}, "", parts)


def parts_of(model: object) -> AppliedParts | None:
    """Return the schedules of a view's parts; None if the model is no view."""
    parts = getattr(model, "_remate_parts", None)
    return parts if isinstance(parts, AppliedParts) else None


def _view(
    module: nn.Module, planned: Mapping[tuple[str, ...], nn.Module], path: str, parts: AppliedParts | None = None
) -> nn.Module:
    below: dict[str, dict[tuple[str, ...], nn.Module]] = {}
    for names, scheduled in planned.items():
        below.setdefault(names[0], {})[names[1:]] = scheduled
    shown = {
        key: (
            vars(module)["_modules"][key],
            within[()] if () in within else _view(vars(module)["_modules"][key], within, f"{path}.{key}".lstrip(".")),
        )
        for key, within in below.items()
    }
    return _shown_as(module, shown, path, parts)


def _shown_as(
    module: nn.Module, shown: Mapping[str, tuple[nn.Module, nn.Module]], path: str, parts: AppliedParts | None
) -> nn.Module:
    """Return a module with other children.

    Args:
        module: The module.
        shown: By name, the current child and its replacement.
        path: Path of the module.
        parts: The applied parts, for the topmost module.
    """
    base = type(module)
    space: dict[str, Any] = {
        "__slots__": ("_remate_compiled", "_remate_original", "_remate_parts", "_remate_shown"),
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "__call__": _call(base, path),
        "__getattr__": _attribute(base),
        "_modules": _Children(),
        "_compiled_call_impl": CompiledForward(),
        "__reduce_ex__": _reduce_inner,
    }
    if parts is not None:
        space |= {"__reduce_ex__": _reduce, "__deepcopy__": _deepcopy}
    view = object.__new__(type(base.__name__, (base,), space))
    object.__setattr__(view, "__dict__", module.__dict__)
    object.__setattr__(view, "_remate_original", module)
    object.__setattr__(view, "_remate_shown", shown)
    object.__setattr__(view, "_remate_parts", parts)
    return view


class _Children:
    """`_modules` of a view: the module's children, with scheduled parts in place of their originals.

    A child that was replaced later is shown unchanged. The mapping is read-only; add and remove children in the module.
    """

    def __get__(self, module: object, owner: type) -> Any:
        if module is None:
            raise AttributeError("_modules")  # as for any other class
        originals = vars(module)["_modules"]
        shown = _shown(module)
        if not shown:
            return originals
        return MappingProxyType(
            {
                key: shown[key][1] if key in shown and shown[key][0] is child else child
                for key, child in originals.items()
            }
        )

    def __set__(self, module: object, value: object) -> None:
        vars(module)["_modules"] = value


def _shown(module: object) -> Mapping[str, tuple[nn.Module, nn.Module]]:
    """Return the replacements; none if other code created an instance of the view's class."""
    try:
        return object.__getattribute__(module, "_remate_shown")
    except AttributeError:
        return {}


def _attribute(base: type[nn.Module]) -> Callable[[Any, str], Any]:
    def get(self: Any, name: str) -> Any:
        if name in _shown(self):
            children = self._modules
            if name in children:
                return children[name]
        return base.__getattr__(self, name)

    return get


def _call(base: type, path: str) -> Callable[..., Any]:
    """Return the view's `__call__`. It raises StaleModelError if the module has another class than the view shows, and
    warns if no schedule runs in a training step."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        original = getattr(self, "_remate_original", None)
        kind = base if original is None else type(original)
        if kind is not base and own_class(kind) is not own_class(base):
            place = f"module {path!r}" if path else "the model"
            raise StaleModelError(
                f"the model changed after the schedules were applied:\n  - {place} ({base.__name__}): is a "
                f"{qualified(kind)} now\n  set it back, or apply the schedules again"
            )
        parts = parts_of(self)
        before = 0 if parts is None else parts.calls
        outputs = base.__call__(self, *args, **kwargs)
        if parts is not None and parts.calls == before and self.training and torch.is_grad_enabled():
            parts.warn_bypassed()
        return outputs

    return call


def _reduce(module: Any, protocol: int) -> tuple[Any, ...]:
    parts = module._remate_parts
    return parts.pickled(parts.model, *parts.arguments)


def _reduce_inner(module: Any, protocol: int) -> tuple[Any, ...]:
    """Reduce a module above parts to the module without schedules and the replacements of its children."""
    return _shown_as, (module._remate_original, dict(module._remate_shown), "", None)


def _deepcopy(module: Any, memo: dict[int, Any]) -> nn.Module:
    parts = module._remate_parts
    return parts.again(copy.deepcopy(parts.model, memo), *parts.arguments)


def refused_paths(model: nn.Module, paths: Sequence[str]) -> list[str]:
    """Return the reasons why these modules cannot have their own schedules."""
    modules, reasons = modules_by_path(model), list[str]()
    for path in paths:
        above = [".".join(path.split(".")[:n]) for n in range(path.count(".") + 1)]
        if path not in modules:
            reasons.append(f"module {path!r}: not in the model")
            continue
        reasons += [
            f"module {path!r}: inside {ancestor!r}, which has a schedule itself"
            for ancestor in above
            if ancestor in paths
        ]
        for ancestor in above:
            if "forward" in vars(modules[ancestor]):
                reasons.append(
                    f"module {ancestor!r}: a library that wraps models has replaced its forward, which would run "
                    "without the schedules; apply them first"
                )
    return list(dict.fromkeys(reasons))
