"""The model's own forward, run so that it keeps nothing for backward and leaves nothing behind.

Gradients stay on, so that the same kernels run, and what operators would save for backward is discarded: the run takes
the memory of a forward without gradients. Three other places keep tensors, and are emptied as well: saved-tensor hooks
within forward (`save_on_cpu`, checkpoints), what a custom Function puts on its `ctx`, and autocast's cache of weights.
What comes to light meanwhile is noted: custom Functions, tensor hooks and saved-tensor hooks compute in backward what
no output shows.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import torch

from .checksum import Checksums
from .generators import Generators
from .outcome import Outcome, outcome_of, tensors_in
from .program import Program
from .snapshot import Snapshot

_TORCHS = ("torch", "remate_runtime")
_C: Any = torch._C
_GRAPH = _C._autograd


class NotRunError(Exception):
    """The model's own forward cannot run beside the schedule now. As text: why. error: what it raised."""

    def __init__(self, why: str, error: Exception | None = None) -> None:
        super().__init__(why)
        self.error = error


class Live(NamedTuple):
    """What the model's own forward gave; and whether its backward runs code that is not torch's."""

    outcome: Outcome
    own_backward: bool


class _Seen:
    """What a forward does that only backward would show."""

    def __init__(self) -> None:
        self.own = False

    def look(self, thing: Any) -> None:
        module = getattr(thing, "__module__", None) or type(thing).__module__
        self.own = self.own or module.partition(".")[0] not in _TORCHS


def run_live(program: Program, checksums: Checksums, keep: bool, may_save: Callable[[], bool]) -> Live:
    """Run the model's own forward; everything but the generators' end states is as before.

    Args:
        program: The call.
        checksums: Makes checksums.
        keep: Keep values of results, too.
        may_save: Whether there is room for a forward that saves what backward needs. Asked where it cannot do without:
            a gradient taken within forward.

    Raises:
        NotRunError: It raised an error, or there is no room.
    """
    seen = _Seen()
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
    program: Program, checksums: Checksums, keep: bool, seen: _Seen, around: contextlib.AbstractContextManager[None]
) -> Live:
    start = Generators.now()
    snapshot = Snapshot(program.model, (program.args, program.kwargs), program.updated().values())
    outcome = None
    try:
        with around, uncached():
            made = program.model.forward(*program.args, **program.kwargs)
            own = seen.own or _has_own_nodes(made, (program.args, program.kwargs))
        outcome = outcome_of(made, [*program.updated().values()], checksums, keep)
        del made  # and with it the graph of autograd
    finally:
        changes = snapshot.restore(checksums)
        start.restore()
    return Live(outcome._replace(changes=changes), own)


def _reason(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"it raises {type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")


@contextlib.contextmanager
def uncached() -> Iterator[None]:
    """Autocast as it is, without the cache of weights: a weight that was cast within would stay for the scheduled
    run."""
    with contextlib.ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                dtype = torch.get_autocast_dtype(kind)
                stack.enter_context(torch.autocast(kind, dtype, cache_enabled=False))
        yield


@contextlib.contextmanager
def discarding(seen: Any) -> Iterator[None]:
    """Nothing is kept for backward. seen: told of what backward would run (`look`)."""
    push = _GRAPH._push_saved_tensors_default_hooks
    here = threading.get_ident()

    def pushed(pack: Any, unpack: Any) -> None:
        if threading.get_ident() != here:
            return push(pack, unpack)
        seen.look(pack)
        return push(_discard, _refuse)

    with watching(seen), _nothing_on_ctx(), mock.patch.object(_GRAPH, "_push_saved_tensors_default_hooks", pushed):
        push(_discard, _refuse)
        try:
            yield
        finally:
            _GRAPH._pop_saved_tensors_default_hooks()


@contextlib.contextmanager
def watching(seen: Any) -> Iterator[None]:
    """Note hooks on tensors that are not torch's. seen: told of them (`look`)."""
    register, here = torch.Tensor.register_hook, threading.get_ident()

    def registered(tensor: torch.Tensor, hook: Any) -> Any:
        if threading.get_ident() == here:
            seen.look(hook)
        return register(tensor, hook)

    with mock.patch.object(torch.Tensor, "register_hook", registered):
        yield


@contextlib.contextmanager
def _nothing_on_ctx() -> Iterator[None]:
    """What custom Functions put on `ctx` as attributes goes at once; what they save with it is seen by hooks."""
    here = threading.get_ident()
    with contextlib.ExitStack() as stack:
        for kind in _own_functions(torch.autograd.Function):
            takes_ctx = ("setup_context",) if kind.setup_context is not _SETUP else ("forward",)
            for name in takes_ctx:
                if isinstance(held := vars(kind).get(name), staticmethod):
                    stack.callback(setattr, kind, name, held)
                    setattr(kind, name, staticmethod(_emptying(held.__func__, here)))
        yield


_SETUP = torch.autograd.Function.setup_context


def _own_functions(base: Any) -> Iterator[Any]:
    for kind in base.__subclasses__():
        if kind.__module__.partition(".")[0] not in _TORCHS:
            yield kind
        yield from _own_functions(kind)


def _emptying(method: Callable[..., Any], here: int) -> Callable[..., Any]:
    """A method whose first argument is a `ctx`."""

    @functools.wraps(method)
    def run(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        made = method(ctx, *args, **kwargs)
        if threading.get_ident() == here:
            vars(ctx).clear()
        return made

    return run


def callers_hooks() -> Any:
    """What packs saved tensors around the call, on behalf of the caller; None if nothing does."""
    hooks = _GRAPH._top_saved_tensors_default_hooks(False)
    return None if hooks is None else hooks[0]


@contextlib.contextmanager
def shielded() -> Iterator[None]:
    """Saved tensors are not seen by torch's own hooks around the call: a checkpoint would count them as those of its
    forward. Hooks of the caller's own see them, for they may change them."""
    pack = callers_hooks()
    if pack is None or not is_torchs(pack):
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(_as_it_is, _as_it_is):
        yield


def is_torchs(hook: Any) -> bool:
    """Whether a hook is torch's own."""
    module = getattr(hook, "__module__", None) or type(hook).__module__
    return module.partition(".")[0] == "torch"


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _discard(tensor: torch.Tensor) -> None:
    return None


def _refuse(packed: None) -> torch.Tensor:
    raise RuntimeError("forward reads tensors that were saved for backward")


def _has_own_nodes(made: Any, given: Any) -> bool:
    """Whether backward, down to what forward was given, goes through a Function that is not torch's."""
    seen = {tensor.grad_fn for tensor in tensors_in(given)}
    stack = [tensor.grad_fn for tensor in tensors_in(made)]
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
