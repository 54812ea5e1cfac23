"""Memory and time of one stage of a pipeline, for one microbatch and one plan."""

from __future__ import annotations

import msgspec

from remate_runtime.flat_step import Graph
from remate_runtime.format import Sharded
from remate_runtime.link import Linked, RecomputeRun, Run, groups_of, resident_by_call, simulate


class StageUse(msgspec.Struct, frozen=True):
    """What a microbatch takes on a stage. Bytes are beside parameters, buffers and inputs; times are in ns.

    Attributes:
        forward: Time of forward.
        backward: Time of backward.
        forward_peak: Most bytes during forward, and during the loss after it.
        kept: Bytes between forward and backward, outputs included.
        first_backward: Most bytes during backward if `.grad` is None before.
        later_backward: Most bytes during backward if gradients are added to an existing `.grad`.
        gradients: Bytes of `.grad` of all parameters.
        input_gradients: Bytes of the gradients of inputs, which torch keeps to the end of the step.
        inputs: Bytes of the inputs, which torch receives in a buffer for each microbatch.
        outputs: Bytes of the outputs.
        tangents: Bytes of the gradients of outputs, which torch receives in a buffer for each microbatch.
        loss: Bytes of the result of the loss, which torch keeps to the end of the step.
        whole: Bytes of the parameters that FSDP2 gathers, from the first forward to the last backward.
        gathering: Bytes of the buffers that they are gathered in, before the first forward.
        reducing: Most bytes that FSDP2 takes beside them to reduce the gradients, after the last backward.
        shards: Bytes of the reduced gradients.
    """

    forward: int
    backward: int
    forward_peak: int
    kept: int
    first_backward: int
    later_backward: int
    gradients: int
    input_gradients: int
    inputs: int
    outputs: int
    tangents: int
    loss: int = 0
    whole: int = 0
    gathering: int = 0
    reducing: int = 0
    shards: int = 0


def with_shards(use: StageUse, graph: Graph, sharded: Sharded | None) -> StageUse:
    """Return what a microbatch takes on a stage that FSDP2 shards.

    Parameters stay gathered for all microbatches, and gradients are reduced once.

    Args:
        use: The same for a stage with whole parameters.
        graph: The step of the stage.
        sharded: How the stage is sharded; None if it is not.
    """
    if sharded is None:
        return use
    groups = groups_of(graph, sharded).groups
    shards = sum(group.shards for group in groups)
    return msgspec.structs.replace(
        use,
        whole=sum(group.whole for group in groups),
        gathering=sum(group.buffer for group in groups),
        reducing=max((group.gradients for group in groups), default=0) + shards,
        shards=shards,
    )


def stage_use(linked: Linked, loss: StageUse | None = None) -> StageUse:
    """Return what a microbatch takes on a stage.

    If `graph.tangents_held` is set, the caller holds the gradients of outputs in buffers, and they do not count here.

    Args:
        linked: The step of the stage with its plan.
        loss: What the loss of a last stage takes; its inputs are the outputs of the stage.
    """
    graph, start = linked.graph, linked.backward_start
    tangents = [a for a in linked.allocations if a.value is not None and graph.values[a.value].kind == "tangent"]
    retained, accumulated = simulate(linked, "retained"), simulate(linked, "accumulated")
    kept = resident_by_call(linked).kept
    held = sum(a.nbytes for a in tangents) if graph.tangents_held else 0
    forward = sum(graph.operations[e.op].ns for e in linked.forward if isinstance(e, Run | RecomputeRun))
    use = StageUse(
        forward=forward,
        backward=retained.time - forward,
        forward_peak=max(retained.during[:start], default=0),
        kept=kept,
        first_backward=max(retained.during[start:], default=0) - held,
        later_backward=max(accumulated.during[start:], default=0) - held,
        gradients=_gradient_bytes(graph, "parameter"),
        input_gradients=_gradient_bytes(graph, "input"),
        inputs=sum(graph.nbytes(at) for at, value in enumerate(graph.values) if value.kind == "input"),
        outputs=sum(graph.nbytes(owner) for owner in {graph.root[at] for at in graph.outputs}),
        tangents=sum(a.nbytes for a in tangents),
    )
    if loss is None:
        return use
    return msgspec.structs.replace(
        use,
        forward=use.forward + loss.forward,
        backward=use.backward + loss.backward,
        forward_peak=max(use.forward_peak, kept + loss.forward_peak),
        kept=kept + loss.kept,
        first_backward=max(use.first_backward + loss.kept, kept + loss.first_backward) + loss.loss,
        later_backward=max(use.later_backward + loss.kept, kept + loss.first_backward) + loss.loss,
        loss=loss.loss,
    )


def _gradient_bytes(graph: Graph, kind: str) -> int:
    owners = {graph.root[gradient] for source, gradient in graph.gradients if graph.values[source].kind == kind}
    return sum(graph.nbytes(owner) for owner in owners)
