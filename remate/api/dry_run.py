"""A step of a schedule without its kernels: the engine's own code runs forward and backward on tensors that have types
and storages but no memory, for a device that may not be here.

Every result is held against the file by the checks of an engine's first run: type, layout, storage. The peak is that of
storages, each rounded as the device rounds; workspaces of kernels take no part.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import torch
from msgspec.structs import replace
from torch._guards import detect_fake_mode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from remate_runtime import apply
from remate_runtime.flat_step import Graph, expand
from remate_runtime.format import Schedule, output_leaves
from remate_runtime.link import link, simulate
from remate_runtime.operator_calls import TORCH_DTYPES
from remate_runtime.operators import DEVICES
from remate_runtime.staleness import tensors_of

from ..capture.layouts import real_layouts
from ..capture.recorded import RecordedCall


class DryRun(msgspec.Struct, frozen=True):
    """peak: bytes of storages. predicted: the schedule's peak but for workspaces, bytes. workspaces: bytes that the
    schedule's peak has beyond that. operations: of the file, with recomputations. gradients: delivered."""

    operations: int
    peak: int
    predicted: int
    workspaces: int
    gradients: int
    state: int  # bytes that the state of a generator takes on the device

    @property
    def states(self) -> int | None:
        """How many states of generators explain what the peak is less than predicted; None if they do not. They are
        copied beside the operators."""
        less = self.predicted - self.peak
        if not self.state or less < 0:
            return None if less else 0
        return None if less % self.state else less // self.state


def dry_run(call: RecordedCall, schedule: Schedule, namespaces: Sequence[str] = ()) -> DryRun:
    """Run forward and backward of a call whose tensors are all fake, once.

    Raises ExecutionError, BindError and StaleModelError as a real step does.
    """
    expanded = expand(schedule)
    bare = replace(expanded.graph, operations=tuple(replace(op, workspace=0) for op in expanded.graph.operations))
    predicted, peak = (simulate(link(graph, expanded.recomputes)).peak for graph in (bare, expanded.graph))
    held = [*call.model.parameters(), *call.model.buffers(), *tensors_of((call.args, call.kwargs))]
    storages, cast = _Storages(expanded.graph, held), schedule.model.autocast
    autocast = torch.autocast(schedule.model.device, TORCH_DTYPES[cast] if cast else None, enabled=bool(cast))
    mode: Any = detect_fake_mode(held)
    with _quiet(), mode, real_layouts(mode):
        applied = apply(call.model, schedule, verify=False, namespaces=tuple(namespaces))
        leaves = list(output_leaves(schedule.model.outputs))
        trained = [tensor for tensor in held if tensor.requires_grad]
        for counted in (contextlib.nullcontext(), storages):  # the first call may run the model's own forward, too
            with autocast, counted:
                made = list(tensors_of(applied(*call.args, **call.kwargs)))
            outputs = [output for output, leaf in zip(made, leaves, strict=True) if leaf.grad]
            seeds = [torch.empty_like(output) for output in outputs]
            storages.leave_out([seed for seed in seeds if seed.numel() > 1])  # `loss.backward()` makes that of a number
            with counted:
                gradients = torch.autograd.grad(outputs, trained, seeds, allow_unused=True)
    delivered = sum(gradient is not None for gradient in gradients)
    count = len(expanded.graph.operations) + len(expanded.recomputes)
    state = DEVICES["cpu"].generator_state if schedule.model.device == "cpu" else 0
    return DryRun(count, storages.peak, predicted, peak - predicted, delivered, state)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's warning that a tensor without memory has no address."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
        yield


class _Storages(TorchDispatchMode):
    """The bytes of the storages that operators have made and that still exist, and the most there were."""

    def __init__(self, graph: Graph, held: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.peak = 0
        self._device, self._unit = graph.device, DEVICES[graph.device].allocation
        self._outside: dict[int, torch.UntypedStorage] = {}
        self.leave_out(held)
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def leave_out(self, tensors: Sequence[torch.Tensor]) -> None:
        """Their storages are no memory of the step, though views of them are made."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._outside[storage._cdata] = storage  # kept, so that no other one gets its number

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(made):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == self._device:
                self._note(leaf.untyped_storage())
        self._live = {key: held for key, held in self._live.items() if not held[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._live.values()))
        return made

    def _note(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._outside and (key not in self._live or self._live[key][0].expired()):
            self._live[key] = StorageWeakRef(storage), -(-storage.nbytes() // self._unit) * self._unit
