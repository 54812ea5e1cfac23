"""Runs the calls of a model: with its own forward until the first training call, then with a schedule."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Sequence
from operator import gt
from typing import Any

import msgspec
import torch
from msgspec.structs import replace
from torch import nn

from remate_runtime.applied import calls_aside
from remate_runtime.errors import BindError, RemateError, StaleModelError, SteppedAsideWarning
from remate_runtime.format import Schedule
from remate_runtime.support.callers import frames_to_caller
from remate_runtime.torch_private.pytree import tree_leaves, tree_map_only

from ..capture.recorded import RecordedCall
from ..errors import CaptureError
from .distributed_model import for_this_rank, is_distributed_model, refuse_sharded_parts
from .other_sizes import first_line, planned_for_sizes, wider_dims
from .own_forward import HooksOfAllModules, wanted_as_program
from .plan_file import applied, other_budget, refused_call, save, saves_nothing, schedules_at, summary
from .planning import CONSTANTS_CHANGE, planned_again
from .ranks import PlannedElsewhere, is_distributed, is_first_rank, kind_of, on_one_rank, on_the_first_rank
from .settings import AutoSettings
from .taken_over import calls_of, plain_view, take_over

_PLANS = 3  # most plans of one model in one process; a model that changes more often cannot be planned


class Outcome(msgspec.Struct, frozen=True):
    """The result of planning a model.

    Attributes:
        schedules: The schedules of its calls; none if it trains with its own forward.
        planned: Whether this process planned them, instead of reading a file or receiving them from another rank.
        seconds: Time to obtain them.
        refused: The reason if there are none; otherwise "".
        needless: Whether it trains with its own forward because the schedules need no less memory.
    """

    schedules: tuple[Schedule, ...] = ()
    planned: bool = False
    seconds: float = 0.0
    refused: str = ""
    needless: bool = False


class Scheduled(msgspec.Struct, frozen=True):
    """A model with its schedules. `planned` is as in `Outcome`; `is_news` says whether this process reports them."""

    model: Any
    schedules: tuple[Schedule, ...]
    planned: bool
    is_news: bool = True


class Auto:
    """Runs the calls of a model. `plain` is the view with the model's own forward."""

    def __init__(self, plain: nn.Module, settings: AutoSettings) -> None:
        self.plain, self.settings = plain, settings
        self.outcome = Outcome()
        self.known: Sequence[Schedule] = ()  # schedules of a similar model, tried before the file
        self._scheduled: Any = None  # the model with its schedules
        self._decided = False
        self._waited = False  # for a first call that is another step than later ones
        self._plans = 0  # by this rank
        self._turns = self._wider = 0  # plans of any rank that this one has asked for, and of other sizes among them
        self._stale = ""  # why the schedules of the file do not fit any more, while others are planned
        self._live: tuple[str, ...] = ()  # attributes and inputs that changed, to be read at every call
        self._was_aside = False  # the last training call fitted no schedule
        self._instead: tuple[str, str] | None = None  # why parts are planned, as in `planned_again`
        self._served: set[tuple[bool, ...]] = set()  # decided cases: which inputs require gradients
        self._needless_up_to = (0, 0)  # `_extent` for which no schedule needs less memory
        self._warned: set[str] = set()  # warnings of planning
        self._lock = threading.RLock()
        self._hooks = HooksOfAllModules(type(plain).__name__)

    def __call__(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> Any:
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        trains = self.plain.training and torch.is_grad_enabled()
        if wanted_as_program(given) or (trains and self._hooks.around_all_modules()):
            return self.plain.forward(*args, **kwargs)
        if trains:
            wanted = tuple(tensor.requires_grad for tensor in given)
            grown = self.outcome.needless and any(map(gt, self._extent(given), self._needless_up_to))
            if grown and self._plans < _PLANS:
                self._decided, self.outcome = False, Outcome()
            if not self._decided or (any(wanted) and wanted not in self._served):
                with self._lock:
                    self._decide_for(wanted, args, kwargs)
            if self._was_aside:
                with self._lock:
                    self._decide_if_changed(args, kwargs)
            self._decide_for_gradients(args, kwargs)
        if self._scheduled is None:
            return self.plain.forward(*args, **kwargs)
        aside = self.calls_aside
        try:
            return self._scheduled.forward(*args, **kwargs)
        except StaleModelError as error:
            with self._lock:
                self._decide_again(error, args, kwargs)
        finally:
            if trains:  # an evaluation in between says nothing about training calls
                self._was_aside = self.calls_aside > aside
        return (self.plain if self._scheduled is None else self._scheduled).forward(*args, **kwargs)

    def _extent(self, given: Sequence[object]) -> tuple[int, int]:
        """Return the numbers of elements of the inputs and of the trained parameters."""
        inputs = sum(leaf.numel() for leaf in given if isinstance(leaf, torch.Tensor))
        return inputs, sum(p.numel() for p in self.plain.parameters() if p.requires_grad)

    @property
    def runs_schedules(self) -> bool:
        """Whether schedules run the calls that they fit."""
        return self._scheduled is not None

    @property
    def calls_aside(self) -> int:
        """Number of calls, of the model or of its planned parts, that ran the own forward because no schedule fits."""
        return calls_aside(self._scheduled) + self._hooks.calls

    def copied_to(self, model: nn.Module) -> None:
        """Give a copy this model's schedules. If there are none yet, the copy plans separately."""
        twin = Auto(plain_view(model), self.settings)
        twin.outcome, twin._decided = self.outcome, self._decided
        if self._scheduled is not None:
            twin._scheduled = applied(twin.plain, self.outcome.schedules, self.settings)
        take_over(model, twin.plain, twin)

    def _decide_for(self, wanted: tuple[bool, ...], args: tuple[object, ...], kwargs: dict[str, Any]) -> None:
        """Plan the first training call, and plan again if a later call needs gradients of its inputs.

        An example is a discriminator in the generator's step. Schedules with such gradients also run calls without
        them.
        """
        again = self._scheduled is not None and self._plans < _PLANS and self.settings.on_stale == "replan"
        if again and refused_call(self._scheduled, args, kwargs):
            bare = tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs))
            if not refused_call(self._scheduled, *bare):
                name = type(self.plain).__name__
                self.settings.say(f"the {name} is planned again: a call needs gradients of its inputs")
                self._scheduled, self._decided = None, False
        self._decide(args, kwargs)
        self._served.add(wanted)

    def _decide(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> None:
        """Find schedules for a training call and similar calls, or run the model's own forward from now on."""
        call, began = RecordedCall(self.plain), time.monotonic()
        if self._decided or not call.take(args, kwargs):
            return
        try:
            refuse_sharded_parts(self.plain)
            if is_distributed_model(self.plain):
                scheduled = self._together(call)
            else:
                scheduled = self._among_ranks(call) if is_distributed() else self._own(call)
        except RemateError as error:
            if isinstance(error, CaptureError) and error.settles and not self._waited and not is_distributed():
                self._waited = True
                self.settings.say(f"the {type(self.plain).__name__} is planned at its next call: {error.message}")
                return
            self.settings.refuse(error)
            self._leave(str(error))
            return
        except Exception as error:  # training can continue without a schedule after a defect of remate
            if self.settings.on_refused == "error":
                raise
            self._leave(f"planning failed, which is a defect of remate: {type(error).__name__}: {error}")
            return
        needless, name = saves_nothing(scheduled.schedules, self.settings.budget), type(self.plain).__name__
        self._scheduled, self._decided = None if needless else scheduled.model, True
        self.outcome = Outcome(scheduled.schedules, scheduled.planned, time.monotonic() - began, needless=needless)
        if needless:
            self._needless_up_to = self._extent(tree_leaves((args, kwargs)))
            self.settings.say(f"the {name} trains with its own forward: no schedule needs less memory")
        elif scheduled.is_news:
            self.settings.say(summary(name, scheduled.schedules, self.settings.file))

    def _decide_if_changed(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> None:
        """Find new schedules if the model or the form of its inputs differs at a second call in a row.

        For example, layers are trained that were frozen. At a single call (the first of a sequence, without state), the
        model's own forward runs.
        """
        self._was_aside = False
        if (
            getattr(self._scheduled, "_remate_step", None) is None
            or self.settings.on_stale != "replan"
            or self._plans >= _PLANS
        ):
            return
        step = self._scheduled._remate_step
        if changed := step.changed() or step.refused_form(args, kwargs):
            self._decide_again(StaleModelError(changed), args, kwargs)
        elif new := [name for name in step.changed_numbers(args, kwargs) if name not in self._live]:
            what = f"numbers among its inputs change ({', '.join(new)})"
            self._decide_again(StaleModelError(what, numbers=new), args, kwargs)
        elif self.settings.plan.get("dims") == "auto" and not is_distributed_model(self.plain):
            self._decide_for_sizes(args, kwargs)

    def _decide_for_gradients(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> None:
        """Plan again if gradients of outputs arrived in a layout that was not planned: kernels round differently.

        Leave a model that needs another kind of backward, such as a double one, to its own forward.
        """
        step = getattr(self._scheduled, "_remate_step", None)
        if step is None:
            return
        if step.other_backward:
            self._leave(step.other_backward)
            return
        again = self.settings.on_stale == "replan" and self._plans < _PLANS
        if (wanted := step.gradient_layouts(warns=not again)) and again:
            with self._lock:
                self.settings = replace(self.settings, plan={**self.settings.plan, "differentiate": wanted})
                why = f"gradients of its outputs have a different memory layout ({', '.join(wanted)})"
                self._decide_again(StaleModelError(why), args, kwargs)

    def _decide_for_sizes(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> None:
        """Plan again for sizes that differ at a second call in a row: leave them open, or plan the parts of the model.

        If that fails, the schedule stays.
        """
        call, began, known = RecordedCall(self.plain), time.monotonic(), self.outcome.schedules
        if not refused_call(self._scheduled, args, kwargs) or not call.take(args, kwargs):
            return
        attempts = list(wider_dims(known, args, kwargs))
        applied_models: list[Any] = []

        def make() -> PlannedElsewhere:
            self._plans += 1
            planned, model = planned_for_sizes(call, attempts, self.settings, known, self._live, self._warned)
            applied_models.append(model)
            self._save(planned)
            return PlannedElsewhere.of(planned)

        try:
            key = kind_of(call, self.settings.requested, self._turns, "sizes", self._wider)
            shared = on_the_first_rank(key, make) if is_distributed() else make()
            if shared is None:  # another rank plans meanwhile
                return
            self._wider += 1
            schedules = shared.schedules_or_refusal("other sizes")
            model = applied_models[0] if applied_models else applied(self.plain, schedules, self.settings)
        except Exception as error:  # a refusal, or a defect of remate
            if not isinstance(error, RemateError):
                if self.settings.on_refused == "error":
                    raise
                reason = f"{type(error).__name__}: {error}"
                self.settings.say(f"planning other sizes failed, which is a defect of remate: {reason}")
            self._plans = _PLANS
            return
        self._scheduled, self.outcome = model, Outcome(schedules, bool(applied_models), time.monotonic() - began)
        if applied_models or shared.is_news:
            self.settings.say(f"calls differ; {summary(type(self.plain).__name__, schedules, self.settings.file)}")
        if not applied_models and self._plans < _PLANS:
            self._decide_for_sizes(args, kwargs)  # the rank that planned may have seen shorter lengths only

    def _decide_again(self, error: StaleModelError, args: tuple[object, ...], kwargs: dict[str, Any]) -> None:
        """Find new schedules, because the model has changed since `apply`."""
        if self.settings.on_stale == "refuse":
            raise error
        if self._plans >= _PLANS:
            self.settings.refuse(error)
            self._leave(f"it changes again and again: {error}")
            return
        self.settings.say(f"the {type(self.plain).__name__} is planned again: {first_line(error)}")
        self._scheduled, self._decided = None, False
        self._live = tuple(dict.fromkeys([*self._live, *error.numbers]))
        self._instead = CONSTANTS_CHANGE if error.constants else self._instead
        self._stale = first_line(error)
        self._decide(args, kwargs)
        self._stale = ""

    def _leave(self, why: str) -> None:
        """Run the model's own forward from now on."""
        self._scheduled, self._decided, self.outcome = None, True, Outcome(refused=why)
        message = f"the {type(self.plain).__name__} trains with its own forward, without a memory budget: {why}"
        warnings.warn(message, SteppedAsideWarning, stacklevel=frames_to_caller())

    def _own(self, call: RecordedCall) -> Scheduled:
        """Return the file's schedules if they fit this call. Otherwise plan, and write the file."""
        settings = self.settings
        known, why = self.known or schedules_at(settings.file), ""
        if known:
            why = self._stale or other_budget(known, settings.budget)
            if not why:
                model, why = self._tried(known, call)
                if model is not None:
                    return Scheduled(model, tuple(known), False)
            if settings.on_stale == "refuse":
                raise StaleModelError(
                    f"{settings.file} is not for this training: {why}\n  plan it again: on_stale='replan', or "
                    "remove the file"
                )
            if not self._stale:
                settings.say(f"{settings.file} is planned again: {first_line(why)}")
        self._plans += 1
        settled = self._waited or is_distributed()
        planned = planned_again(call, settings, known, self._live, self._warned, self._instead, settled)
        self._save(planned)
        return Scheduled(applied(self.plain, planned, settings), tuple(planned), True)

    def _tried(self, schedules: Sequence[Schedule], call: RecordedCall) -> tuple[Any, str]:
        """Return the model with these schedules, or None and the reason if they do not fit the model or the call."""
        try:
            model = applied(self.plain, schedules, self.settings, read=True)
        except BindError as error:
            return None, str(error)
        why = refused_call(model, call.args, call.kwargs)
        return (None if why else model), why

    def _among_ranks(self, call: RecordedCall) -> Scheduled:
        """Return the schedules that one rank obtains for all ranks with the same kind of model and call."""
        results: list[Scheduled] = []

        def make() -> PlannedElsewhere:
            results.append(self._own(call))
            return PlannedElsewhere.of(results[0].schedules)

        settings, what = self.settings, f"the {type(self.plain).__name__}"
        if self._turns:  # ranks plan again at different calls, so that none may wait
            shared = on_the_first_rank(self._next_turn(call), make)
        else:
            shared = on_one_rank(self._next_turn(call), what, make, settings.timeout, settings.say)
        if results:
            return results[0]
        if shared is None:
            return self._own(call)
        schedules = shared.schedules_or_refusal(what)
        try:
            model = applied(self.plain, schedules, settings)
        except BindError:  # this rank has another model, for example another pipeline stage
            return self._own(call)
        if is_first_rank() and not schedules_at(settings.file):
            self._save(schedules)
        return Scheduled(model, schedules, False, shared.is_news)

    def _together(self, call: RecordedCall) -> Scheduled:
        """Return the schedules of a model with DTensors. `apply` waits for the other ranks of the mesh, so one rank
        plans or reads the file, and then all ranks apply."""
        settings, what = self.settings, f"the {type(self.plain).__name__}"
        planned_here: list[bool] = []

        def make() -> PlannedElsewhere:
            known = self.known or schedules_at(settings.file)
            why = other_budget(known, settings.budget) if known else ""
            again = bool(why) or self._plans > 0
            if known and again and settings.on_stale == "refuse":
                raise StaleModelError(f"{settings.file} is not for this training: {why or 'the model differs'}")
            planned_here.append(again or not known)
            schedules = planned_again(call, settings, known, self._live, self._warned) if planned_here[0] else known
            return PlannedElsewhere.of(schedules)

        shared = on_one_rank(self._next_turn(call), what, make, settings.timeout, settings.say)
        planned = shared.schedules_or_refusal(what)
        if planned_here and planned_here[0]:
            self._save(planned)
        self._plans += 1
        try:
            schedules = [for_this_rank(schedule, call, settings) for schedule in planned]
            model = applied(self.plain, schedules, settings, read=True)
            why = refused_call(model, call.args, call.kwargs)
            if not why:
                return Scheduled(model, tuple(schedules), planned_here == [True])
        except BindError as error:
            why = str(error)
        if self._plans > 1 or settings.file is None:
            raise BindError(why)
        settings.say(f"{settings.file} is planned again: {first_line(why)}")
        return self._together(call)

    def _next_turn(self, call: RecordedCall) -> str:
        """Return the key of the next planning in the store. Ranks with the same model count alike."""
        self._turns += 1
        return kind_of(call, self.settings.requested, self._turns)

    def _save(self, schedules: Sequence[Schedule]) -> None:
        """Write the file. If that fails, only the next run is affected, which has to plan again."""
        if self.settings.file is None:
            return
        try:
            save(self.settings.file, schedules)
        except (OSError, RemateError) as error:
            warnings.warn(f"the schedule could not be saved: {error}", UserWarning, stacklevel=frames_to_caller())


def state_of(model: object) -> Auto | None:
    """Return the state that `remate.auto` attached to a model; None without one."""
    calls = calls_of(model)
    return calls if isinstance(calls, Auto) else None
