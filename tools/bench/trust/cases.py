"""Every case of the table: classes of changes, each with the model, what plans it and what changes it."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
import torch

from remate.errors import CaptureError
from remate_runtime import Schedule
from remate_runtime.format import decode, encode
from tests.runtime.stepping import schedule_of
from tests.staleness.changed_models import MODELS
from tests.staleness.changes import HARMFUL
from tests.staleness.test_changes import CALLS, CFG

from .kinds import FEW, KINDS
from .models import Sources, changed
from .models import source_of as grid_source
from .outcome import Build
from .places import PLACES
from .process import ARGUMENTS, COUNTERS, KEPT, PROCESS, Question
from .process import source_of as question_source

Args = Sequence[Any]
_METHODS = frozenset({"attribute of the class", "attribute of a base class"})  # where a function becomes a method
_ONE_STEP = frozenset({"cached property"})  # made at the first call, so that it is refused when planned
_X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


class Case(NamedTuple):
    """One change of one model.

    Attributes:
        group: The class of changes.
        name: What is changed.
        schedule: Plans the model once, through its text as in another process. None: it is refused.
        build: Builds the model.
        args: What it is called with.
    """

    group: str
    name: str
    schedule: Callable[[], Schedule | None]
    build: Build
    args: Args


def cases(sources: Sources) -> Iterator[Case]:
    """All of them, those of one group together."""
    for place in PLACES:
        yield from _in_place(
            sources, place, [k for k in FEW if place not in _METHODS or k != "default of a lambda"], place
        )
    every = [kind for kind in KINDS if kind not in _ONE_STEP]
    for place in ("global", "attribute"):
        yield from _in_place(sources, place, every, f"{place}, every kind of value")
    for model, changes in HARMFUL.items():
        yield from _by_hand(sources, model, changes)
    for group, questions in (
        ("question to the process", PROCESS),
        ("counter or iterator", COUNTERS),
        ("made at the first call", KEPT),
        ("which inputs are one tensor", ARGUMENTS),
    ):
        yield from _questions(sources, group, questions)


def _planned(load: Callable[[], Any], args: Args) -> Callable[[], Schedule | None]:
    @functools.cache
    def plan() -> Schedule | None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return decode(encode(schedule_of(load(), tuple(args))))
            except CaptureError:
                return None

    return plan


def _in_place(sources: Sources, place: str, kinds: Sequence[str], group: str) -> Iterator[Case]:
    text = grid_source(PLACES[place], kinds)
    schedule = _planned(lambda: sources.load(text).build(), (_X,))
    for kind in kinds:

        def build(kind: str = kind) -> Any:
            module = sources.load(text)
            model = module.build()
            return model, lambda: changed(PLACES[place], kinds, kind, module, model), _nothing

        yield Case(group, kind, schedule, build, (_X,))


def _by_hand(sources: Sources, model: str, changes: dict[str, Any]) -> Iterator[Case]:
    args = (CALLS[model],)

    def load() -> Any:
        settings = sources.load(CFG, "cfg_of_tests")
        sys.modules["cfg_of_tests"] = settings
        return sources.load(MODELS[model])

    schedule = _planned(lambda: load().build(), args)
    for name, change in changes.items():

        def build(change: Any = change) -> Any:
            module, patch = load(), pytest.MonkeyPatch()
            model = module.build()
            return model, lambda: change(model, module, patch), patch.undo

        yield Case(f"{model}, by hand", name, schedule, build, args)


def _questions(sources: Sources, group: str, questions: dict[str, Question]) -> Iterator[Case]:
    for name, question in questions.items():
        text, args = question_source(question), [_X, *([_X.clone()] if group.startswith("which") else [])]

        def build(text: str = text, question: Question = question, args: list[Any] = args) -> Any:
            module = sources.load(text)
            scope: dict[str, Any] = {**vars(module), "m": module, "n": module.build(), "args": args}
            done: list[int] = []

            def change() -> None:
                done.append(1)
                exec(question.change, scope)

            return scope["n"], change, lambda: exec(question.undo, scope) if done else None

        yield Case(group, name, _planned(functools.partial(_first, sources, text), args), build, args)


def _first(sources: Sources, text: str) -> Any:
    return sources.load(text).build()


def _nothing() -> None:
    pass
