"""Measures the workspace of operators in the memory layouts that Inductor chose. Each signature runs once on artificial
data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...devices.cpu_memory import peak_on_cpu
from ...devices.cuda_memory import peak_on_cuda
from ...flat_step.graph import Graph, Op, Ref, numbers_in
from ...format.json_values import is_tuple
from ...operator_calls.host_states import read_on_host
from ...operator_calls.overloads import empty, literal, overload, storage_identity
from ...torch_private.execution import DisableAutocast
from ...torch_private.operators import OpOverload
from ...torch_private.pytree import tree_leaves, tree_map_only
from .inductor import named as name_of
from .wrapper import Ran


class Workspaces:
    """Measured operators on a device. Their workspace is the memory beyond arguments and results.

    Without kernels, nothing is measured, and operators need no workspace beyond that of the file.
    """

    def __init__(self, device: torch.device, kernels: bool = True) -> None:
        self._device, self._kernels = device, kernels
        self._known: dict[str, Ran] = {}

    def of(self, operator: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> Ran:
        """Measure an operator, or return the known result. Must not be called inside a profiler.

        Args:
            operator: The operator. It may raise any error.
            args: Positional arguments; their tensors have no data.
            kwargs: Keyword arguments, likewise.
        """
        key = repr((str(operator), tree_map_only(torch.Tensor, _signature, (args, kwargs))))
        if key not in self._known:
            measure = _measured if self._kernels else _without_data
            self._known[key] = measure(operator, args, kwargs, self._device)
        return self._known[key]

    def interpreted(self, graph: Graph, op: Op) -> int:
        """Return the larger of an operation's workspace in the file and the measured one, in bytes. Files may have
        estimates, or be planned at a different size."""
        if not op.op.startswith("aten.") or numbers_in(op) or not self._kernels:
            return op.workspace

        def given(argument: object) -> Any:
            if isinstance(argument, Ref):
                return empty(graph.values[argument.value].type, torch.device("meta"))
            return [given(item) for item in argument] if is_tuple(argument) else literal(argument, self._device)

        try:
            with DisableAutocast(), torch.no_grad():
                args, kwargs = (
                    [given(item) for item in op.args],
                    {name: given(item) for name, item in op.kwargs.items()},
                )
                return max(op.workspace, self.of(overload(op.op), args, kwargs).workspace)
        except Exception:  # kernels may raise any error on artificial data
            return op.workspace


def _signature(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype


def _measured(operator: OpOverload, args: Sequence[object], kwargs: Mapping[str, object], device: torch.device) -> Ran:
    def fill(tensor: torch.Tensor) -> torch.Tensor:
        return made_up(tensor, device if tensor.is_meta else None)

    host = read_on_host(name_of(operator)) if device.type == "cuda" else ()
    on_host = {
        at: made_up(tensor, torch.device("cpu"))
        for at, tensor in enumerate(args)
        if at in host and isinstance(tensor, torch.Tensor)
    }
    filled, named = tree_map_only(torch.Tensor, fill, (tuple(args), dict(kwargs)))
    given = [on_host.get(at, argument) for at, argument in enumerate(filled)]
    run = lambda: results.append(operator(*given, **named))  # noqa: E731
    results: list[Any] = []
    generators: Any = torch.random  # torch declares its functions without types
    with generators.fork_rng([device] if device.type == "cuda" else []):  # random operators must not change them
        run()  # lets libraries allocate what they keep
        results.clear()
        peak = peak_on_cuda(run, device) if device.type == "cuda" else peak_on_cpu(run)
    taken = {storage_identity(tensor) for tensor in tree_leaves((given, named)) if _is(tensor)}
    storages = {storage_identity(t): t.untyped_storage().nbytes() for t in tree_leaves(results) if _is(t)}
    strides = tuple(tuple(leaf.stride()) for leaf in tree_leaves(results) if _is(leaf))
    return Ran(max(0, peak - sum(nbytes for key, nbytes in storages.items() if key not in taken)), strides)


def _without_data(operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], device: torch.device) -> Ran:
    """Return the strides of results on tensors without data."""
    results = operator(*args, **kwargs)
    return Ran(0, tuple(tuple(leaf.stride()) for leaf in tree_leaves(results) if _is(leaf)))


def _is(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)


def made_up(tensor: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    """Return artificial data: integers are 0, so that indices are in range; floats are 1.

    Args:
        tensor: A tensor of the wanted type.
        device: The device of the result; by default that of `tensor`.
    """
    storage = tensor.untyped_storage().nbytes() // max(1, tensor.element_size())
    filled = 1 if tensor.is_floating_point() else 0
    whole = torch.full((storage,), filled, dtype=tensor.dtype, device=device or tensor.device)
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
