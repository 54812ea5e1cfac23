"""Models that `parallelize_module` distributed, captured for one rank: on the local tensors of its DTensors.

During a trace, DTensor parameters and buffers are replaced by this rank's local tensors. Within forward each is wrapped
again, so that DTensor's own rules select local operators and collectives, which are traced.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from remate_runtime.bind import is_distributed, mesh_groups, mesh_names, modules_by_path, sharded_parts
from remate_runtime.format import Distributed, fold_paths

from ..errors import CaptureError

_KINDS = ("_parameters", "_buffers")


class LocalTensors:
    """The local tensors of a model.

    Attributes:
        specs: torch's description of each DTensor, by name.
        gradients: Placements of the gradient that backward gave each, once it was traced.
        other: Shapes of local gradients that are not those of the local tensors, by name: the partial sums of a
            tensor of which each rank has a part.
    """

    def __init__(self) -> None:
        self.specs: dict[str, Any] = {}
        self.gradients: dict[str, tuple[Any, ...]] = {}
        self.other: dict[str, torch.Size] = {}
        self._places: list[tuple[dict[str, Any], str, str]] = []  # registered tensors of a module, key, name

    def __bool__(self) -> bool:
        return bool(self.specs)

    def add(self, held: dict[str, Any], key: str, name: str, spec: object) -> None:
        """Add the DTensor at `key` of the registered tensors `held`."""
        self.specs[name] = spec
        self._places.append((held, key, name))

    @contextmanager
    def wrapped(self, carriers: nn.Module) -> Generator[None]:
        """Wrap the tracer's tensors in DTensors in the `with` block. carriers: see `carriers`."""
        carried = dict(zip(self.other, carriers.parameters(), strict=True))
        saved = [(held, key, held[key]) for held, key, _ in self._places]
        wrapped: dict[int, Any] = {}
        wrap: Any = _Wrap  # torch declares `apply` without types
        try:
            for held, key, name in self._places:
                local = held[key]
                if id(local) not in wrapped:
                    wrapped[id(local)] = wrap.apply(local, carried.get(name), self, name)
                held[key] = wrapped[id(local)]
            yield
        finally:
            for held, key, local in saved:
                held[key] = local

    def carriers(self) -> nn.Module:
        """Return parameters for gradients that have another shape than their local tensor. Autograd requires equal
        shapes."""
        carriers = nn.Module()
        locals_ = {name: held[key] for held, key, name in self._places}
        for at, (name, shape) in enumerate(self.other.items()):
            carriers.register_parameter(str(at), nn.Parameter(locals_[name].detach().new_empty(shape)))
        return carriers

    def meshes(self) -> dict[str, str]:
        """Return the mesh dimension of each process group, by names."""
        names: dict[str, str] = {}
        for spec in self.specs.values():
            for name, group in mesh_groups(spec.mesh).items():
                names[group] = name
        return names

    def ranks(self) -> dict[str, int]:
        """Return the number of ranks of each mesh dimension."""
        counts: dict[str, int] = {}
        for spec in self.specs.values():
            counts.update({name: spec.mesh.size(at) for at, name in enumerate(mesh_names(spec.mesh))})
        return counts

    def coordinate(self) -> dict[str, int]:
        """Return this rank's coordinate in each mesh dimension."""
        places: dict[str, int] = {}
        for spec in self.specs.values():
            places.update(zip(mesh_names(spec.mesh), spec.mesh.get_coordinate() or (), strict=True))
        return places

    def uneven(self) -> bool:
        """Whether ranks have parts of different sizes."""
        return any(
            placement.is_shard() and spec.shape[placement.dim] % spec.mesh.size(at)
            for spec in self.specs.values()
            for at, placement in enumerate(spec.placements)
        )

    def described(self) -> tuple[Distributed, ...]:
        """Describe the DTensors for a file. Equal ones share a description."""
        alike: dict[Distributed, list[str]] = {}
        for name, spec in self.specs.items():
            placements = tuple(map(str, spec.placements))
            gradient = tuple(map(str, self.gradients.get(name) or spec.placements))
            own = () if gradient == placements else gradient
            kind = Distributed(
                tensors=(), shape=tuple(spec.shape), mesh=mesh_names(spec.mesh), placements=placements, gradient=own
            )
            alike.setdefault(kind, []).append(name)
        return tuple(
            Distributed(
                tensors=fold_paths(names),
                shape=kind.shape,
                mesh=kind.mesh,
                placements=kind.placements,
                gradient=kind.gradient,
            )
            for kind, names in alike.items()
        )


@contextmanager
def local_tensors(model: nn.Module) -> Generator[LocalTensors]:
    """Replace the DTensors of a model by this rank's local tensors in the `with` block. FSDP2's DTensors stay, because
    FSDP2 gathers them. Raises CaptureError for a DTensor that no file can describe."""
    distributed, plain = LocalTensors(), dict[int, tuple[str, torch.Tensor]]()
    saved: list[tuple[dict[str, Any], str, Any]] = []
    places = [] if sharded_parts(tuple(model.modules())) else _distributed(model)
    try:
        for held, key, name in places:
            tensor = held[key]
            if id(tensor) not in plain:
                _check(name, tensor)
                plain[id(tensor)] = name, _plain(tensor)
            saved.append((held, key, tensor))
            first, held[key] = plain[id(tensor)]
            distributed.add(held, key, first, tensor._spec)
        _check_meshes(distributed)
        yield distributed
    finally:
        for held, key, tensor in saved:
            held[key] = tensor


def _distributed(model: nn.Module) -> list[tuple[dict[str, Any], str, str]]:
    """Return the place of each DTensor: registered tensors of a module, key, name."""
    places: list[tuple[dict[str, Any], str, str]] = []
    for path, module in modules_by_path(model, each_once=True).items():
        for kind in _KINDS:
            held: dict[str, Any] = vars(module).get(kind) or {}
            keys = [key for key, tensor in held.items() if is_distributed(tensor)]
            places += [(held, key, f"{path}.{key}" if path else key) for key in keys]
    return places


def refuse_distributed(name: str, tensor: torch.Tensor) -> None:
    """Raise CaptureError for an output that is a DTensor."""
    if is_distributed(tensor):
        hint = (
            "return its local tensor: use_local_output=True of the last layer, or .to_local(); of distributed classes "
            "compute the loss within the model under loss_parallel(), and return loss.to_local()"
        )
        raise CaptureError(f"the output {name!r} is a DTensor, which a schedule does not return", hint=hint)


def _check(name: str, tensor: Any) -> None:
    if tensor.device_mesh.get_coordinate() is None:
        raise CaptureError(f"this rank has no part of {name!r}", hint="plan on a rank of its device mesh")
    for placement in tensor.placements:
        if type(placement).__name__ not in ("Replicate", "Shard"):
            hint = "distribute parameters by Shard or Replicate"
            raise CaptureError(f"{name!r} is distributed as {placement}, which a file cannot express", hint=hint)


def _check_meshes(distributed: LocalTensors) -> None:
    """Raise CaptureError if two process groups have the same name."""
    groups: dict[str, str] = {}
    for spec in distributed.specs.values():
        for name, group in mesh_groups(spec.mesh).items():
            if groups.setdefault(name, group) != group:
                hint = "give each its name: init_device_mesh(..., mesh_dim_names=(...))"
                raise CaptureError(f"two dimensions of device meshes are called {name!r}", hint=hint)


def _plain(tensor: Any) -> torch.Tensor:
    local = tensor._local_tensor.detach()
    return nn.Parameter(local, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else local


class OtherShapeError(Exception):
    """Raised if a gradient has another shape than its local tensor. `other` now has it, and the step is traced
    again."""


class _Wrap(torch.autograd.Function):
    """Wraps a local tensor in a DTensor, and unwraps its gradient."""

    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, carrier: torch.Tensor | None, of: LocalTensors, name: str) -> Any:
        ctx.of, ctx.name, ctx.shape, ctx.carried = of, name, local.shape, carrier is not None
        kind: Any = sys.modules["torch.distributed.tensor"].DTensor
        return kind(local.view_as(local), of.specs[name], requires_grad=local.requires_grad)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gradient = gradients[0]
        ctx.of.gradients[ctx.name] = gradient.placements
        local = gradient._local_tensor
        if ctx.carried:
            return None, local, None, None
        if local.shape != ctx.shape:
            ctx.of.other[ctx.name] = local.shape
            raise OtherShapeError
        return local, None, None, None
