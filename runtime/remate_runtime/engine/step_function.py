"""A training step under autograd, with any engine.

To autograd the step is a chain of nodes, one per delivery of gradients. The inputs of each are the parameters and
inputs whose gradients it delivers. The first node is the step's forward and takes the gradients of the outputs. Each
other node follows because the previous one returns a gradient of its output, a tensor without elements (the *token*).
Autograd passes on what a node returns before it runs the next: it is added to `.grad`, hooks and
DistributedDataParallel's reducer see it, and an optimizer in backward may consume it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ..bind.distributed import NONE, Gradients, GradientSpec, local_tensor
from ..bind.outputs import Detached
from ..errors import ExecutionError
from ..link.contract import Gradient, Output, StepContract
from ..torch_private.execution import is_batched, uncounted_write
from .callers_modes import callers_modes, warn_of_left_modes
from .compiled_step import CompiledStep
from .held_tensors import Contents, Held, check_contents, check_unchanged, held
from .inner_outputs import InnerOutput, inner_outputs, refuse_watched, separate
from .partial_backward import Undelivered, leaves_gradients, requested_for
from .saved_hooks import warn_of_saved_hooks
from .sums import watch_sums
from .tangents import GradientLayouts, tangent_as_recorded

_TWICE = "backward ran a second time through the same forward; its values are gone"
_DOUBLE = "a schedule has no second derivatives (create_graph=True)"
_HINTS = {
    _TWICE: "run forward again before each backward; for several losses add them and call backward once",
    _DOUBLE: "use the original model for double backward; leave a model out of remate.auto that needs it",
}
_INSTEAD = "; or let its own forward run again there: apply(..., otherwise='original')"
OwnGradients = Callable[[str, Sequence[int], Sequence[torch.Tensor | None]], list[torch.Tensor | None]]


class StepFunction(NamedTuple):
    """A step that is ready to run on a device.

    Attributes:
        still_resident: Called in backward if an optimizer should have consumed the gradients of the first delivery, and
            has not.
    """

    compiled: CompiledStep
    contract: StepContract
    device: torch.device
    still_resident: Callable[[], None] | None = None


class _Frame:
    """What a forward leaves for its backward. It refers to no tensor with an autograd node, so there is no reference
    cycle."""

    __slots__ = (
        "contents",
        "first",
        "given",
        "hook",
        "inner",
        "layouts",
        "modes",
        "next",
        "own",
        "own_gradients",
        "residue",
        "sources",
        "specs",
        "step",
        "tangents",
        "undelivered",
        "watched",
    )

    def __init__(
        self,
        step: StepFunction,
        sources: Sequence[object],
        contents: Contents | None,
        distributed: Gradients,
        layouts: GradientLayouts,
        own: OwnGradients | None,
    ) -> None:
        self.step = step
        self.own = own
        self.own_gradients: list[list[torch.Tensor | None]] | None = None  # of the running pass, by segment
        self.layouts = layouts
        self.contents = contents
        self.sources: Sequence[Any] = _local(sources, distributed)  # until forward has run
        self.specs = {at: GradientSpec(sources[at], placements) for at, placements in distributed.items()}
        self.residue: Any = None
        self.watched: list[Held] = []
        self.tangents: list[torch.Tensor | None] = []
        self.given: set[int] = set()  # values of the tangents that backward received
        self.next = 0  # the next segment
        self.first: torch.Tensor | None = None  # receives the first gradient, if that is to be checked
        self.undelivered: Undelivered | None = None  # of passes that did not request all gradients
        self.hook: Any = None  # torch's handle, which has no types
        self.inner: list[InnerOutput] = []
        self.modes = callers_modes()

    def receive_from(self, node: Any) -> None:
        """Take the tangents from an autograd node, which would keep them until all of backward has run."""
        self.hook = node.register_prehook(self._receive)

    def _receive(self, gradients: tuple[torch.Tensor | None, ...]) -> tuple[None, ...] | None:
        hooks = None if self.hook is None else self.hook.hooks_dict_ref()
        if hooks is not None and len(hooks) > 1:
            return None  # hooks after this one must see them: torch's zero-bubble pipelines remember them in this way
        self.tangents = list(gradients)
        return (None,) * len(gradients)


def run_step(
    step: StepFunction,
    sources: Sequence[Any],
    detached: Detached | None = None,
    contents: Contents | None = None,
    distributed: Gradients = NONE,
    layouts: GradientLayouts | None = None,
    own: OwnGradients | None = None,
) -> Sequence[torch.Tensor]:
    """Run the step's forward and return the contract's outputs.

    If gradients are wanted, the tensors carry autograd history; otherwise nothing is kept.

    Args:
        step: The step.
        sources: Inputs, parameters, buffers and live attributes (floats), as in the contract.
        detached: Refuses gradients that the step was planned without.
        contents: Returns the content of a tensor, to detect writes that do not increase the version.
        distributed: Sources that are DTensors, of which the step has the local tensors: placements of their gradients.
        layouts: Receives memory layouts of gradients that were not planned.
        own: Returns gradients of the model's own forward, for backward passes that the step does not have. It takes the
            reason, numbers of sources, and the gradients of the outputs.
    """
    contract = step.contract
    if torch.is_grad_enabled():
        arguments = [[sources[contract.gradients[n].source] for n in numbers] for numbers in contract.deliveries]
        if any(argument.requires_grad for group in arguments for argument in group):
            warn_of_saved_hooks(bool(contract.updates))
            frame = _Frame(step, sources, contents, distributed, layouts or GradientLayouts(), own)
            first: Any = _Step  # torch declares `apply` without types
            later: Any = _Segment
            token: torch.Tensor | None = None
            for at in range(len(arguments) - 1, 0, -1):  # autograd first runs what was created last
                token = later.apply(frame, at, token, *arguments[at])
            if step.still_resident is not None:
                frame.first = next((t for t in arguments[0] if t.requires_grad and t.is_leaf), None)
            results = first.apply(frame, token, *arguments[0])
            node = next((t.grad_fn for t in results if t.grad_fn is not None), None)
            if node is not None:
                frame.receive_from(node)
            returned = _returned(step.contract, separate(step.contract, results), sources, detached)
            frame.inner = inner_outputs(step.contract, returned)
            return returned
    with torch.no_grad():
        local = _local(sources, distributed)
        results = step.compiled.inference(local)
        _update(contract, local, results.updates)
        returned = [_own(output, tensor) for output, tensor in zip(contract.outputs, results.outputs, strict=True)]
    return _returned(contract, returned, sources, detached)


def _local(sources: Sequence[object], distributed: Gradients) -> Sequence[Any]:
    """The sources as the step takes them."""
    if not distributed:
        return sources
    return [local_tensor(source) if at in distributed else source for at, source in enumerate(sources)]


def _returned(
    contract: StepContract, values: Sequence[torch.Tensor], sources: Sequence[Any], detached: Detached | None
) -> Sequence[torch.Tensor]:
    """Return what the caller receives: parameters and buffers themselves, other outputs as the step computed them."""
    if detached is not None:
        values = detached.guard(values, (sources[at] for at in contract.undelivered))
    if not contract.passed:
        return values
    returned = list(values)
    for passed in contract.passed:
        source = sources[passed.source]
        returned[passed.at] = source if passed.tracked or not source.requires_grad else source.detach()
    return returned


def _forward(frame: _Frame) -> list[torch.Tensor]:
    contract, sources = frame.step.contract, frame.sources
    results = frame.step.compiled.forward(sources)
    _update(contract, sources, results.updates)
    watched = [(sources[w.at], w.what, w.until) for w in contract.watched_sources]
    watched += [(results.outputs[w.at], w.what, None) for w in contract.watched_outputs]
    frame.watched = [held(tensor, what, until, frame.contents) for tensor, what, until in watched]
    frame.sources, frame.residue = (), results.residue
    # An alias per output gets the autograd history; the engine's tensor shares storage and version with it.
    return [_own(output, tensor).detach() for output, tensor in zip(contract.outputs, results.outputs, strict=True)]


def _own(output: Output, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that the caller may write into without affecting a later step."""
    return tensor.clone() if output.constant else tensor


def _update(contract: StepContract, sources: Sequence[Any], updates: list[torch.Tensor]) -> None:
    uncounted = tuple(sources[at] for at in contract.uncounted if not sources[at].is_inference())
    with uncounted_write(uncounted):  # the model's own forward may hold them for a backward of its own
        for (buffer, _), new in zip(contract.updates, updates, strict=True):
            sources[buffer].copy_(new)


def _begin(frame: _Frame) -> None:
    _check_mode(frame)
    warn_of_left_modes(frame.modes)
    frame.modes = []
    check_unchanged(frame.watched, frame.next)
    if frame.contents is not None:
        check_contents(frame.watched, frame.contents)
        frame.contents = None
    frame.watched = [known for known in frame.watched if known.until is not None]
    frame.given, tangents = _take_tangents(frame)
    refuse_watched(frame.inner, frame.given)
    frame.step.compiled.begin(frame.residue, tangents)


def _check_mode(frame: _Frame) -> None:
    """Raise ExecutionError for a kind of backward that a schedule does not support."""
    if any(tangent is not None and is_batched(tangent) for tangent in frame.tangents):
        raise ExecutionError(
            "a schedule has no gradients in batches (is_grads_batched=True, vectorize=True): a step runs backward once"
            "\n  use the original model there"
        )
    if torch.is_autocast_enabled(frame.step.device.type):
        raise ExecutionError(
            "backward is called under autocast. There, eager computes its gradients in lower precision, and a "
            "schedule does not\n  call it after the `with torch.autocast(...)` block, as torch advises: with "
            "torch.autocast(...): loss = model(x); then loss.backward()"
        )


def _by_own_forward(frame: _Frame) -> bool:
    """Whether the model's own forward has computed the gradients of this pass, because the step cannot.

    Raises:
        ExecutionError: It cannot, either.
    """
    frame.own_gradients = None
    again = frame.next and (frame.undelivered is None or not frame.undelivered.belongs_to(frame.tangents))
    why = _DOUBLE if torch.is_grad_enabled() else _TWICE if again else ""
    if not why:
        return False
    if frame.own is None:
        raise ExecutionError(f"{why}\n  {_HINTS[why]}{_INSTEAD}")
    contract = frame.step.contract
    numbers = [[contract.gradients[number].source for number in group] for group in contract.deliveries]
    computed = frame.own(why, [at for group in numbers for at in group], frame.tangents)
    frame.own_gradients = [[computed.pop(0) for _ in group] for group in numbers]
    frame.tangents = []
    return True


def _backward(ctx: Any, at: int, wanted: Sequence[bool]) -> list[torch.Tensor | None]:
    """Return the gradients of a segment: computed now, or kept since it ran."""
    frame = ctx.frame
    contract = frame.step.contract
    delivered = _requested(ctx, at, wanted)
    watch_sums(ctx, [contract.gradients[number] for number in contract.deliveries[at]], delivered)
    return delivered


def _requested(ctx: Any, at: int, wanted: Sequence[bool]) -> list[torch.Tensor | None]:
    frame = ctx.frame
    undelivered = frame.undelivered
    if undelivered is None:
        return _segment(frame, at, wanted)
    requested = requested_for(ctx, len(wanted))
    if frame.next > at:
        return undelivered.take(at, requested, _computed(frame, at, wanted))
    return undelivered.keep(at, _segment(frame, at, wanted), requested)


def _computed(frame: _Frame, at: int, wanted: Sequence[bool]) -> list[bool]:
    """Return which gradients of a segment exist."""
    contract = frame.step.contract
    promised = [contract.gradients[number] for number in contract.deliveries[at]]
    return [want and gradient.depends(frame.given) for gradient, want in zip(promised, wanted, strict=True)]


def _segment(frame: _Frame, at: int, wanted: Sequence[bool]) -> list[torch.Tensor | None]:
    """Run a segment of backward and return its gradients."""
    contract, residue = frame.step.contract, frame.residue
    if residue is None or frame.next != at:
        raise ExecutionError(f"{_TWICE}\n  {_HINTS[_TWICE]}")
    if at:
        check_unchanged(frame.watched, frame.next)
        first, frame.first = frame.first, None
        if first is not None and first.grad is not None and frame.step.still_resident is not None:
            frame.step.still_resident()
    frame.next = at + 1
    gradients = frame.step.compiled.segments[at](residue)
    if frame.next == len(contract.deliveries):
        frame.residue, frame.watched = None, []
    delivered: list[torch.Tensor | None] = []
    for number, computed in zip(contract.deliveries[at], _computed(frame, at, wanted), strict=True):
        gradient = gradients.pop(0)
        promised = contract.gradients[number]
        delivered.append(_delivered(frame, promised, gradient) if computed else None)
    return delivered


def _delivered(frame: _Frame, promised: Gradient, gradient: torch.Tensor) -> torch.Tensor:
    """A gradient as autograd takes it."""
    own = gradient.clone() if promised.shared else gradient
    spec = frame.specs.get(promised.source)
    return own if spec is None else spec.wrapped(own)


def _take_tangents(frame: _Frame) -> tuple[set[int], list[torch.Tensor]]:
    """Return the values of the received tangents, and the tangents in the order in which backward reads them."""
    arrived, frame.tangents = frame.tangents, []
    contract, device = frame.step.contract, frame.step.device
    given: set[int] = set()
    tangents: list[torch.Tensor] = []
    for tangent in contract.tangents:
        if arrived[tangent.output] is not None:
            given.add(tangent.value)
        gradient, name = arrived[tangent.output], contract.outputs[tangent.output].name
        tangents.append(tangent_as_recorded(gradient, tangent, device, name, frame.layouts))
        del gradient
        arrived[tangent.output] = None
    return given, tangents


class _Step(torch.autograd.Function):
    """Forward, and the first segment of backward."""

    @staticmethod
    def forward(ctx: Any, frame: _Frame, token: torch.Tensor | None, *_: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        outputs = _forward(frame)
        ctx.frame = frame
        flat = [t for t, output in zip(outputs, frame.step.contract.outputs, strict=True) if not output.grad]
        ctx.mark_non_differentiable(*flat)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        frame = ctx.frame
        if not frame.tangents or any(gradient is not None for gradient in gradients):  # not received before
            frame.tangents = list(gradients)
        if _by_own_forward(frame):
            return (None, _token(ctx, 1), *frame.own_gradients[0])
        if frame.next:
            _check_mode(frame)
            frame.tangents = []
        else:
            if leaves_gradients(ctx, len(frame.step.contract.deliveries)):
                frame.undelivered = Undelivered(frame.tangents)
            _begin(frame)
        return (None, _token(ctx, 1), *_backward(ctx, 0, ctx.needs_input_grad[2:]))


class _Segment(torch.autograd.Function):
    """A later segment of backward."""

    @staticmethod
    def forward(ctx: Any, frame: _Frame, at: int, token: torch.Tensor | None, *_: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.frame, ctx.at = frame, at
        return torch.empty(0, dtype=torch.float32, device=frame.step.device)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if ctx.frame.own_gradients is not None:
            return (None, None, _token(ctx, 2), *ctx.frame.own_gradients[ctx.at])
        return (None, None, _token(ctx, 2), *_backward(ctx, ctx.at, ctx.needs_input_grad[3:]))


def _token(ctx: Any, at: int) -> torch.Tensor | None:
    """Return the gradient of the token of the next segment; None if there is no next one."""
    return torch.empty(0, dtype=torch.float32, device=ctx.frame.step.device) if ctx.needs_input_grad[at] else None
