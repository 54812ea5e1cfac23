"""Measures costs by running each operation individually on the graph's device."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch

from remate_runtime.devices.device_time import ns_taken
from remate_runtime.flat_step import Graph, Op
from remate_runtime.operator_calls import kernel, overload
from remate_runtime.operators import permission

from ..errors import ProfileError
from ..step_measurement.allocator import peak_bytes
from .communication import communication, is_collective
from .cost import Cost
from .devices import DEVICES
from .roofline import estimate
from .synthetic import arguments

# An operation runs until `ENOUGH` ns have passed, within these numbers of timings. A timing covers as many runs as fill
# `GRAIN` ns, so that the clock's own cost is negligible and a GPU's queue stays full.
ENOUGH = 15_000_000
FEWEST, MOST = 3, 31
GRAIN = {"cpu": 20_000, "cuda": 200_000}
SLOW = 300_000_000  # ns: an operation this slow is timed once

# The C library on Linux returns freed memory to the system beyond a limit, which grows with the largest block that was
# freed, until blocks of this many bytes. Later allocations then get new pages, which the system has to clear.
_LARGEST_KEPT = (32 << 20) - (1 << 16)

REFERENCE = "reference"  # the entry of a profile with the time of the work below
STEADY = 0.1  # a machine whose speed changed by less than this share has not changed: timings differ that much

_random: Any = torch.random  # torch declares its functions without types


def device_of(graph: Graph) -> torch.device:
    """Return the device of the graph's operations. Raises ProfileError if it is absent."""
    if graph.device == "cuda" and not torch.cuda.is_available():
        raise ProfileError(
            "the model was captured for CUDA, and there is no CUDA device to measure on\n"
            f"  hint: estimate with one of {', '.join(sorted(n for n, d in DEVICES.items() if d.kind == 'cuda'))}, or "
            "give a profile that was measured on such a device"
        )
    return torch.device(graph.device)


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu {torch.backends.cpu.get_cpu_capability()}, threads: {torch.get_num_threads()}"


@contextmanager
def generators_kept(device: torch.device) -> Generator[None]:
    """Restore generator states afterwards; inside, random numbers are the same every time."""
    devices = [torch.cuda.current_device()] if device.type == "cuda" else []
    with _random.fork_rng(devices=devices), torch.no_grad():
        _random.manual_seed(0)
        yield


def settle_allocator(device: torch.device) -> None:
    """Bring the allocator into the state that it has after any large model has run.

    Without this, costs depend on what the process has freed before. A convolution takes up to twice as long where its
    results are new pages each time. Small operations need fewer, and seem faster than their share of large ones.
    """
    if device.type == "cpu":
        torch.empty(_LARGEST_KEPT, dtype=torch.uint8)


def measure(graph: Graph, op: Op, device: torch.device) -> Cost:
    """Return the median time and workspace of an operation; the roofline's estimate, with a note, if it does not
    run. Collectives are estimated, because no other rank would take part."""
    if is_collective(op):
        return communication(graph, op, DEVICES[_nearest(device)])
    try:
        call = kernel(op.op, overload(op.op, namespaces=(permission(op.op),)))
        args, kwargs = arguments(graph, op, device)

        def run() -> Any:
            return call(*args, **kwargs)

        ns = _time(run, device)
        # requested bytes, as in peak_bytes; the simulator rounds them up if the allocator does
        outputs = sum(graph.values[graph.root[value]].type.nbytes for value in op.writes if value is not None)
        return Cost(ns=ns, workspace=max(0, peak_bytes(run, device) - outputs))
    except Exception as error:  # kernels may raise any error for synthetic data; an estimate suffices
        reason = (str(error).splitlines() or [type(error).__name__])[0][:160]
        return _estimated(graph, op, device, reason)


def reference_time(device: torch.device) -> int:
    """Return ns of a fixed work: a product, then a sum of larger tensors. It shows how fast the machine is now."""
    small, large = torch.ones(256, 256, device=device), torch.ones(1 << 20, device=device)
    return _time(lambda: (small @ small, large + large), device)


def at_speed(cost: Cost, factor: float) -> Cost:
    """Return a measured cost as it would be on a machine that takes `factor` times as long."""
    if cost.note or abs(factor - 1) < STEADY:  # estimates do not depend on the machine's present speed
        return cost
    return Cost(ns=max(1, round(cost.ns * factor)), workspace=cost.workspace)


def _estimated(graph: Graph, op: Op, device: torch.device, reason: str) -> Cost:
    estimated = estimate(graph, op, DEVICES[_nearest(device)])
    note = f"estimated, it did not run on made-up arguments: {reason}"
    return Cost(ns=estimated.ns, workspace=estimated.workspace, note=note)


def _nearest(device: torch.device) -> str:
    """Return the roofline device that is most similar to this one."""
    if device.type != "cuda":
        return "cpu"
    name = torch.cuda.get_device_name(device).lower()
    return next((known for known in DEVICES if known in name), "a100")


def _time(run: Callable[[], object], device: torch.device) -> int:
    """Return the median ns of a warm run."""
    run()
    once = ns_taken(run, device)
    if once >= SLOW:
        return once
    runs = min(100, max(1, GRAIN[device.type] // once))
    rounds = min(MOST, max(FEWEST, ENOUGH // (once * runs)))
    return max(1, round(statistics.median(ns_taken(run, device, runs) / runs for _ in range(rounds))))
