"""The instructions of paging events, and what a step can page where."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from ...errors import EngineError
from ...flat_step.graph import Graph
from ...flat_step.page_rules import is_paged_gradient, is_parameter
from ...link.events import Linked, PageBack, PageGone, PageOut, PageReady, Paging
from ..compiled_step import LinkedStep
from .host_pages import HOST_LANES, HostPager, LanesOf, PinnedMemory
from .mapped import reason_against
from .pages import PagedParameters, Pager
from .placed import Slots

_KEEP = "\n  delete the page statements (`remate edit S.json --keep ID`), or plan without them"


def check_pages(step: LinkedStep, device: torch.device) -> None:
    """Raise EngineError with the reason if the values of a step cannot be paged."""
    graph = step.linked.graph
    events = step.linked.events if step.linked.pages else ()
    paging = [event for event in events if isinstance(event, PageOut | PageBack)]
    if not paging:
        return
    memories = {event.to for event in paging}
    mapping = any(is_parameter(graph, event.value) or is_paged_gradient(graph, event.value) for event in paging)
    if "host" in memories and device.type == "cpu" and "cpu" not in HOST_LANES:
        reason = (
            "values are paged to 'host', and on a CPU they are in that memory already\n"
            '  page them to "disk", or delete the page statements'
        )
    elif device.type not in ("cpu", "meta", *HOST_LANES):
        reason = f"values are paged, which works on the CPU and on CUDA, and the model is on {device.type}{_KEEP}"
    elif mapping and ("host" in memories or device.type not in ("cpu", "meta")):
        reason = (
            "parameters or gradients are paged, which works on the CPU and to the disk only: a file is mapped in "
            f"their place{_KEEP}"
        )
    elif device.type not in ("cpu", "meta") and "disk" in memories:
        reason = (
            f"values are paged to the disk, which works on the CPU only, and the model is on {device.type}\n"
            '  page them to pinned memory: "to": "host" (`remate edit S.json --page ID --to host`), or plan with '
            "host_budget (--host-budget)"
        )
    elif step.sharded is not None:
        reason = (
            f"values are paged, and fully_shard has sharded parts of the model; they do not work together yet{_KEEP}"
        )
    elif "disk" in memories and not hasattr(os, "pwrite"):
        reason = f"values are paged to a scratch file, which needs a POSIX system{_KEEP}"
    elif mapping and (against := reason_against()):
        reason = f"{against}{_KEEP}"
    else:
        return
    raise EngineError(reason)


def pager_of(
    linked: Linked, slot: int, device: torch.device, lanes: LanesOf | None, pinned: PinnedMemory
) -> Pager | HostPager:
    """Return the pager of a step that `check_pages` has accepted. Others: as in `HostPager`."""
    graph, outs = linked.graph, [event for event in linked.events if isinstance(event, PageOut)]
    gradients = {e.trip: graph.values[e.value].name for e in outs if is_paged_gradient(graph, e.value)}
    sizes = {e.trip: (graph.values[e.value].name, graph.nbytes(e.value)) for e in outs if e.trip not in gradients}
    if any(event.to == "host" for event in outs):
        return HostPager(sizes, slot, device, lanes, pinned)
    return Pager(sizes, slot, gradients, _parameters(linked))


def _parameters(linked: Linked) -> PagedParameters:
    graph, first = linked.graph, dict[int, Paging]()
    for event in linked.events:
        if isinstance(event, PageBack | PageGone) and is_parameter(graph, event.value):
            first.setdefault(event.value, event)
    away = frozenset(value for value, event in first.items() if isinstance(event, PageBack))
    names = {at: v.name for at, v in enumerate(graph.values) if first and v.kind == "parameter" and not v.type.cpu}
    return PagedParameters(frozenset(first), away, names)


def moving(event: Paging, pages: int, graph: Graph) -> Callable[[Slots], None]:
    """Return the function of a paging event. pages: slot of the step's pages."""
    trip, value = event.trip, event.value

    def out(slots: Slots) -> None:
        slots[pages].out(trip, slots[value])

    def back(slots: Slots) -> None:
        slots[value] = slots[pages].back(trip)

    def wait(slots: Slots) -> None:
        slots[pages].wait(trip)

    def fetch(slots: Slots) -> None:
        slots[pages].fetch(trip, value)

    def leave(slots: Slots) -> None:
        slots[pages].leave(value)

    def hand_over(slots: Slots) -> None:
        slots[pages].hand_over(trip, slots[value])

    def handed(slots: Slots) -> None:
        slots[value] = slots[pages].handed(trip)

    if is_parameter(graph, value):
        runs: dict[type[Paging], Callable[[Slots], None]] = {PageBack: fetch, PageReady: wait, PageGone: leave}
    elif is_paged_gradient(graph, value):
        runs = {PageOut: hand_over, PageGone: handed}
    else:
        runs = {PageOut: out, PageGone: wait, PageBack: back, PageReady: wait}
    return runs[type(event)]
