"""Schedules for a model whose tensors torch distributes over ranks: one rank plans, and each gets the file of its own
step."""

from __future__ import annotations

from typing import Any

from torch import nn

from remate_runtime.bind import is_distributed as is_dtensor
from remate_runtime.bind import mesh_names, refuse_sharded, sharded_parts
from remate_runtime.errors import BindError, RemateError
from remate_runtime.format import Schedule

from ..api.options import PlanOptions
from ..api.rebind import rebind
from ..api.replan import prepare_again
from ..capture.recorded import RecordedCall
from .settings import AutoSettings
from .surroundings import undisturbed

_COSTS = ("profile", "cache", "measure_again")  # options for capturing a step again


def is_distributed_model(model: nn.Module) -> bool:
    """Return whether a model has DTensors."""
    return any(map(is_dtensor, model.parameters()))


def for_this_rank(schedule: Schedule, call: RecordedCall, settings: AutoSettings) -> Schedule:
    """Return the plan of a schedule for the step of this rank, without solving. All ranks communicate alike.

    Args:
        schedule: The schedule of the rank that planned.
        call: The training call of this rank.
        settings: Settings with the options for costs.

    Raises:
        RemateError: The step of this rank differs, so that a part of the plan has no place in it.
    """
    here, planned = _coordinate(call.model), schedule.model.coordinate
    if all(here.get(name) == rank for name, rank in planned.items()):
        return schedule
    options = PlanOptions(**{name: settings.plan[name] for name in _COSTS if name in settings.plan})
    with undisturbed():
        carried = rebind(schedule, prepare_again(schedule, call, options=options))
    if carried.left_out:
        raise RemateError(
            f"the plan of rank {_text(planned)} does not fit the step of rank {_text(here)}: {carried.left_out[0]}\n"
            "  hint: plan the blocks, whose steps are the same on all ranks: remate.auto(model, at='layers.*')"
        )
    return carried.schedule


def _coordinate(model: nn.Module) -> dict[str, int]:
    places: dict[str, int] = {}
    named: list[Any] = list(model.parameters())
    for tensor in named:
        if is_dtensor(tensor):
            mesh = tensor.device_mesh
            places.update(zip(mesh_names(mesh), mesh.get_coordinate() or (), strict=True))
    return places


def _text(coordinate: dict[str, int]) -> str:
    return ", ".join(f"{name}={rank}" for name, rank in coordinate.items())


def refuse_sharded_parts(model: nn.Module) -> None:
    """Raise BindError for a model with sharded parts. One that is sharded itself has gathered its parameters here."""
    if sharded_parts(tuple(model.modules())):
        raise BindError(
            "fully_shard (FSDP2) has sharded parts of this model before its first training call, at which remate.auto "
            "plans\n  pass these parts instead: fully_shard(remate.auto(block)); or plan the model before: schedule = "
            "remate.plan(model, args, fsdp='layers.*', shards=RANKS); model = remate_runtime.apply(model, schedule); "
            "then fully_shard"
        )
    refuse_sharded(model, distributed=True)
