"""Models that `parallelize_module` distributed, captured as one rank runs them: on the local tensors of its DTensors.

While such a model is traced its DTensor parameters and buffers are plain tensors, those that this rank holds. Within
forward each is wrapped again, so that DTensor's own rules choose local operators and collectives, and these are traced.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from remate_runtime.bind import is_distributed, mesh_groups, mesh_names, sharded_parts
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

    def add(self, held: dict[str, Any], key: str, name: str, spec: Any) -> None:
        """A DTensor stands at `key` of the registered tensors `held`."""
        self.specs[name] = spec
        self._places.append((held, key, name))

    @contextmanager
    def wrapped(self, carriers: nn.Module) -> Iterator[None]:
        """Meanwhile the model has DTensors again, around the tensors that the tracer put into it. carriers: as of
        `carriers`."""
        carried = dict(zip(self.other, carriers.parameters(), strict=True))
        saved = [(held, key, held[key]) for held, key, _ in self._places]
        made: dict[int, Any] = {}
        try:
            for held, key, name in self._places:
                local = held[key]
                if id(local) not in made:
                    made[id(local)] = _Wrap.apply(local, carried.get(name), self, name)
                held[key] = made[id(local)]
            yield
        finally:
            for held, key, local in saved:
                held[key] = local

    def carriers(self) -> nn.Module:
        """Parameters in whose place gradients of another shape are traced: autograd gives a tensor no gradient but of
        its own shape."""
        made = nn.Module()
        locals_ = {name: held[key] for held, key, name in self._places}
        for at, (name, shape) in enumerate(self.other.items()):
            made.register_parameter(str(at), nn.Parameter(locals_[name].detach().new_empty(shape)))
        return made

    def meshes(self) -> dict[str, str]:
        """The name of a mesh dimension by the name of its process group."""
        found: dict[str, str] = {}
        for spec in self.specs.values():
            for name, group in mesh_groups(spec.mesh).items():
                found[group] = name
        return found

    def ranks(self) -> dict[str, int]:
        """How many ranks each mesh dimension has."""
        found: dict[str, int] = {}
        for spec in self.specs.values():
            found.update({name: spec.mesh.size(at) for at, name in enumerate(mesh_names(spec.mesh))})
        return found

    def coordinate(self) -> dict[str, int]:
        """This rank's place in each mesh dimension."""
        found: dict[str, int] = {}
        for spec in self.specs.values():
            found.update(zip(mesh_names(spec.mesh), spec.mesh.get_coordinate() or (), strict=True))
        return found

    def uneven(self) -> bool:
        """Whether ranks have parts of different sizes of a tensor."""
        return any(
            placement.is_shard() and spec.shape[placement.dim] % spec.mesh.size(at)
            for spec in self.specs.values()
            for at, placement in enumerate(spec.placements)
        )

    def described(self) -> tuple[Distributed, ...]:
        """What a file says of the DTensors, those that are alike in one."""
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
def local_tensors(model: nn.Module) -> Iterator[LocalTensors]:
    """Meanwhile the DTensors of a model are plain tensors: what this rank holds of them. Those of FSDP2, which gathers
    them when it is called, stay. Raises CaptureError for one that no file can describe."""
    found, plain = LocalTensors(), dict[int, tuple[str, torch.Tensor]]()
    saved: list[tuple[dict[str, Any], str, Any]] = []
    modules = [] if sharded_parts(tuple(model.modules())) else list(model.named_modules())
    try:
        for path, module in modules:
            for held in (vars(module).get(kind) or {} for kind in _KINDS):
                for key, tensor in list(held.items()):
                    if not is_distributed(tensor):
                        continue
                    name = f"{path}.{key}" if path else key
                    if id(tensor) not in plain:
                        _check(name, tensor)
                        plain[id(tensor)] = name, _plain(tensor)
                    saved.append((held, key, tensor))
                    first, held[key] = plain[id(tensor)]
                    found.add(held, key, first, tensor._spec)
        _check_meshes(found)
        yield found
    finally:
        for held, key, tensor in saved:
            held[key] = tensor


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
            raise CaptureError(f"{name!r} is distributed as {placement}, which a file cannot say", hint=hint)


def _check_meshes(found: LocalTensors) -> None:
    """Raise CaptureError where two groups of ranks have one name."""
    groups: dict[str, str] = {}
    for spec in found.specs.values():
        for name, group in mesh_groups(spec.mesh).items():
            if groups.setdefault(name, group) != group:
                hint = "give each its name: init_device_mesh(..., mesh_dim_names=(...))"
                raise CaptureError(f"two dimensions of device meshes are called {name!r}", hint=hint)


def _plain(tensor: Any) -> torch.Tensor:
    local = tensor._local_tensor.detach()
    return nn.Parameter(local, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else local


class OtherShapeError(Exception):
    """A gradient has another shape than its local tensor, which is in `other` now: the step is traced again."""


class _Wrap(torch.autograd.Function):
    """A local tensor as a DTensor; its gradient as the local tensor of the DTensor that backward gives."""

    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, carrier: torch.Tensor | None, of: LocalTensors, name: str) -> Any:
        ctx.of, ctx.name, ctx.shape, ctx.carried = of, name, local.shape, carrier is not None
        kind: Any = sys.modules["torch.distributed.tensor"].DTensor
        return kind(local.view_as(local), of.specs[name], requires_grad=local.requires_grad)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        ctx.of.gradients[ctx.name] = gradient.placements
        local = gradient._local_tensor
        if ctx.carried:
            return None, local, None, None
        if local.shape != ctx.shape:
            ctx.of.other[ctx.name] = local.shape
            raise OtherShapeError
        return local, None, None, None
