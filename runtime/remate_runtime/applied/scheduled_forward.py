"""A schedule that is bound to a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from ..bind.attributes import plain_values
from ..bind.autocast_regions import casts_parameters
from ..bind.distributed import local_tensor
from ..bind.fsdp2 import Fsdp2
from ..bind.model_binding import ModelBinding
from ..bind.outputs import Detached
from ..bind.sizes import CallSizes
from ..bind.surroundings import AttentionKernels, check_autocast, check_default_dtype, chosen_for
from ..bind.written import Given, WrittenBuffers
from ..engine.compiled_step import Engine, MeasuredLane
from ..engine.step_function import OwnGradients, run_step
from ..engine.steps import Steps
from ..engine.tangents import GradientLayouts
from ..errors import BindError, ScheduleError
from ..format.schedule import Schedule
from ..format.signature import output_leaves
from ..format.substitution import checked_size
from ..self_check import Checksums, Program
from ..self_check.outcome import tensors_in
from ..staleness.beside import example_call
from ..staleness.first_call import make_caches
from ..staleness.live_numbers import LiveNumbers
from ..staleness.trust import Stale, unchecked
from ..support.plain_text import plain
from .padding import PaddedCall, Padding
from .step_at_size import StepAtSize, StepsAtSizes


class MatchedCall(NamedTuple):
    """A call and the step for it.

    Attributes:
        step: The step of the call's size.
        inputs: Tensors of the call in the planned layout.
        tensors: Parameters and buffers.
        given: The original tensors by name, if the step updates buffers.
        numbers: Live attributes and live inputs.
        own: Gradients of the model's own forward, as for `run_step`.
    """

    step: StepAtSize
    inputs: list[torch.Tensor]
    tensors: list[torch.Tensor]
    given: Given
    numbers: list[float]
    own: OwnGradients | None = None


class ScheduledForward:
    """A schedule of a model, at all of its sizes."""

    def __init__(
        self,
        model: nn.Module,
        schedule: Schedule,
        namespaces: tuple[str, ...],
        stale: Stale,
        engine: Engine,
        ranges: str | None,
        part: str = "",
    ) -> None:
        """Bind a schedule.

        Args:
            model: The live model.
            schedule: The schedule.
            namespaces: Permitted operators.
            stale: Whether a changed model is an error or a warning.
            engine: Executes the step.
            ranges: As in `LinkedStep`.
            part: Path of the model in `at`, if the schedule is for parts.
        """
        self.schedule = schedule
        _permit(schedule, namespaces)
        steps = StepsAtSizes(model, schedule, engine, namespaces, ranges)
        # Faults of the file have lines, so they are reported before those of the model.
        steps.verify(self._planned_size())
        self._steps, self._model = steps, model
        self._make_caches()
        self._bound = ModelBinding(model, schedule.model)
        steps.distributed = self._bound.distributed
        self._dtype = torch.get_default_dtype()
        self._guard = unchecked(model, schedule, stale, part)
        self._live = LiveNumbers(model, schedule.model)
        planned = self._steps.at(self._planned_size())
        self._detached = Detached(schedule.model.outputs)
        self.layouts = GradientLayouts(output_leaves(schedule.model.outputs))
        self._sizes = CallSizes(schedule.model, model.forward) if schedule.model.dims else None
        self.padding = Padding(model, schedule)
        planned.steps.planned(self.device)
        self._written = WrittenBuffers(self._bound, planned.steps.updated)
        self._written.refuse(())
        self.casts = schedule.model.autocast is not None and casts_parameters(planned.steps.graph)
        self._attention = AttentionKernels(planned.steps.graph)
        self.draws = any(op.random for op in planned.steps.graph.operations)

    def _planned_size(self) -> dict[str, int]:
        return {name: dim.planned for name, dim in self.schedule.model.dims.items()}

    def _make_caches(self) -> None:
        """Fill the caches that forward fills at its first call, so that the model equals the planned one."""
        if self.schedule.model.caches:
            tensors = [t for t in (*self._model.parameters(), *self._model.buffers()) if t.device.type != "cpu"]
            device = tensors[0].device if tensors else torch.device("cpu")
            args, kwargs = example_call(self._model, self.planned.model, device)
            make_caches(self._model, args, kwargs, self.schedule.model.caches)

    @property
    def planned(self) -> Schedule:
        """The schedule at its planned size."""
        return self._steps.at(self._planned_size()).schedule

    @property
    def steps(self) -> Steps:
        """The programs of the planned size."""
        return self._steps.at(self._planned_size()).steps

    @property
    def groups(self) -> dict[str, str]:
        """Names of torch's process groups by the mesh dimensions that the step communicates over."""
        return self._bound.distributed.groups if self.schedule.model.ranks else {}

    @property
    def device(self) -> torch.device:
        """The model's device."""
        return self._bound.device()

    def peak(self, dims: Mapping[str, int]) -> int:
        """Return the predicted peak of a step in bytes.

        Args:
            dims: Values of named sizes. Omitted sizes are as planned.

        Raises:
            BindError: The schedule is not for this size.
        """
        return self._steps.at(checked_size(self.schedule.model, dims)).steps.peak(self.device)

    def paged(self, dims: Mapping[str, int]) -> tuple[MeasuredLane, ...]:
        """Return what the latest step of this size has paged, and how long it waited for pages."""
        return self._steps.at(checked_size(self.schedule.model, dims)).steps.paged(self.device)

    def gather(self, sharded: Fsdp2 | None) -> None:
        """Use the gathered parameters of these parts from now on."""
        self._bound.gather(sharded)

    def check(self) -> None:
        """Raise BindError or StaleModelError if the model has changed since the schedule was applied."""
        self._bound.check_modules()
        self._guard.check()

    @property
    def changes(self) -> int:
        """How often a parameter or buffer had other memory, or was another tensor, than at the call before."""
        return self._bound.changes

    def check_tensors(self) -> None:
        """Raise BindError if parameters or buffers of the model are not the planned ones."""
        self._bound.tensors(self.device)

    def call(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> MatchedCall:
        """Match a call with the schedule.

        Raises:
            BindError: The schedule is not for this call.
        """
        device = self.device
        check_autocast(self.schedule.model.autocast, device)
        check_default_dtype(self._dtype)
        self._attention.check()
        if self.schedule.model.caches and not self._bound.has(self.schedule.model.caches):
            make_caches(self._model, args, kwargs, self.schedule.model.caches)
        step = self._steps.at({} if self._sizes is None else self._sizes.of(args, kwargs, device))
        inputs = step.call.flatten(args, kwargs, device)
        tensors = self._bound.tensors(device)
        numbers = self._live.read(args, kwargs)
        return MatchedCall(step, inputs, tensors, self._written.given(args, kwargs, device), numbers)

    def accepts(self, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
        """Return whether the schedule is for this call."""
        try:
            self.call(tuple(args), dict(kwargs))
        except BindError:
            return False
        return True

    def padded(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> PaddedCall:
        """Pad a smaller call to a size that the schedule is for.

        Raises:
            BindError: That is not possible.
        """
        return self.padding.padded(args, kwargs, self.device)

    def program(
        self, call: MatchedCall, args: tuple[object, ...], kwargs: Mapping[str, object], sharded: Fsdp2 | None = None
    ) -> Program:
        """Return the program that the self-check runs for a call.

        Args:
            call: The matched call.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            sharded: Parts that FSDP2 shards.
        """
        steps, model, solve = call.step.steps, self._bound.model, self.schedule.solve
        device = self.device
        slots = self._bound.slots
        given = {id(tensor) for tensor in tensors_in([*args, *kwargs.values()])}

        def sources() -> list[Any]:
            return [*call.inputs, *map(local_tensor, self._bound.tensors(device)), *call.numbers]

        return Program(
            name=plain(self.schedule.name),
            model=model,
            args=args,
            kwargs=kwargs,
            run=lambda: self.run(call, sharded, checked=True),
            observe=lambda: steps.observed(device, sources()),
            graph=steps.graph,
            updated=lambda: {slot.name: slot.get() for slot in slots if slot.name in steps.updated},
            plain=lambda: plain_values(model, self.schedule.model.outputs),
            trained={slot.name: slot.get() for slot in slots},
            differentiated=[leaf.grad for leaf in output_leaves(self.schedule.model.outputs)],
            device=device,
            exact=steps.exact,
            eager_bytes=solve.baseline_peak,
            budget=solve.budget,
            fsdp2=sharded is not None,
            communicates=bool(self.schedule.model.ranks),
            chosen_for=chosen_for(self.schedule.model),
            copied_inputs=[
                n for n, tensor in zip(call.step.call.names, call.inputs, strict=True) if id(tensor) not in given
            ],
        )

    def run(self, call: MatchedCall, sharded: Fsdp2 | None = None, checked: bool = False) -> Any:
        """Run the step's forward and return the module's outputs.

        Args:
            call: The matched call.
            sharded: Parts that FSDP2 shards.
            checked: Whether backward also verifies the contents of the tensors that it reads.
        """
        device = self.device
        step = call.step
        tensors = [*call.inputs, *(self._bound.tensors(device) if checked else call.tensors)]
        self._written.refuse(call.given)
        sources = [*tensors, *call.numbers]
        contents = Checksums().content if checked and sharded is None else None
        wanted = step.steps.wanted(device, sources, sharded)
        distributed = self._distributed(len(call.inputs))
        return step.build(run_step(wanted, sources, self._detached, contents, distributed, self.layouts, call.own))

    def _distributed(self, inputs: int) -> dict[int, tuple[Any, ...]]:
        """Return the placements of gradients by the index of a source, for sources that are DTensors.

        Args:
            inputs: Number of inputs, which precede parameters and buffers in the sources.
        """
        bound = self._bound.distributed
        slots = enumerate(self._bound.slots if bound.named else (), inputs)
        return {at: bound.gradient(slot.name) for at, slot in slots if slot.name in bound.named}


def _permit(schedule: Schedule, namespaces: tuple[str, ...]) -> None:
    """Raise ScheduleError R050 if the schedule needs a permission that the caller did not give."""
    missing = [name for name in schedule.namespaces if name not in namespaces]
    if missing:
        listed = ", ".join(map(repr, missing))
        wanted = tuple(dict.fromkeys([*namespaces, *missing]))
        raise ScheduleError(
            "R050",
            f"the schedule names {listed} in `namespaces`, which was not permitted",
            f"/namespaces/{schedule.namespaces.index(missing[0])}",
            f"if you trust the file and the libraries: apply(model, schedule, namespaces={wanted!r}), "
            f"remate run --allow {' '.join(wanted)}",
        )
