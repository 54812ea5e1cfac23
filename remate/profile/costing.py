"""The cost of every operation of a graph: time and workspace, measured on the device or from a roofline model."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from remate_runtime.flat_step import Graph, Op
from remate_runtime.operators import COLLECTIVES, NAMESPACES, namespace

from ..errors import ProfileError
from .cost import Cost
from .devices import DEVICES, Device
from .roofline import estimate
from .signature import signature

if TYPE_CHECKING:
    import torch

Progress = Callable[[str], None]
MEASURED = "measured"  # the cost model that runs operations on the device
COMPILED = "compiled"  # the same, for a plan whose budget the engine of this name keeps

__all__ = ["COMPILED", "MEASURED", "Cost", "costed", "costs_digest", "device_named", "signature"]


def costed(
    graph: Graph,
    cost: str = MEASURED,
    profile: str | Path | None = None,
    progress: Progress | None = None,
    *,
    cached: bool = False,
    again: bool = False,
) -> Graph:
    """Return the graph with `ns` and `workspace` (bytes) of every operation; views cost nothing.

    Args:
        graph: The graph.
        cost: "measured" runs each distinct operation (operator, argument types with strides, constants) on the graph's
            device. The name of a device ("h200", "h100", "a100", "cpu") estimates without running anything.
        profile: File of measured costs. Costs in it are not measured again; missing ones are measured and added.
        progress: Receives the progress of measuring after two seconds.
        cached: Use the user's cache in the same way if there is no profile.
        again: Measure everything again and replace the contents.

    Raises:
        ProfileError: The device is unknown or absent, or a file cannot be used.
    """
    distinct = {signature(graph, op): op for op in graph.operations if not op.view}
    if cost == MEASURED:
        if profile is None and cached:
            costs = _cached(graph, distinct, again, progress)
        else:
            costs = _profiled(graph, distinct, Path(profile) if profile is not None else None, again, progress)
    else:
        if profile is not None:
            raise ProfileError(
                f"the profile {profile} holds measured costs, and cost={cost!r} needs none\n"
                '  hint: leave the profile out, or say cost="measured"'
            )
        device = device_named(cost)
        _warn_of_unknown(distinct.values())
        costs = {key: estimate(graph, op, device) for key, op in distinct.items()}
    return replace(graph, operations=tuple(_with_cost(graph, op, costs) for op in graph.operations))


def _warn_of_unknown(operations: Iterable[Op]) -> None:
    """Warn about operators of other libraries. Estimates count their arguments and results, and no workspace."""
    names = sorted({op.op for op in operations if namespace(op.op) not in NAMESPACES and op.op not in COLLECTIVES})
    if names:
        warnings.warn(
            f"estimated costs do not know what {', '.join(names[:4])} need beside their results, so that a step may "
            "take more than the budget: cost='measured' measures it on the device",
            UserWarning,
            stacklevel=2,
        )


def _with_cost(graph: Graph, op: Op, costs: Mapping[str, Cost]) -> Op:
    if op.view:
        return replace(op, ns=0, workspace=0)
    known = costs[signature(graph, op)]
    return replace(op, ns=max(1, known.ns), workspace=known.workspace)


def device_named(cost: str) -> Device:
    """Return the device of the roofline model that these costs are of. Raises ProfileError."""
    if cost == COMPILED:
        raise ProfileError(
            'only whole models are planned with cost="compiled", one budget at a time (remate plan, replan)\n'
            '  hint: cost="measured"'
        )
    if cost not in DEVICES:
        names = ", ".join(sorted(DEVICES))
        raise ProfileError(f'there are no costs of {cost!r}\n  hint: "measured", or a device of the model: {names}')
    return DEVICES[cost]


def _profiled(
    graph: Graph, distinct: Mapping[str, Op], path: Path | None, again: bool, progress: Progress | None
) -> Mapping[str, Cost]:
    from . import measured, store

    saved = store.read(path) if path is not None else None
    missing = {key: op for key, op in distinct.items() if again or saved is None or key not in saved.costs}
    if saved is not None and not missing:
        return saved.costs
    device = measured.device_of(graph)
    name = measured.device_name(device)
    if saved is not None and path is not None:
        store.check_same_machine(saved, name, path)
    known = saved.costs if saved is not None else {}
    reference = None if again else known.get(measured.REFERENCE)
    costs = {**known, **_measure(graph, missing, device, reference, progress)}
    if path is not None:
        store.write(path, store.profile_of(name, costs))
    return costs


def _cached(graph: Graph, distinct: Mapping[str, Op], again: bool, progress: Progress | None) -> Mapping[str, Cost]:
    from . import cache, measured

    device = measured.device_of(graph)
    name = measured.device_name(device)
    known = cache.read(name)
    missing = {key: op for key, op in distinct.items() if again or key not in known}
    if not missing:
        return known
    reference = None if again else known.get(measured.REFERENCE)
    costs = _measure(graph, missing, device, reference, progress)
    return {**known, **cache.add(name, costs, again)}


def _measure(
    graph: Graph, operations: Mapping[str, Op], device: torch.device, reference: Cost | None, progress: Progress | None
) -> dict[str, Cost]:
    """Measure operations, and the reference.

    Plans compare costs that were measured at different times, so all have to be those of a machine of one speed.

    Args:
        reference: Cost of the reference when the profile began. None: this measurement begins it.
    """
    from . import measured

    costs: dict[str, Cost] = {}
    measured.settle_allocator(device)
    with measured.generators_kept(device):
        before = measured.reference_time(device)
        for done, (key, op) in enumerate(operations.items()):
            if progress is not None:
                name = measured.device_name(device)
                progress(f"measuring how long operations take on {name}: {done} of {len(operations)}")
            costs[key] = measured.measure(graph, op, device)
        now = (before + measured.reference_time(device)) // 2
    if reference is None:
        return {**costs, measured.REFERENCE: Cost(ns=now, note="not an operation of a model: the speed of the machine")}
    return {key: measured.at_speed(cost, reference.ns / now) for key, cost in costs.items()}


def operator_costs(cost: str) -> str:
    """Return the costs that a plan for `cost` starts with, as `costed` takes them."""
    return MEASURED if cost == COMPILED else cost


def costs_digest(graph: Graph) -> str:
    """Return a hash of the costs of a graph's operations, by signature. Equal hashes mean equal costs."""
    costs = {signature(graph, op): [op.ns, op.workspace] for op in graph.operations if not op.view}
    return hashlib.sha256(msgspec.json.encode(costs, order="sorted")).hexdigest()[:16]
