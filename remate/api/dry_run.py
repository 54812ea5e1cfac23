"""Runs a step of a schedule without kernels, on tensors without memory, for any device.

The engine runs forward and backward as usual, and checks type, layout and storage of every result. The peak counts
storages, rounded as the device rounds them. It does not count workspaces of kernels.
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
    """Result of a dry run.

    Attributes:
        operations: Number of operations that ran, with recomputations.
        peak: Peak of storages, in bytes.
        predicted: Predicted peak without workspaces, in bytes.
        workspaces: Difference of the predicted peaks with and without workspaces, in bytes.
        gradients: Number of delivered gradients.
        state: Size of the state of a random generator on the device, in bytes.
    """

    operations: int
    peak: int
    predicted: int
    workspaces: int
    gradients: int
    state: int

    @property
    def states(self) -> int | None:
        """Number of generator states that account for the difference to the prediction; None if they do not.

        Generator states are copied outside of operators, so a dry run does not see them.
        """
        difference = self.predicted - self.peak
        if not self.state or difference < 0:
            return None if difference else 0
        return None if difference % self.state else difference // self.state


def dry_run(call: RecordedCall, schedule: Schedule, namespaces: Sequence[str] = ()) -> DryRun:
    """Run forward and backward of a call on fake tensors, once.

    Args:
        call: The call. All its tensors are fake.
        schedule: The schedule to run.
        namespaces: Namespaces of operators that may run.

    Raises:
        ExecutionError: A result differs from the file.
        BindError: The call does not fit the schedule.
        StaleModelError: The model has changed.
    """
    expanded = expand(schedule)
    bare = replace(expanded.graph, operations=tuple(replace(op, workspace=0) for op in expanded.graph.operations))
    predicted, peak = (simulate(link(graph, expanded.recomputes)).peak for graph in (bare, expanded.graph))
    resident = [*call.model.parameters(), *call.model.buffers(), *tensors_of((call.args, call.kwargs))]
    storages, cast = _Storages(expanded.graph, resident), schedule.model.autocast
    autocast = torch.autocast(schedule.model.device, TORCH_DTYPES[cast] if cast else None, enabled=bool(cast))
    mode: Any = detect_fake_mode(resident)
    with _quiet(), mode, real_layouts(mode):
        applied = apply(call.model, schedule, verify=False, namespaces=tuple(namespaces))
        leaves = list(output_leaves(schedule.model.outputs))
        trained = [tensor for tensor in resident if tensor.requires_grad]
        for counted in (contextlib.nullcontext(), storages):  # the first call may also run the model's own forward
            with autocast, counted:
                results = list(tensors_of(applied(*call.args, **call.kwargs)))
            outputs = [output for output, leaf in zip(results, leaves, strict=True) if leaf.grad]
            seeds = [torch.empty_like(output) for output in outputs]
            storages.leave_out(
                [seed for seed in seeds if seed.numel() > 1]
            )  # `loss.backward()` allocates the seed of a scalar
            with counted:
                gradients = torch.autograd.grad(outputs, trained, seeds, allow_unused=True)
    delivered = sum(gradient is not None for gradient in gradients)
    count = len(expanded.graph.operations) + len(expanded.recomputes)
    state = DEVICES["cpu"].generator_state if schedule.model.device == "cpu" else 0
    return DryRun(count, storages.peak, predicted, peak - predicted, delivered, state)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress torch's warning about addresses of fake tensors."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
        yield


class _Storages(TorchDispatchMode):
    """Counts the bytes of live storages that operators allocated, and their peak."""

    def __init__(self, graph: Graph, held: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.peak = 0
        self._device, self._unit = graph.device, DEVICES[graph.device].allocation
        self._outside: dict[int, torch.UntypedStorage] = {}
        self.leave_out(held)
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def leave_out(self, tensors: Sequence[torch.Tensor]) -> None:
        """Do not count the storages of these tensors."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._outside[storage._cdata] = storage  # a reference, so that its address is not reused

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == self._device:
                self._note(leaf.untyped_storage())
        self._live = {key: entry for key, entry in self._live.items() if not entry[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._live.values()))
        return result

    def _note(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._outside and (key not in self._live or self._live[key][0].expired()):
            self._live[key] = StorageWeakRef(storage), -(-storage.nbytes() // self._unit) * self._unit
