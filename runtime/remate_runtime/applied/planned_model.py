"""`apply(model, schedule)`: the model, with its training step executed by the schedule.

The result is another view of the same model. It is an instance of a subclass of the model's class that shares the
model's attributes, so parameters, buffers, submodules, hooks, train/eval mode, `state_dict`, `config` and methods are
the same. Only `forward` differs.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..bind.agreement import agree, communicated
from ..bind.modules import modules_by_path
from ..bind.sharding import refuse_sharded
from ..engine.compiled_step import Engine
from ..engine.experimental.cuda_graphs import in_cuda_graphs
from ..engine.registry import engine_of
from ..errors import EngineError, SteppedAsideWarning
from ..format import Schedule, decode, encode
from ..self_check import Checks, Verify, checks_of
from ..staleness.trust import Stale
from ..support.gc_pause import gc_paused
from .asides import Asides
from .dispatch import Dispatch, Otherwise
from .given import Given, How, Read, parts_within, read_all
from .part_view import AppliedParts, part_view, parts_of
from .programs import CompiledForward, refuse_compiled, refuse_transforms
from .scheduled_forward import ScheduledForward
from .verification import Call, verify_parts, verify_step


def apply(
    model: nn.Module,
    schedule: Given | Iterable[Given],
    *,
    namespaces: Collection[str] = (),
    stale: Stale = "error",
    verify: Verify = "first",
    engine: str = "eager",
    otherwise: Otherwise = "error",
    record_functions: bool = False,
    cuda_graphs: bool = False,
) -> Any:
    """Give a model the training step of a schedule.

    In training mode (or the planned mode) a call runs the schedule, and its gradients equal those of the model. In
    evaluation mode the model's own forward runs. A schedule does not call submodules. Hooks on the model itself run;
    hooks of submodules are part of the planned step, or are refused.

    Args:
        model: The live model.
        schedule: A schedule, the path of a file, a list of them, or a folder of files. Each call runs the first
            schedule that fits its mode, shapes, types and plain arguments. Schedules for parts go to these parts.
        namespaces: Permitted operators beyond those that any file may name: libraries that you trust, and single
            operators of torch whose kernels do not check indices. The file lists those that it needs.
        stale: What to do if code, attributes or hooks of the model differ from the planned ones: `"error"` or
            `"warn"`.
        verify: When to run the model's own forward beside the schedule, and to compare outputs, buffers, attributes and
            random numbers bit for bit. `"first"` checks the first call of each program (a file at one size, with or
            without gradients), of each form of inputs (classes, memory layouts), and with each other choice of frozen
            parameters. `1000` also checks every 1000th call, and `"never"` none. `(args, kwargs)` and `True` (random
            inputs) also check at once, including gradients, in the memory of an eager step.
        engine: The engine that executes the step: `"eager"`, `"arena"`, `"compiled"` or `"auto"`.
        otherwise: What to do with a call that no schedule fits. `"error"` refuses it. `"original"` runs the model's own
            forward, with a warning, also for a double or second backward, which no schedule has. `"pad"` pads a smaller
            call with the values that the file declares, and cuts the outputs back.
        record_functions: Whether each operation is a range in torch's profiler, named by its id.
        cuda_graphs: Whether to record CUDA kernels at the first call and replay them at later calls.

    Returns:
        A module that shares parameters, buffers, submodules, hooks and everything else with `model`.

    Raises:
        ScheduleError: The file is not a legal schedule.
        BindError: The schedule is for another model. Calls raise it for other shapes or another mode.
        StaleModelError: The model has changed since planning. Calls raise it for changes since `apply`, and if a check
            finds another result than the model's.
        EngineError: The engine does not exist, or it cannot execute this step.
        ExecutionError: Calls raise it for a second backward, and for tensors that changed before backward.

    Warns:
        SteppedAsideWarning: The model's own forward ran although gradients were requested.
        StaleModelWarning: The version of torch or of a package that defines modules differs; or a check found rounding
            differences, or could not compare something.

    Examples:
        >>> import remate, remate_runtime, torch
        >>> from torch import nn
        >>> model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU())))
        >>> x = torch.randn(1024, 64)
        >>> scheduled = remate_runtime.apply(model, remate.plan(model, (x,), budget="80%", cost="cpu"))
        >>> scheduled(x).sum().backward()
        >>> model[0].weight.grad.shape
        torch.Size([64, 64])
    """
    refuse_compiled(model)
    with gc_paused():
        original = original_of(model)
        checks, at_once = checks_of(verify)
        how: How = (tuple(namespaces), stale, engine, record_functions, checks, cuda_graphs)
        executes = engine_of(engine).for_a_model()
        reads = read_all(schedule)
        _refuse_engine(reads, engine, cuda_graphs)
        refuse_sharded(original, distributed=any(read.schedule.model.distributed for read in reads))
        if parts := parts_within(original, reads):
            return _applied_to_parts(original, parts, how, executes, otherwise, at_once)
        engine_of_model = _of_one(executes, how)
        steps = [read.bound(original, how, engine_of_model) for read in reads]
        _agree(steps)
        dispatch = Dispatch(original, steps, otherwise, checks=checks, stale=stale)
        if at_once is not False:
            call = None if at_once is True else at_once
            for step in steps:
                if call is None or len(steps) == 1 or step.accepts(*call):
                    verify_step(
                        dispatch, step, call, call is not None and otherwise == "pad" and not step.accepts(*call)
                    )
        return _planned(dispatch, how)


def _of_one(engine: Engine, how: How) -> Engine:
    """Return the engine for a model or for a part. With CUDA graphs, each gets its own memory pool."""
    return in_cuda_graphs(engine) if how[-1] else engine


def _applied_to_parts(
    model: nn.Module,
    parts: Mapping[str, list[Read]],
    how: How,
    executes: Engine,
    otherwise: Otherwise,
    verify: bool | Call,
) -> nn.Module:
    """Return the model with scheduled parts. A module at several paths is scheduled at all of them."""
    modules = modules_by_path(model)
    replacements: dict[int, nn.Module] = {}
    steps: dict[str, Dispatch] = {}
    verified: list[Schedule] = []
    every: list[tuple[Dispatch, ScheduledForward]] = []
    schedules = list({id(read): read.schedule for reads in parts.values() for read in reads}.values())
    asides = Asides(parts=len(parts) > 1)
    for path, reads in parts.items():
        part = modules[path]
        if id(part) not in replacements:
            engine_of_part = _of_one(executes, how)
            bound = [read.bound(part, how, engine_of_part, path) for read in reads]
            steps[path] = Dispatch(part, bound, otherwise, schedules, how[4], how[1], asides)
            replacements[id(part)] = _planned(steps[path], how)
            every += [(steps[path], read) for read in bound]
    _agree([read for _, read in every])
    for step, read in every if verify is True else ():
        if read.schedule not in verified:
            verified.append(read.schedule)
            verify_step(step, read, None)
    shown = {path: replacements[id(module)] for path, module in modules.items() if id(module) in replacements}
    view = part_view(AppliedParts(model, steps, _pickled, _apply_again, (schedules, how, otherwise)), shown)
    if not isinstance(verify, bool):
        verify_parts(model, view, next(iter(steps.values())), verify)
    return view


def _refuse_engine(given: Sequence[Read], engine: str, cuda_graphs: bool) -> None:
    """Raise EngineError for an engine that cannot run collectives."""
    models = [entry.schedule.model for entry in given]
    if (engine != "eager" or cuda_graphs) and any(model.ranks or model.sharded for model in models):
        what = "cuda_graphs=True" if cuda_graphs else f"engine {engine!r}"
        raise EngineError(
            f"the step communicates with other ranks, which {what} does not support\n  use engine='eager'"
        )


def _agree(steps: Sequence[ScheduledForward]) -> None:
    """Raise BindError unless all ranks run the same collectives."""
    groups = {mesh: name for step in steps for mesh, name in step.groups.items()}
    if groups:
        collectives = list(communicated(step.steps.linked for step in steps if step.groups))
        agree(groups, collectives, lambda: [encode(step.schedule) for step in steps])


def original_of(model: object) -> Any:
    """Return the model under `apply` or `remate.auto`; any other model unchanged."""
    plain = getattr(type(model), "_remate_plain", None)
    if plain is not None and vars(plain) is vars(model):
        return plain
    parts = parts_of(model)
    if parts is not None:
        return parts.model
    step = getattr(model, "_remate_step", None)
    return step.model if isinstance(step, Dispatch) else model


def calls_aside(model: object) -> int:
    """Return the number of calls of a planned model, or of its planned parts, that ran the own forward instead."""
    step = parts_of(model) or getattr(model, "_remate_step", None)
    return step.calls_aside if isinstance(step, Dispatch | AppliedParts) else 0


def _planned(step: Dispatch, how: How) -> nn.Module:
    """Create an instance of a subclass of the model's class that shares the model's attributes."""
    base = type(step.model)
    subclass = type(
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
            "forward": _PlannedForward(base.forward),
        },
    )
    space: Any = subclass
    # Set again, because `__init_subclass__` of a class may wrap the first one.
    space.forward = _PlannedForward(base.forward)
    module = object.__new__(subclass)
    object.__setattr__(module, "__dict__", step.model.__dict__)
    object.__setattr__(module, "_remate_step", step)
    object.__setattr__(module, "_remate_how", how)
    return module


class _PlannedForward:
    """`forward` of a planned module: a data descriptor, because the shared attributes may contain a `forward` too."""

    def __init__(self, original: Callable[..., object]) -> None:
        self._original = original

    def __get__(self, module: object, owner: type) -> Callable[..., Any]:
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
        # An instance that other code creates from this class (`type(model)(config)`) has no schedule.
        return self._original.__get__(module, owner) if override is None else override

    def __set__(self, module: object, value: Callable[..., object]) -> None:
        object.__setattr__(module, "_remate_forward", value)
        type(module).__call__ = _call_replaced


def _call_replaced(module: Any, *args: Any, **kwargs: Any) -> Any:
    """`__call__` of a planned module whose forward was replaced; warns if the schedule does not run."""
    step = module._remate_step
    before = step.calls
    outputs = type(step.model).__call__(module, *args, **kwargs)
    if step.calls == before and torch.is_grad_enabled():
        replaced = module._remate_forward
        step.stepped_aside(
            f"its forward was replaced by {getattr(replaced, '__qualname__', type(replaced).__qualname__)!r}, which "
            "does not call it; wrap the previous forward, or apply the schedule to the part that it trains"
        )
    return outputs


def _reduce(module: Any, protocol: int) -> tuple[Any, ...]:
    step = module._remate_step
    return _pickled(step.model, [bound.schedule for bound in step.steps], module._remate_how, step.otherwise)


def _deepcopy(module: Any, memo: dict[int, Any]) -> nn.Module:
    step = module._remate_step
    schedules = [bound.schedule for bound in step.steps]
    return _apply_again(copy.deepcopy(step.model, memo), schedules, module._remate_how, step.otherwise)


def _pickled(model: nn.Module, schedules: Iterable[Schedule], how: How, otherwise: Otherwise) -> tuple[Any, ...]:
    """Return the reduced form for pickle: the model, and the schedules as texts.

    So `torch.load(weights_only=True)` needs only the classes of the model. Permitted operators need a decision of the
    caller of `load`, who has to allow `_permitted`.
    """
    namespaces, stale, engine, record_functions, checks, cuda_graphs = how
    plain = stale, engine, record_functions, tuple(checks), cuda_graphs, otherwise
    stored: tuple[Any, ...] = (model, [encode(schedule).decode() for schedule in schedules], plain)
    return (_permitted, (*stored, sorted(namespaces))) if namespaces else (_restored, stored)


def _restored(model: nn.Module, texts: list[str], plain: tuple[object, ...]) -> nn.Module:
    """Apply schedules to an unpickled model. The texts are read like untrusted files."""
    return _permitted(model, texts, plain, ())


def _permitted(model: nn.Module, texts: list[str], plain: tuple[Any, ...], namespaces: Iterable[str]) -> nn.Module:
    stale, engine, record_functions, checks, cuda_graphs, otherwise = plain
    how = tuple(namespaces), stale, engine, record_functions, Checks(*checks), cuda_graphs
    return _apply_again(model, [decode(text) for text in texts], how, otherwise)


_serialization: Any = torch.serialization  # which declares functions without their parameters
_serialization.add_safe_globals([_restored])


def _apply_again(model: nn.Module, schedules: list[Schedule], how: How, otherwise: Otherwise) -> nn.Module:
    namespaces, stale, engine, record_functions, checks, cuda_graphs = how
    options: dict[str, Any] = {"stale": stale, "engine": engine, "otherwise": otherwise, "cuda_graphs": cuda_graphs}
    verify = "never" if not checks.first else checks.every or "first"
    return apply(model, schedules, namespaces=namespaces, record_functions=record_functions, verify=verify, **options)
