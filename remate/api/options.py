"""The options of `remate.plan`, shared by all functions and commands that take them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar

import msgspec

from remate_runtime.format import did_you_mean

from .progress import ProgressOption

OnInfeasible = Literal["error", "smallest"]
_F = TypeVar("_F", bound=Callable[..., Any])


class PlanOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of `remate.plan` beyond the call, the budget and the cost, with their defaults. `plan` documents
    them."""

    at: str | Sequence[str] | None = None
    profile: str | Path | None = None
    cache: bool = True
    measure_again: bool = False
    time_limit: float | None = None
    gap: float = 0.002
    strategy: str = "auto"
    effort: str = "normal"
    differentiate: Sequence[str] | None = None
    gradients: str = "retained"
    dims: Any = None
    live: str | Sequence[str] = ()
    fill: Mapping[str, bool | int | float] | None = None
    name: str = ""
    note: str = ""
    progress: ProgressOption = "auto"
    slowdown: str | float | None = None
    disk_budget: str | int | None = None
    host_budget: str | int | None = None
    bandwidth: str = "measured"
    split: str | bool | None = None
    objective: str = "time"
    power: str = ""
    limit: float | None = None
    device: str | None = None
    fsdp: str | Sequence[str] | None = None
    shards: int | None = None
    keep_gathered: bool | str | Sequence[str] = False
    on_infeasible: OnInfeasible = "error"

    @property
    def live_paths(self) -> tuple[str, ...]:
        """Paths of the live attributes; a single text is one path."""
        return (self.live,) if isinstance(self.live, str) else tuple(self.live)


class SearchKeywords(TypedDict, total=False):
    """Fields of `PlanOptions` that `plan`, `fit` and `frontier` share, for type checkers."""

    profile: str | Path | None
    cache: bool
    measure_again: bool
    time_limit: float | None
    gap: float
    strategy: str
    effort: str
    differentiate: Sequence[str] | None
    gradients: str
    dims: Any
    live: str | Sequence[str]
    name: str
    note: str
    progress: ProgressOption


class FrontierKeywords(SearchKeywords, total=False):
    """Fields of `PlanOptions` that `fit` and `frontier` have."""

    split: str | bool | None


class PlanKeywords(SearchKeywords, total=False):
    """The fields of `PlanOptions` but `at`, which decides what `plan` returns."""

    fill: Mapping[str, bool | int | float] | None
    slowdown: str | float | None
    disk_budget: str | int | None
    host_budget: str | int | None
    bandwidth: str
    split: str | bool | None
    objective: str
    power: str
    limit: float | None
    device: str | None
    fsdp: str | Sequence[str] | None
    shards: int | None
    keep_gathered: bool | str | Sequence[str]
    on_infeasible: OnInfeasible


def takes(keywords: type, **defaults: Any) -> Callable[[_F], _F]:
    """Give a function of `**options` the signature that its options amount to, for `help` and for editors.

    Args:
        keywords: The TypedDict that the function unpacks.
        defaults: Defaults that differ from those of `PlanOptions`.
    """

    def decorate(function: _F) -> _F:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        given = {**msgspec.structs.asdict(PlanOptions()), **defaults}
        types = PlanOptions.__annotations__
        options = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=given[name], annotation=types[name])
            for name in PlanOptions.__struct_fields__
            if name in keywords.__annotations__
        ]
        function.__signature__ = signature.replace(parameters=[*own, *options])
        return function

    return decorate


def options_of(function: str, keywords: type, given: Mapping[str, Any], **more: Any) -> PlanOptions:
    """Return the options that a call of `function` gave. Raise TypeError for one that it does not take.

    Args:
        function: Name of the function, for the error.
        keywords: The TypedDict that it unpacks.
        given: Its `**options`.
        more: Options that it takes as arguments of its own.
    """
    for name in given:
        if name not in keywords.__annotations__:
            hint = did_you_mean(name, list(keywords.__annotations__), f"arguments of remate.{function}")
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}\n  hint: {hint}")
    return PlanOptions(**{**more, **given})
