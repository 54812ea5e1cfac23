"""Capture: a model and a call of it become the flat graph of one training step.

    captured = capture(model, (x,), {"labels": y})

The model is traced with fake tensors, so nothing is computed. Parameters, buffers, flags and generators do not change.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from msgspec.structs import replace
from torch.fx import Node

from remate_runtime.bind import modules_by_path
from remate_runtime.flat_step import Graph
from remate_runtime.format import output_leaves
from remate_runtime.link import link, simulate
from remate_runtime.staleness import either, make_caches
from remate_runtime.support.gc_pause import gc_paused

from ..errors import CaptureError, LostOutputWarning
from . import surroundings, torch_api
from .branches import Branches
from .c_functions import size_functions
from .caches import caches_made, refuse_unlike
from .captured import Captured
from .carried import holds, refuse_carried
from .explain import explained
from .fake_module import fake_module, on_meta
from .followed_hooks import Hooks
from .gradient_layouts import lay_out_gradients
from .live_inputs import with_live_inputs
from .local_tensors import LocalTensors, OtherShapeError, local_tensors
from .lower import CARRIER, Lowering, Source
from .origins import complete, origins
from .other_ranks import of_ranks, refuse_draws_on_gpu, refuse_open_sizes
from .output_gradients import without_copy
from .outside import Changed, Outside, judge, refuse_used
from .override_attributes import overridden_attributes
from .own_peak import own_peak
from .reads import values_read
from .refused_layers import refuse_layers
from .refused_writes import refuse_differentiated, refuse_writes
from .repeats.second_call import next_call_is_same
from .repeats.tracing import traced
from .ring_attention import without_ring_attention
from .signature import Signature
from .simplify import simplify
from .sizes import SizeLog
from .static_parts import lost_output, static_parts
from .step import TracedModule, TracedOutput, with_values
from .torch_api import BUFFER, GRADIENT, INPUT, MUTATION, OUTPUT, PARAMETER, Port, Traced

__all__ = ["CaptureError", "Captured", "capture"]

_WRITTEN = "has been modified by an inplace operation"
NO_LIVE: Mapping[str, Any] = MappingProxyType({})


def capture(
    model: torch.nn.Module,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    differentiate: Sequence[str] | None = None,
    sizes: SizeLog | None = None,
    live: Mapping[str, object] = NO_LIVE,
    stepwise: bool = False,
    digested: bool = True,
) -> Captured:
    """Capture forward and backward of `model(*args, **kwargs)`.

    An ambient `torch.autocast` becomes part of the step.

    Args:
        differentiate: Names of the outputs for which backward receives a gradient (`"loss"`, `"0"`, `"output"` for a
            single tensor, `"*"` for all). The default is the scalar field `loss` of a dict or record, else the only
            scalar of several outputs that follows from them, else every output that needs a gradient. The others refuse
            a gradient.
        sizes: Receives the decisions that forward makes by sizes of tensors.
        live: Values of attributes, by path, and of inputs, by name, while forward is traced. The digest leaves these
            attributes out.
        stepwise: Capture recurrent layers as time steps, for steps whose sizes vary.
        digested: Record what forward reads in the digest of the result, and whether all ranks have the same step.
            Without it, the result is only for figures.

    Raises:
        CaptureError: The step cannot be traced or written to a file. The error names the module and the line.
    """
    torch_api.check_version()
    _check_module(model)
    refuse_layers(model)
    if torch.cuda.is_available():
        torch.cuda.is_bf16_supported()  # autocast calls it at its first entry only, and it may run an operation
    if on_meta(model):
        model, args, kwargs = fake_module(model, args, kwargs or {})
    call = model, tuple(args), dict(kwargs or {})
    options: dict[str, Any] = {"sizes": sizes, "live": live, "stepwise": stepwise, "digested": digested}
    with local_tensors(model) as distributed, without_ring_attention():
        if not distributed:
            return _capture_at_rest(call, differentiate, digested, {**options, "distributed": None})
        refuse_open_sizes(sizes)
        captured = _capture_at_rest(call, differentiate, digested, {**options, "distributed": distributed})
        refuse_draws_on_gpu(captured.graph)
        if not digested:
            return captured
        return of_ranks(captured, distributed, lambda: _other_rank(call, differentiate, options, distributed))


def _check_module(model: object) -> None:
    if not isinstance(model, torch.nn.Module):
        raise CaptureError(f"the model is {type(model).__name__}, not a torch.nn.Module", hint="wrap it in a Module")


def _other_rank(
    call: tuple[Any, ...], differentiate: Sequence[str] | None, options: dict[str, Any], distributed: LocalTensors
) -> Graph:
    """Capture the step of another rank, whose coordinates are in effect."""
    options = {**options, "digested": False, "distributed": distributed}
    return _capture_at_rest(call, differentiate, False, options).graph


def _capture_at_rest(
    call: tuple[torch.nn.Module, tuple[object, ...], dict[str, Any]],
    differentiate: Sequence[str] | None,
    digested: bool,
    options: dict[str, Any],
) -> Captured:
    """Capture the step of a model that has been called once."""
    model = call[0]
    Signature(*call, identity=False)  # refuse unsupported calls before anything runs
    outside = Outside(model)
    before = values_read(model) if digested else {}
    with caches_made(model, kept=digested) as caches:
        taken = None
        try:
            taken = _capture(*call, differentiate, outside, **options)
            again = (taken[1] or caches.may_be(taken[0])) and caches.make(*call[1:])
            outside.restore(constants=True)
        except CaptureError:
            outside.restore()
            again = caches.make(*call[1:])
            outside.restore(constants=True)
            if not again and not outside.changed() and not caches.remembered:
                raise
            again = True
        if again or taken is None:
            outside = Outside(model)
            taken = _capture(*call, differentiate, outside, **options)
        captured, changed = taken
        judge(changed, functools.partial(make_caches, model, *call[1:]))
        outside.restore()
    digest = captured.digest
    if again and digest is not None:  # containers that the first call fills
        values = {name: either(before.get(name, now), now) for name, now in digest.values.items()}
        digest = replace(digest, values=values)
    return replace(captured, digest=digest, model=replace(captured.model, caches=caches.paths))


def _capture(
    model: torch.nn.Module,
    args: tuple[object, ...],
    kwargs: dict[str, Any],
    differentiate: Sequence[str] | None,
    outside: Outside,
    *,
    sizes: SizeLog | None,
    live: Mapping[str, object],
    stepwise: bool,
    digested: bool,
    distributed: LocalTensors | None,
) -> tuple[Captured, list[Changed]]:
    """Capture the step of a model in its present state. Also returns what tracing changed outside, which is restored.
    Other arguments: see `capture`."""
    args, kwargs, attributes = with_live_inputs(model, args, kwargs, live)
    with gc_paused(), overridden_attributes(model, attributes), surroundings.attributes_as_buffers(model) as borrowed:
        signature = Signature(model, tuple(args), dict(kwargs or {}))
        call = (model, tuple(args), dict(kwargs or {}), differentiate, signature.autocast, borrowed, bool(live))
        traced_module = TracedModule(*call, sizes, stepwise, signature.same, distributed)
        step, branches, captured = _attempt(traced_module, signature)
        _warn(step, branches)
        if step.checkpoints:
            _warn_of_checkpoints(step, captured, call)
        _refuse_changes(step, live)
        settled = _settled(step, captured, (*call, None, stepwise, signature.same, distributed), signature)
    changed = outside.changed()
    outside.restore()
    replaced = [(f"attribute {path!r}", value) for path, value in step.reads.replaced]
    for label, value in [*((change.label, change.before()) for change in changed), *replaced]:
        if holds(value, step.constants):
            refuse_carried(label)
    left = [*step.lost, *(change.label for change in changed if change.tensors)]
    if left:
        refuse_unlike(model, make_caches(model, args, kwargs, only=()), left)
        outside.restore()
    digest = step.reads.digest(settled, frozenset(live)) if digested else captured.digest
    return replace(captured, digest=digest), changed


def _refuse_changes(step: TracedModule, live: Mapping[str, object]) -> None:
    for path in step.reads.changes().paths & live.keys():
        hint = "change it outside of forward, or make it a buffer and leave it out of live="
        raise CaptureError(f"forward itself changes the live attribute {path!r}", path.rpartition(".")[0], hint=hint)


def _attempt(step: TracedModule, signature: Signature) -> tuple[TracedModule, Branches, Captured]:
    branches = Branches()
    try:
        with (
            surroundings.checkpoints_run_once(step.note_checkpoint),
            Hooks(step.model).followed(),
            step.reads.watching_backward(),
            size_functions(step.model, step.sizes),
        ):
            joint = _traced(step, signature, branches)
    except Exception as error:
        _refuse_draws(step)
        raise explained(error, step.watch, step.model) from error
    _refuse_draws(step)
    return step, branches, _captured(signature, step, joint)


def _settled(first: TracedModule, captured: Captured, call: tuple[Any, ...], signature: Signature) -> bool:
    """Whether the attributes that forward changed stay the same in later calls. Traces the next call to find out, and
    raises CaptureError if its step differs. call: the arguments of TracedModule."""
    changes = first.reads.changes()
    if not changes or first.left is None:
        return True
    changes.refuse_carried(first.constants)
    with changes.applied(), first.left.again():
        again = TracedModule(*call)
        if not _asks_the_same(first, captured, again, signature):
            again, _, later = _attempt(TracedModule(*call), signature)
            if later.graph != captured.graph:
                changes.refuse()
    unsettled = again.reads.changes()
    if unsettled:
        refuse_used(unsettled.numbers(), functools.partial(make_caches, *call[:3]))
        refuse_unlike(call[0], make_caches(*call[:3], only=()))
        unsettled.warn()
    return not unsettled


def _asks_the_same(first: TracedModule, captured: Captured, again: TracedModule, signature: Signature) -> bool:
    """Whether recorded calls prove that the next call of forward is the same. A step that updates buffers must be
    traced, because an assignment to a buffer is not recorded."""
    if first.recorded is None or captured.graph.updates:
        return False
    with surroundings.checkpoints_run_once(again.note_checkpoint), Hooks(again.model).followed():
        return next_call_is_same(first.recorded, again, signature.tensors)


def _traced(step: TracedModule, signature: Signature, branches: Branches) -> Traced:
    """Trace the joint graph, on the branches that eager takes where tracing allows them."""
    while True:
        try:
            with warnings.catch_warnings():  # tracing finds anomalies, and would report what is caught below
                warnings.filterwarnings("ignore", message="Error detected in ")
                return traced(step, signature.tensors, branches)
        except OtherShapeError:
            step.watch.forget()
            step.carry()
        except torch_api.DATA_DEPENDENT as error:
            if not branches.learn(error):
                raise
        except RuntimeError as error:
            if step.keeps_old or not step.assigned or _WRITTEN not in str(error):
                raise
            step.watch.forget()
            step.keeps_old = True


def _refuse_draws(step: TracedModule) -> None:
    if step.drawn:
        hint = (
            "draw with torch inside forward (torch.rand_like, dropout), switch the draw off (layerdrop=0, "
            "mask_time_prob=0), or plan the parts of the model that draw nothing"
        )
        message = f"forward draws from {' and '.join(step.drawn)}: a schedule would repeat one draw"
        module = step.first_draw.module
        raise CaptureError(message, module, hint=hint, parts=static_parts(step.model, module))


def _warn_of_checkpoints(step: TracedModule, captured: Captured, call: tuple[Any, ...]) -> None:
    """Compare the baseline with the step as the model runs it itself. call: the arguments of TracedModule."""
    differentiated = [leaf.grad for leaf in output_leaves(captured.model.outputs)]
    own = own_peak(call[0], call[1], call[2], differentiated)
    surroundings.warn_of_checkpoints(step.checkpoints, own, simulate(link(captured.graph)).peak)


def _warn(step: TracedModule, branches: Branches) -> None:
    surroundings.warn_of_lost_tensors(step.lost)
    surroundings.warn_of_lost_values(step.plain.lost - step.reads.changes().paths)
    if branches.taken:
        warnings.warn(
            f"eager may take another branch than the captured one in {', '.join(branches.taken)}: eager reads a "
            "tensor's values there, and code that is being compiled does not; rounding and peak can differ",
            UserWarning,
            stacklevel=4,
        )
    for name, kind in step.opaque.items():
        _warn_of_output(step, name, kind)


def _warn_of_output(step: TracedModule, name: str, kind: str) -> None:
    """Warn of an output that becomes None. A cache is of no use in training, so nobody misses it."""
    refused = lost_output(step.model, name, kind)
    try:
        warnings.warn(
            f"{refused.message}: it becomes None in the scheduled model\n  hint: {refused.hint}",
            UserWarning if kind.endswith("Cache") else LostOutputWarning,
            stacklevel=5,
        )
    except LostOutputWarning:
        raise refused from None


def _captured(signature: Signature, step: TracedModule, traced: Traced) -> Captured:
    fx = traced.module.graph
    step.constants = [getattr(traced.module, str(node.target), None) for node in fx.find_nodes(op="get_attr")]
    known_origins = origins(fx)
    nodes = {n: traced.inputs[n.name] for n in fx.find_nodes(op="placeholder")}
    source = functools.partial(_source, signature, step)
    refuse_differentiated(nodes.values(), traced.outputs, known_origins, source, step.model)
    sources = {n: source(port) for n, port in nodes.items()}
    kept = [
        (port, without_copy(node) if port.kind == OUTPUT else node) for port, node in traced.outputs if node is not None
    ]
    fx.output_node().args = ([node for _, node in kept],)
    returned = [at for at, (port, _) in enumerate(kept) if port.kind == OUTPUT]
    within = {at: signature.parameter(_output(step, kept[at][0]).buffer) for at in returned}
    updated = {source(port.key).name: at for at, (port, _) in enumerate(kept) if port.kind == MUTATION}
    results = simplify(fx, [node for _, node in kept], returned, _lying_in_buffers(within, updated, sources))
    parameters = {port: node.meta["val"] for node, port in nodes.items() if port.kind == PARAMETER}
    of = {
        at: parameters[port.key]
        for at, (port, _) in enumerate(kept)
        if port.kind == GRADIENT and port.key in parameters
    }
    lay_out_gradients(fx, results, of)
    ends = [(port, node) for (port, _), node in zip(kept, results, strict=True)]
    places = complete(fx, known_origins)
    refuse_writes(ends, sources, places, source, step.model)
    named = {source(port.key).name for port, _ in ends if port.kind in (GRADIENT, MUTATION)}
    taken = signature.names | {f"grad.{output.name}" for output in step.outputs}
    meshes = {} if step.distributed is None else step.distributed.meshes()
    lowering = Lowering(traced.module, sources, places, signature.device, taken, {*results}, named, meshes)
    lowered = lowering.run()
    by_name = {value.name: at for at, value in enumerate(lowered.values)}

    def pairs(kind: str) -> tuple[tuple[int, int], ...]:
        pairs = ((by_name[source(p.key).name], lowered.at[n]) for p, n in ends if p.kind == kind)
        return tuple((owner, value) for owner, value in pairs if owner != value)

    outputs = {port.key: lowered.at[node] for port, node in ends if port.kind == OUTPUT}
    graph = Graph(
        lowered.values,
        lowered.operations,
        lowered.backward_start,
        tuple(dict.fromkeys(outputs.values())),
        tuple(dict.fromkeys(pairs(GRADIENT))),
        pairs(MUTATION),
        lowered.root,
        "cuda" if signature.device.type == "cuda" else "cpu",
    )
    tree = with_values(step.tree, [graph.values[outputs[at]].name for at in range(len(step.outputs))], step.outputs)
    tree = step.plain.added_to(tree)
    modules = modules_by_path(step.model, each_once=True).items()
    classes = {name: type(module).__name__ for name, module in modules}
    return Captured(graph, signature.model(graph, tree), lowered.modules, classes)


def _lying_in_buffers(
    within: Mapping[int, str], updated: Mapping[str, int], sources: Mapping[Node, Source]
) -> dict[int, tuple[int, Node]]:
    """For each output that shares memory with an updated buffer: the position of the buffer's new value, and the
    buffer."""
    buffers = {port.name: node for node, port in sources.items() if port.kind == "buffer"}
    return {at: (updated[name], buffers[name]) for at, name in within.items() if name in updated and name in buffers}


def _source(signature: Signature, step: TracedModule, port: Port) -> Source:
    if port.kind == PARAMETER and (name := step.carried(port.key)) is not None:
        return Source(signature.parameter(f"model.{name}"), CARRIER)
    if port.kind in (PARAMETER, BUFFER):
        return Source(signature.parameter(port.key), port.kind)
    if port.kind == INPUT:
        index: int = port.key
        return Source(signature.inputs[index], "input")
    return Source(f"grad.{_output(step, port).name}", "tangent")


def _output(step: TracedModule, port: Port) -> TracedOutput:
    index: int = port.key
    return step.outputs[index]
