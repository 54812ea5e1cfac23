"""Steps without some gradients: operations that only these need do not run. Does not require torch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from ..flat_step.graph import FlatPage, FlatRecompute, Graph
from ..flat_step.renumbering import renumbered
from .events import Linked, RecomputeRun, Run
from .linker import link

# Position of `output_mask` in the arguments of operators that compute only the results which it names, as in eager.
MASKS = {
    "aten._fused_rms_norm_backward": 5,
    "aten.batch_norm_backward": 9,
    "aten.convolution_backward": 10,
    "aten.grid_sampler_2d_backward": 6,
    "aten.grid_sampler_3d_backward": 6,
    "aten.native_batch_norm_backward": 9,
    "aten.native_group_norm_backward": 9,
    "aten.native_layer_norm_backward": 7,
}


def without_gradients(linked: Linked, sources: Collection[int]) -> Linked:
    """Return the step without some gradients, for parameters that were frozen after planning, or for a call whose
    inputs need none.

    Forward and the operations that other gradients need stay, without the results that these do not need if the
    operator can leave them out. Values are renumbered.

    Args:
        linked: The step.
        sources: Values of the graph whose gradients are left out.
    """
    graph = linked.graph
    gradients = tuple((source, value) for source, value in graph.gradients if source not in sources)
    kept, needed = _needed(graph, [value for _, value in gradients])
    graph, unmade = _masked(graph, kept, needed)
    numbers = {op: at for at, op in enumerate(kept)}
    live = {graph.root[value] for _, value in gradients}
    new = _numbers_of_values(graph, numbers, unmade)
    lost = {value for _, value in graph.gradients} - {value for _, value in gradients} | unmade
    left = [page for page in linked.pages if page.value not in lost]
    pages = [page for page in (_moved(page, kept, new) for page in left) if page is not None]
    return link(_only(graph, gradients, kept, numbers, new), _needed_recomputes(linked, numbers, live), pages)


def _masked(graph: Graph, kept: Sequence[int], needed: Collection[int]) -> tuple[Graph, set[int]]:
    """Return the graph whose kept operations of backward leave out what nobody needs, and the values left out."""
    operations, unmade = list(graph.operations), set[int]()
    for index in kept[graph.backward_start :]:
        op = operations[index]
        dead = {value for value in op.writes if value is not None and value not in needed}
        at = MASKS.get(op.op)
        if dead and at is not None and len(op.args) > at:
            writes = tuple(None if value in dead else value for value in op.writes)
            mask = tuple(value is not None for value in writes)
            operations[index] = replace(op, args=(*op.args[:at], mask, *op.args[at + 1 :]), writes=writes)
            unmade |= dead
    return (replace(graph, operations=tuple(operations)) if unmade else graph), unmade


def _needed(graph: Graph, gradients: Sequence[int]) -> tuple[list[int], set[int]]:
    """Return forward and the operations of backward that lead to the gradients or draw from the generator, and the
    values that backward reads or delivers then."""
    needed = set(gradients)
    kept: list[int] = []
    for index in range(len(graph.operations) - 1, graph.backward_start - 1, -1):
        op = graph.operations[index]
        if op.random or not needed.isdisjoint(op.writes):
            kept.append(index)
            needed.update(op.reads)
    return [*range(graph.backward_start), *reversed(kept)], needed


def _needed_recomputes(linked: Linked, numbers: Mapping[int, int], live: set[int]) -> list[FlatRecompute]:
    """Return the recomputations whose results are still read, by new numbers. live: storages that stay to the end."""
    graph, needed, before = (
        linked.graph,
        list[FlatRecompute](),
        len(numbers) - 1,
    )  # only views follow the last run
    for position in range(len(linked.events) - 1, -1, -1):
        event = linked.events[position]
        if position == linked.backward_start:
            live.update(graph.root[v] for v in (*graph.outputs, *(v for update in graph.updates for v in update)))
        if not isinstance(event, Run | RecomputeRun) or event.op not in numbers:
            continue
        op = graph.operations[event.op]
        produced = {graph.root[value] for value in op.writes if value is not None}
        if isinstance(event, Run):
            before = numbers[event.op]
        elif live.isdisjoint(produced):
            continue
        else:
            needed.append(FlatRecompute(numbers[event.op], before))
        live -= produced
        live.update(graph.root[value] for value in op.reads)
    return needed[::-1]


def _numbers_of_values(graph: Graph, numbers: Mapping[int, int], unmade: Collection[int]) -> dict[int, int]:
    """Return new numbers of the values that the caller or kept operations produce, by their old numbers."""
    remaining = ((at, value.producer) for at, value in enumerate(graph.values) if at not in unmade)
    values = [at for at, producer in remaining if producer < 0 or producer in numbers]
    return {old: at for at, old in enumerate(values)}


def _moved(page: FlatPage, kept: Sequence[int], new: Mapping[int, int]) -> FlatPage | None:
    """Return a page by new numbers, its points at the next kept operation; None if it has no effect any more."""

    def point(at: int | None) -> int | None:
        next_kept = None if at is None else bisect_left(kept, at)
        return None if next_kept == len(kept) else next_kept

    gone, back = point(page.gone), point(page.back)
    if page.gone is not None and (gone is None or gone == back):
        return None
    return FlatPage(new[page.value], page.to, point(page.out), gone, back)


def _only(
    graph: Graph,
    gradients: tuple[tuple[int, int], ...],
    kept: Sequence[int],
    numbers: Mapping[int, int],
    new: Mapping[int, int],
) -> Graph:
    """Return the graph with only the operations of `kept`, and the values that they or the caller produce."""
    values = list(new)

    values_left = [graph.values[at] for at in values]
    return replace(
        graph,
        values=tuple(v if v.producer < 0 else replace(v, producer=numbers[v.producer]) for v in values_left),
        operations=tuple(renumbered(graph.operations[index], new.__getitem__) for index in kept),
        outputs=tuple(new[value] for value in graph.outputs),
        gradients=tuple((new[source], new[value]) for source, value in gradients),
        updates=tuple((new[buffer], new[value]) for buffer, value in graph.updates),
        root=tuple(new[graph.root[at]] for at in values),
    )
