"""A model and a call of it on a device, without memory: parameters, buffers and inputs are fake tensors meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from remate_runtime.bind import is_distributed
from remate_runtime.torch_private.distributed import dtensor_of
from remate_runtime.torch_private.pytree import tree_leaves, tree_map_only

from ..errors import CaptureError
from .recorded import RecordedCall

# Raised where values of fake tensors are read.
NO_VALUES = (DataDependentOutputException, DynamicOutputShapeException)


@contextlib.contextmanager
def fake_call(call: RecordedCall, device: str) -> Generator[RecordedCall]:
    """Yield the call with model and arguments on `device`, as fake tensors. The model is the same object, and gets its
    own tensors back afterwards."""
    fakes = Fakes(device)
    with contextlib.ExitStack() as stack:
        for module in call.model.modules():
            for registered in (vars(module)["_parameters"], vars(module)["_buffers"]):
                stack.callback(registered.update, dict(registered))
                registered.update({key: fakes.of(tensor) for key, tensor in registered.items()})
            if isinstance(module, torch.nn.RNNBase):
                layer: Any = module
                stack.callback(setattr, layer, "_flat_weights", layer._flat_weights)
                layer._flat_weights = [getattr(layer, name, None) for name in layer._flat_weights_names]
        args, kwargs = tree_map_only(torch.Tensor, fakes.of, (call.args, call.kwargs))
        yield RecordedCall.of(call.model, args, kwargs, call.state)


@contextlib.contextmanager
def without_memory(call: RecordedCall) -> Generator[None]:
    """Let forward run on the tensors of a fake call, with fake results. Operators without a fake kernel, such as
    cuDNN's recurrent layers, are decomposed. Does nothing for a call of real tensors."""
    held = [*call.model.parameters(), *call.model.buffers()]
    mode: Any = detect_fake_mode([*held, *tree_leaves((call.args, call.kwargs))])
    if mode is None:
        yield
        return
    with mode, enable_python_dispatcher():
        yield


class Fakes:
    """Makes one fake tensor on a device for each tensor."""

    def __init__(self, device: str) -> None:
        self._mode, self._device = FakeTensorMode(allow_non_fake_inputs=True), device
        self._fakes: dict[int, tuple[Any, Any]] = {}  # with the tensor, so that no other gets its id

    def of(self, tensor: Any) -> Any:
        if tensor is None:
            return None
        if id(tensor) not in self._fakes:
            needs = tensor.requires_grad
            empty = self._distributed(tensor) if is_distributed(tensor) else self._empty(tensor)
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            fake = torch.nn.Parameter(empty, needs) if is_parameter else empty.requires_grad_(needs)
            self._fakes[id(tensor)] = tensor, fake
        return self._fakes[id(tensor)][1]

    def _empty(self, tensor: torch.Tensor) -> torch.Tensor:
        with self._mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self._device)

    def _distributed(self, tensor: Any) -> torch.Tensor:
        """Return a DTensor with a fake local tensor. Raises CaptureError if its mesh is for another device."""
        spec, device = tensor._spec, torch.device(self._device).type
        if spec.mesh.device_type != device:
            raise CaptureError(
                f"the model is distributed over a mesh of {spec.mesh.device_type}, and planned for {device}",
                hint=f"call parallelize_module with init_device_mesh({device!r}, ...); with "
                "init_process_group('fake', ...) that needs no device",
            )
        return dtensor_of(self._empty(tensor._local_tensor), spec.mesh, spec.placements, spec.tensor_meta)
