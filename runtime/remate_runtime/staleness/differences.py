"""Differences between a digest and a live model, reported by module with both values."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from ..format.json_values import is_object
from ..format.module_paths import fold_paths
from .values import OPAQUE, accepts, same

_SETTINGS = 4  # assignments that a message shows
_CHECKPOINTING = "gradient_checkpointing"  # the flag of modules of transformers and diffusers
CHECKPOINTS = (
    "a schedule decides itself what runs again: switch checkpointing off with model.gradient_checkpointing_disable(), "
    "and gradient_checkpointing=False where a trainer switches it on"
)


class Differences:
    """Collects differences.

    Attributes:
        faults: What changes or may change the step.
        warnings: What cannot be decided without running the model.
    """

    def __init__(self, when: str = " when planned") -> None:
        self._when = when
        self._modules: dict[tuple[str, str], list[str]] = {}  # (class, what) -> paths
        self._code: list[str] = []
        self._alone: list[str] = []
        self._replaced = False
        self._settings: dict[str, None] = {}
        self._numbers: dict[str, None] = {}  # paths of attributes whose number changed
        self._checkpointing = False
        self.warnings: list[str] = []

    @property
    def faults(self) -> list[str]:
        by_module: list[str] = []
        for (kind, what), paths in self._modules.items():
            shown = ", ".join(map(repr, fold_paths(paths)))
            if paths == [""]:
                by_module.append(f"the model ({_short(kind)}): {what}")
            else:
                by_module.append(f"module{'s' * (len(paths) > 1)} {shown} ({_short(kind)}): {what}")
        return [*self._code, *by_module]

    @property
    def hint(self) -> str:
        if self._replaced:
            return "apply the schedule before a library wraps the model, or plan the model as it is now"
        return CHECKPOINTS if self._checkpointing else ""

    @property
    def settings(self) -> str:
        """Return Python assignments that restore the planned attributes; "" if none can be written."""
        return settings_text(self._settings)

    @property
    def live(self) -> str:
        """Return a hint which attributes could be declared live; "" if no number changed."""
        return live_hint(self._numbers)

    @property
    def numbers(self) -> tuple[str, ...]:
        """Return the paths of attributes whose number changed."""
        return tuple(self._numbers)

    def module(self, path: str, kind: str, what: str, wrapped: bool = False) -> None:
        self._modules.setdefault((kind, what), []).append(path)
        self._replaced |= wrapped and not path

    def attribute(self, path: str, kind: str, name: str, was: object, now: object) -> None:
        self.module(path, kind, f"attribute {name} was {shown(was)}{self._when}, is {shown(now)}")
        self._settings.update(dict.fromkeys(assignment(path, name, was)))
        self._checkpointing |= checkpoints(name, now)
        if is_number(was) and is_number(now):
            self._numbers[f"{path}.{name}".lstrip(".")] = None

    def packages(self, was: Mapping[str, str], now: Mapping[str, str]) -> None:
        for name, version in was.items():
            if now.get(name, version) != version:
                self.warnings.append(f"planned with {name} {version}, this is {name} {now[name]}")
        self._code += [
            f"package {name!r} takes part in forward now, and did not when planned" for name in now if name not in was
        ]

    def values(self, was: Mapping[str, object], now: Mapping[str, object]) -> None:
        """Record changed globals. Those that only one side reads are reported only if nothing else explains them."""
        for name in was:
            if name in now and not accepts(was[name], now[name]):
                self._code.append(f"global {name!r} was {shown(was[name])}{self._when}, is {shown(now[name])}")
        if not self._code and not self._modules:
            self._alone += [f"global {name!r} was {shown(was[name])}{self._when}" for name in was if name not in now]
            self._alone += [f"global {name!r} is {shown(now[name])}" for name in now if name not in was]

    def patched(self, was: Mapping[str, object], now: Mapping[str, object]) -> None:
        """Record functions of packages that were replaced since planning, or had been replaced then."""
        for name in {**was, **now}:
            if name not in now:
                self._code.append(f"function {name!r} was {shown(was[name])}{self._when}, is its package's own")
            elif name not in was:
                self._code.append(f"function {name!r} was its package's own{self._when}, is {shown(now[name])}")
            elif not same(was[name], now[name]):
                self._code.append(f"function {name!r} was {shown(was[name])}{self._when}, is {shown(now[name])}")

    def functions(self, was: Mapping[str, str | None], now: Mapping[str, str | None]) -> None:
        """Record changed functions. Those that only one side reaches count only if nothing else explains them."""
        for name, digest in was.items():
            if digest is not None and name in now and now[name] is None:
                self.warnings.append(f"the source of {name!r} cannot be read here, so it was not compared")
            elif digest is not None and now.get(name, digest) != digest:
                self._code.append(_changed(name))
        if not self._code and not self._modules:
            self._code += self._alone
            self._code += [
                f"forward reached {name!r} when planned, and does not now" for name in was if name not in now
            ]
            self._code += [f"forward reaches {name!r} now, and did not when planned" for name in now if name not in was]


def assignment(path: str, name: str, was: object) -> list[str]:
    """Return the statement that sets an attribute to a recorded value; empty if Python cannot write it."""
    if was is not None and not isinstance(was, bool | int | float | str):
        return []
    owner = "".join(f"[{part}]" if part.isdecimal() else f".{part}" for part in path.split(".") if part)
    return [f"model{owner}.{name} = {was!r}"]


def checkpoints(name: str, now: object) -> bool:
    """Return whether an attribute shows that a library's own checkpointing is on."""
    return name == _CHECKPOINTING and now is True


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def live_hint(paths: Collection[str]) -> str:
    """Return a hint how to declare attributes that change during training."""
    if not paths:
        return ""
    named = list(paths)[:_SETTINGS]
    more = ", …" if len(paths) > len(named) else ""
    live = ", ".join(map(repr, named))
    return f"a number that changes while training is read at every call with remate.plan(..., live=[{live}{more}])"


def settings_text(settings: Collection[str]) -> str:
    more = len(settings) - _SETTINGS
    return "; ".join(list(settings)[:_SETTINGS]) + (f"; and {more} more" if more > 0 else "")


def _changed(name: str) -> str:
    holder, _, last = name.rpartition(".")
    if last == "forward":
        file, _, kind = holder.rpartition(".")
        return f"class {kind} ({file}): its forward changed since the file was planned"
    return f"function {name!r}, which forward reaches, changed since the file was planned"


def _short(kind: str) -> str:
    return repr(kind.rpartition(".")[2])[1:-1]


def shown(value: object) -> str:
    """Return a recorded value as text on one line."""
    if value is OPAQUE:
        return "a tensor or module"
    if is_object(value):
        if "absent" in value:
            return "absent"
        if "either" in value:
            return " or ".join(map(shown, value["either"]))
        if "is" in value:
            of = f" of {shown(value['of'])}" if "of" in value else ""
            source = f" (source {value['source']})" if "source" in value else ""
            return f"{value['is'].removeprefix('.')!r}"[1:-1] + of + source
        if "object" in value:
            fields = f" with {shown(value['fields'])}" if "fields" in value else ""
            return f"an object of class {value['object'].removeprefix('.')!r}{fields}"
        for key, text in (("length", "a container of {}"), ("hash", "other data {}")):
            if key in value:
                return text.format(value[key])
    return json.dumps(value)
