"""Runs the model's own forward without keeping anything for backward, and without side effects.

Gradients stay enabled, so that the same kernels run, and tensors that operators save for backward are discarded. The
run needs the memory of a forward without gradients. Three other places keep tensors and are emptied as well:
saved-tensor hooks within forward (`save_on_cpu`, checkpoints), attributes that a custom Function sets on `ctx`, and
autocast's cache of weights. The run records custom Functions, tensor hooks and saved-tensor hooks, because no output
shows what they compute in backward.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

import torch

from ..torch_private.execution import SAVED_TENSOR_HOOKS, saved_tensor_hooks
from .checksum import Checksums
from .generators import Generators
from .outcome import ForwardOutcome, outcome_of, tensors_in
from .program import Program
from .replaced import replaced_here
from .snapshot import Snapshot

_TORCHS = ("torch", "remate_runtime")


class NotRunError(Exception):
    """Raised if the model's own forward cannot run beside the schedule. The text gives the reason.

    Attributes:
        error: The exception of the forward, if any.
    """

    def __init__(self, why: str, error: Exception | None = None) -> None:
        super().__init__(why)
        self.error = error


class LiveForward(NamedTuple):
    """The results of the model's own forward, and whether its backward runs code that is not torch's."""

    outcome: ForwardOutcome
    own_backward: bool


class _BackwardCode:
    """Records the code that only backward would run."""

    def __init__(self) -> None:
        self.own = False

    def look(self, value: object) -> None:
        module = getattr(value, "__module__", None) or type(value).__module__
        self.own = self.own or module.partition(".")[0] not in _TORCHS


def run_live(program: Program, checksums: Checksums, keep: bool, may_save: Callable[[], bool]) -> LiveForward:
    """Run the model's own forward. Everything except the generators is restored.

    Args:
        program: The call.
        checksums: Computes checksums.
        keep: Keep the values of results.
        may_save: Returns whether memory suffices for a forward that saves what backward needs. Called only if the
            forward itself computes a gradient.

    Raises:
        NotRunError: The forward raised an error, or memory does not suffice.
    """
    seen = _BackwardCode()
    try:
        return _run(program, checksums, keep, seen, discarding(seen))
    except Exception as error:
        first = _reason(error)
    if not may_save():
        raise NotRunError(f"{first}; with what backward needs it takes about {program.eager_bytes:,} bytes")
    try:
        with shielded():
            return _run(program, checksums, keep, seen, watching(seen))
    except Exception as error:
        raise NotRunError(_reason(error), error.with_traceback(None)) from None


def _run(
    program: Program,
    checksums: Checksums,
    keep: bool,
    seen: _BackwardCode,
    around: contextlib.AbstractContextManager[None],
) -> LiveForward:
    start = Generators.now()
    snapshot = Snapshot(program.model, (program.args, program.kwargs), program.updated().values())
    outcome = None
    try:
        with around, uncached():
            outputs = program.model.forward(*program.args, **program.kwargs)
            own_backward = seen.own or _has_own_nodes(outputs, (program.args, program.kwargs))
        outcome = outcome_of(outputs, [*program.updated().values()], program.plain(), checksums, keep)
        del outputs  # frees the autograd graph
    finally:
        changes = snapshot.restore(checksums)
        start.restore()
    return LiveForward(outcome._replace(changes=changes), own_backward)


def _reason(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"it raises {type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")


@contextlib.contextmanager
def uncached() -> Generator[None]:
    """Disable autocast's cache of weights: a weight that is cast here would stay for the scheduled run."""
    with contextlib.ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                dtype = torch.get_autocast_dtype(kind)
                stack.enter_context(torch.autocast(kind, dtype, cache_enabled=False))
        yield


@contextlib.contextmanager
def discarding(seen: Any) -> Generator[None]:
    """Discard everything that is saved for backward.

    Args:
        seen: Records what backward would run (`look`).
    """

    def look_and_discard(push: Callable[..., None]) -> Callable[..., None]:
        def pushed(pack: Any, unpack: Any) -> None:
            seen.look(pack)
            push(_discard, _refuse)

        return pushed

    with (
        watching(seen),
        _nothing_on_ctx(),
        replaced_here(SAVED_TENSOR_HOOKS, "_push_saved_tensors_default_hooks", look_and_discard),
    ):
        SAVED_TENSOR_HOOKS._push_saved_tensors_default_hooks(_discard, _refuse)
        try:
            yield
        finally:
            SAVED_TENSOR_HOOKS._pop_saved_tensors_default_hooks()


@contextlib.contextmanager
def watching(seen: Any) -> Generator[None]:
    """Record hooks on tensors that are not torch's.

    Args:
        seen: Records the hooks (`look`).
    """

    def look_and_register(register: Callable[..., Any]) -> Callable[..., Any]:
        def registered(tensor: torch.Tensor, hook: Any) -> Any:
            seen.look(hook)
            return register(tensor, hook)

        return registered

    with replaced_here(torch.Tensor, "register_hook", look_and_register):
        yield


@contextlib.contextmanager
def _nothing_on_ctx() -> Generator[None]:
    """Remove the attributes that custom Functions set on `ctx`. Hooks see what they save with it."""
    with contextlib.ExitStack() as stack:
        for kind in _own_functions(torch.autograd.Function):
            takes_ctx = ("setup_context",) if kind.setup_context is not _SETUP else ("forward",)
            for name in takes_ctx:
                if isinstance(vars(kind).get(name), staticmethod):
                    stack.enter_context(replaced_here(kind, name, _emptying))
        yield


_SETUP = torch.autograd.Function.setup_context


def _own_functions(base: type[torch.autograd.Function]) -> Iterator[type[torch.autograd.Function]]:
    for kind in base.__subclasses__():
        if kind.__module__.partition(".")[0] not in _TORCHS:
            yield kind
        yield from _own_functions(kind)


def _emptying(method: Callable[..., object]) -> Callable[..., Any]:
    """Wrap a method whose first argument is a `ctx`, and empty that `ctx` afterwards."""

    @functools.wraps(method)
    def run(ctx: object, *args: object, **kwargs: object) -> Any:
        result = method(ctx, *args, **kwargs)
        vars(ctx).clear()
        return result

    return run


def callers_hooks() -> Any:
    """Return the function that packs saved tensors around the call on behalf of the caller; None without one."""
    hooks = saved_tensor_hooks(False)
    return None if hooks is None else hooks[0]


@contextlib.contextmanager
def shielded() -> Generator[None]:
    """Hide saved tensors from torch's own hooks around the call: a checkpoint would count them as its own.

    Hooks of the caller still run, because they may change the tensors.
    """
    pack = callers_hooks()
    if pack is None or not is_torchs(pack):
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(_as_it_is, _as_it_is):
        yield


def is_torchs(hook: object) -> bool:
    """Return whether a hook is torch's own."""
    module = getattr(hook, "__module__", None) or type(hook).__module__
    return module.partition(".")[0] == "torch"


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _discard(tensor: torch.Tensor) -> None:
    return None


def _refuse(packed: None) -> torch.Tensor:
    raise RuntimeError("forward reads tensors that were saved for backward")


def _has_own_nodes(outputs: object, inputs: object) -> bool:
    """Return whether backward, down to the inputs, goes through a Function that is not torch's."""
    seen = {tensor.grad_fn for tensor in tensors_in(inputs)}
    stack = [tensor.grad_fn for tensor in tensors_in(outputs)]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        kind = getattr(type(node), "_forward_cls", None)
        if kind is not None and kind.__module__.partition(".")[0] not in _TORCHS:
            return True
        stack += [following for following, _ in node.next_functions]
    return False
