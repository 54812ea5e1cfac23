"""`apply(model, schedule)`: the model, with its training step executed by the schedule.

The result is another view of the same model: an instance of a subclass of the model's class that shares the model's
attributes, so parameters, buffers, submodules, hooks, train/eval mode, `state_dict`, `config` and methods are the same.
Only `forward` differs.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from ..bind.sharding import refuse_sharded
from ..engine.compiled_step import Engine
from ..engine.experimental.cuda_graphs import in_cuda_graphs
from ..engine.registry import engine_of
from ..errors import SteppedAsideWarning
from ..format.schedule import Schedule
from ..staleness.beside import Call, verify_beside
from ..staleness.trust import Stale
from ..support.gc_pause import gc_paused
from .dispatch import Dispatch, Otherwise
from .given import Given, How, Read, parts_within, read_all
from .part_view import AppliedParts, part_view, parts_of
from .programs import CompiledForward, refuse_compiled, refuse_transforms


def apply(
    model: nn.Module,
    schedule: Given | Iterable[Given],
    *,
    namespaces: Collection[str] = (),
    stale: Stale = "error",
    verify: bool | Call = False,
    engine: str = "eager",
    otherwise: Otherwise = "error",
    record_functions: bool = False,
    cuda_graphs: bool = False,
) -> Any:
    """Give `model` the schedule's training step. Returns an `nn.Module` that shares everything with `model`.

    schedule: a Schedule or the path of a schedule file; or a list of them, or a folder of files: then each call runs the first
    that is for its mode, shapes, dtypes and plain arguments. Those that are for parts of the model (`remate.plan(…, at=…)`)
    are given to these; the rest of it runs as ever. otherwise: what a call does that none is for: "error", or
    "original", the model's own forward, with a warning that says whether it is likely to fit the budget; without gradients
    that is also what a model gets that changed meanwhile (adapters switched off); "pad" pads a smaller call at the end of
    each axis, with the values that the file declares (`model.fill`), up to the smallest that a schedule is for, and cuts
    the outputs back. That is right where padding changes nothing of what the model computes for the rest, which the file's
    author says and `verify` with such a call looks at; random operators draw other numbers than without padding. namespaces: of operators that may run beyond those that any file
    may name, of libraries that you trust; also single operators of torch that follow indices from the file or the data
    without checking them. The file lists those that it needs. stale: what to do if the
    model's code, attributes or hooks are not those that were planned: "error" refuses, "warn" warns and goes on with the
    planned step. verify: run one step beside the model and compare gradients, outputs, buffers; True takes random inputs
    of the planned types, (args, kwargs) those. It needs the memory of an eager step, and sees what the digest cannot.
    engine: what executes the step; "eager" calls one operator after the other, "arena" the same with results at planned
    addresses in one block of memory, "compiled" goes through Inductor. record_functions: each operation is a range of
    torch's profiler (`torch.profiler.record_function`) by its id (in a part of the model behind the part's path), recomputations with " (recompute)" behind it; a compiled segment is one
    range. cuda_graphs: on CUDA, what the engine launches is recorded at the first call and replayed by the others; the step's memory
    is a pool that stays reserved, and one forward at a time can have it until its backward is over. Where a step cannot
    be replayed (`record_functions`, what runs on the CPU, operators of libraries) a warning says why.

    In train mode (or whatever mode the file was planned in) a call runs the schedule, and its gradients are those of
    the model; in eval mode a schedule planned for training steps aside and the model's own forward runs. Submodules are
    not called: hooks on the model itself run, those of its submodules are part of the planned step or refused.

    Raises ScheduleError (the file is no legal schedule), BindError (it is not of this model), StaleModelError, a
    BindError (the model changed since) and EngineError (there is no such engine, or cuda_graphs is requested on another device). Calls raise BindError (other shapes, other mode), StaleModelError (hooks,
    attributes or functions changed since `apply`) and ExecutionError (backward twice, tensors changed before backward).
    Warns with SteppedAsideWarning, once, where the model's own forward runs although gradients are requested, and with
    StaleModelWarning of another version of torch or of a package that defines modules.
    """
    refuse_compiled(model)
    with gc_paused():
        original = original_of(model)
        refuse_sharded(original)
        how: How = (tuple(namespaces), stale, engine, record_functions, cuda_graphs)
        executes = engine_of(engine).for_a_model()
        given = read_all(schedule)
        if parts := parts_within(original, given):
            return _applied_to_parts(original, parts, how, executes, otherwise, verify)
        own = _of_one(executes, how)
        steps = [one.bound(original, how, own) for one in given]
        planned = _planned(Dispatch(original, steps, otherwise), how)
        if verify is not False:
            call = None if verify is True else verify
            for step in steps:
                if call is None or len(steps) == 1 or step.takes(*call):
                    pads = call is not None and otherwise == "pad" and not step.takes(*call)
                    schedule = step.planned if call is None else step.at_call(call, pads)
                    verify_beside(original, planned, schedule, step.device, call, padded=pads)
        return planned


def _of_one(engine: Engine, how: How) -> Engine:
    """The engine for a model, or a part that is in use while others are: with graphs, each has a pool."""
    return in_cuda_graphs(engine) if how[-1] else engine


def _applied_to_parts(
    model: nn.Module,
    parts: Mapping[str, list[Read]],
    how: How,
    executes: Engine,
    otherwise: Otherwise,
    verify: bool | Call,
) -> nn.Module:
    """The model with its parts planned; a module that stands at several paths is planned at all of them."""
    modules = dict(model.named_modules(remove_duplicate=False))
    made: dict[int, nn.Module] = {}
    steps: dict[str, Dispatch] = {}
    verified: list[Schedule] = []
    schedules = list({id(one): one.schedule for given in parts.values() for one in given}.values())
    for path, given in parts.items():
        part = modules[path]
        if id(part) not in made:
            own = _of_one(executes, how)
            bound = [one.bound(part, how, own, path) for one in given]
            steps[path] = Dispatch(part, bound, otherwise, schedules)
            made[id(part)] = _planned(steps[path], how)
            for one in bound if verify is True else ():
                if one.schedule not in verified:
                    verified.append(one.schedule)
                    verify_beside(part, made[id(part)], one.planned, one.device, None)
    shown = {path: made[id(module)] for path, module in modules.items() if id(module) in made}
    view = part_view(AppliedParts(model, steps, _apply_again, (schedules, how, otherwise)), shown)
    if not isinstance(verify, bool):
        first = next(iter(steps.values())).steps[0]
        verify_beside(model, view, first.planned, first.device, verify, part=True)
    return view


def original_of(model: Any) -> Any:
    """The model that a schedule was applied to, or to parts of it; any other as it is."""
    parts = parts_of(model)
    if parts is not None:
        return parts.model
    step = getattr(model, "_remate_step", None)
    return step.model if isinstance(step, Dispatch) else model


def _planned(step: Dispatch, how: How) -> nn.Module:
    """An instance of a subclass of the model's class, on the very attributes of the model."""
    base = type(step.model)
    made = type(
        base.__name__,
        (base,),
        {
            "__slots__": ("_remate_compiled", "_remate_forward", "_remate_how", "_remate_step"),
            "__module__": base.__module__,
            "__qualname__": base.__qualname__,
            "__doc__": base.__doc__,
            "__reduce_ex__": _reduce,
            "__deepcopy__": _deepcopy,
            "_compiled_call_impl": CompiledForward(),
            "forward": _Forward(base.forward),
        },
    )
    space: Any = made
    space.forward = _Forward(base.forward)  # again: `__init_subclass__` of a class may wrap what was there
    module = object.__new__(made)
    object.__setattr__(module, "__dict__", step.model.__dict__)
    object.__setattr__(module, "_remate_step", step)
    object.__setattr__(module, "_remate_how", how)
    return module


class _Forward:
    """`forward` of a planned module: a data descriptor, because the shared attributes may hold a `forward` too."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original = original

    def __get__(self, module: Any, owner: type) -> Callable[..., Any]:
        if module is None:
            refuse_transforms()  # torch.fx traces the forward of the class
            return self._original
        override = getattr(module, "_remate_forward", None) or getattr(module, "_remate_step", None)
        if override is None and "_is_replica" in vars(module):
            warnings.warn(
                "the schedule steps aside: a replica of DataParallel runs the model's own forward, without a memory "
                "budget; use DistributedDataParallel",
                SteppedAsideWarning,
                stacklevel=3,
            )
        # An instance that somebody else made of this class (`type(model)(config)`) has no schedule.
        return self._original.__get__(module, owner) if override is None else override

    def __set__(self, module: Any, value: Callable[..., Any]) -> None:
        object.__setattr__(module, "_remate_forward", value)
        type(module).__call__ = _call_replaced


def _call_replaced(module: Any, *args: Any, **kwargs: Any) -> Any:
    """`__call__` of a planned module whose forward somebody replaced: says so if the schedule does not run."""
    step = module._remate_step
    before = step.calls
    found = type(step.model).__call__(module, *args, **kwargs)
    if step.calls == before and torch.is_grad_enabled():
        replaced = module._remate_forward
        step.stepped_aside(
            f"its forward was replaced by {getattr(replaced, '__qualname__', type(replaced).__qualname__)!r}, which does "
            "not call it; wrap the forward that was there, or apply the schedule to the part that is trained by it"
        )
    return found


def _reduce(module: Any, protocol: int) -> tuple[Any, ...]:
    step = module._remate_step
    schedules = [one.schedule for one in step.steps]
    return _apply_again, (step.model, schedules, module._remate_how, step.otherwise)


def _deepcopy(module: Any, memo: dict[int, Any]) -> nn.Module:
    step = module._remate_step
    schedules = [one.schedule for one in step.steps]
    return _apply_again(copy.deepcopy(step.model, memo), schedules, module._remate_how, step.otherwise)


def _apply_again(model: nn.Module, schedules: list[Schedule], how: How, otherwise: Otherwise) -> nn.Module:
    namespaces, stale, engine, record_functions, cuda_graphs = how
    options: dict[str, Any] = {"stale": stale, "engine": engine, "otherwise": otherwise, "cuda_graphs": cuda_graphs}
    return apply(model, schedules, namespaces=namespaces, record_functions=record_functions, **options)
