"""The forms of a step for its calls: per device, and per set of trained parameters."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ..bind.fsdp2 import Fsdp2
from ..errors import REPLAN
from ..flat_step.graph import Op
from ..format.signature import Leaf
from ..link.contract import StepContract, contract_at_another_size, step_contract
from ..link.events import Linked
from ..link.frozen import without_gradients
from ..link.simulator import simulate
from ..link.verifier import Verified
from ..torch_private.operators import OpOverload
from .compiled_step import Engine, LinkedStep, MeasuredLane
from .observed import observed_forward
from .step_function import StepFunction

_FORMS = 8  # most forms to keep beside the planned one of each device; the oldest is dropped


class Steps:
    """The forms of a step. Raises EngineError if the engine does not work here.

    Args:
        outputs: The leaves of the module's outputs.
        names: Inputs, parameters and buffers in the order of calls.
        operators: The live operator of every name in the graph.
        ranges: As in `LinkedStep`.

    Attributes:
        updated: Names of the buffers that forward updates.
        graph: The step without its plan.
        exact: As in `Engine`.
    """

    def __init__(
        self,
        engine: Engine,
        verified: Verified,
        outputs: Sequence[Leaf],
        names: Sequence[str],
        operators: Mapping[str, OpOverload],
        ranges: str | None = None,
        before: Steps | None = None,
    ) -> None:
        """Prepare nothing yet.

        Args:
            before: Those of the same schedule at another size with the same events.
        """
        self._compile, self._operators, self._verified = engine.start(), operators, verified
        self._engine, self._graphs, self.exact = engine.name, engine.graphs, engine.exact
        self._outputs, self._names, self._ranges = outputs, names, ranges
        self._linked = verified.linked
        self.graph = verified.linked.graph
        self._contract = (
            step_contract(verified.linked, outputs, names)
            if before is None
            else contract_at_another_size(before._contract, self.graph)
        )
        self.updated = frozenset(names[buffer] for buffer, _ in self._contract.updates)
        self._warned = False  # about gradients that should have been consumed
        self._planned: dict[torch.device, StepFunction] = {}
        self._forms: dict[tuple[torch.device, tuple[bool, ...], Fsdp2 | None], StepFunction] = {}

    @property
    def linked(self) -> Linked:
        """The planned step."""
        return self._linked

    def planned(self, device: torch.device) -> StepFunction:
        """Return the step as planned."""
        if device not in self._planned:
            self._planned[device] = self._compiled(self._linked, self._contract, device)
            self._compare(self._planned[device].compiled.peak)
        return self._planned[device]

    def peak(self, device: torch.device) -> int:
        """Return the predicted peak of the planned step on this device in bytes, counted as in budgets."""
        predicted = self.planned(device).compiled.peak
        return self._verified.peak if predicted is None else predicted

    def paged(self, device: torch.device) -> tuple[MeasuredLane, ...]:
        """What the planned step has moved on this device when it ran last."""
        measured = self.planned(device).compiled.paged
        return () if measured is None else measured()

    def wanted(self, device: torch.device, sources: Sequence[Any], sharded: Fsdp2 | None = None) -> StepFunction:
        """Return the step for a call with these tensors: without operations for unwanted gradients, with borders of
        shards."""
        gradients = self._contract.gradients
        trained = tuple([sources[gradient.source].requires_grad for gradient in gradients])
        if all(trained) or not any(trained) or not torch.is_grad_enabled():
            if sharded is None:
                return self.planned(device)
            trained = (True,) * len(gradients)
        key = device, trained, sharded
        if key not in self._forms:
            linked, contract = self._linked, self._contract
            if not all(trained):
                frozen = {contract.sources[g.source] for g, t in zip(gradients, trained, strict=True) if not t}
                linked = without_gradients(linked, frozen)
                contract = step_contract(linked, self._outputs, self._names)
            while len(self._forms) >= _FORMS:
                del self._forms[next(iter(self._forms))]
            self._forms[key] = self._compiled(linked, contract, device, sharded)
        return self._forms[key]

    def observed(self, device: torch.device, sources: Sequence[object]) -> Iterator[tuple[Op, list[torch.Tensor]]]:
        """Run forward operation by operation and yield each with its results, whatever engine executes the step."""
        return observed_forward(self._linked, self._contract, self._operators, device, sources)

    def _compiled(
        self, linked: Linked, contract: StepContract, device: torch.device, sharded: Fsdp2 | None = None
    ) -> StepFunction:
        about = self._verified
        budget = about.compiled
        if budget is None:
            # Plans may be edited: engines are not held to a budget that the plan exceeds.
            budget = max(about.budget, about.peak)
        lines = about.where if linked is self._linked else ()
        step = LinkedStep(linked, contract, self._operators, about.leaves, budget, sharded, self._ranges, lines)
        watched = linked.graph.delivered == "consumed" and not self._warned
        return StepFunction(self._compile(step, device), contract, device, self._still_held if watched else None)

    def _compare(self, predicted: int | None) -> None:
        """Warn if this execution will not keep the budget of a file that was planned for compiled execution."""
        about = self._verified
        peak = about.peak if predicted is None else predicted
        budget = about.budget if about.compiled is None else about.compiled
        if self._graphs and peak > budget:
            warnings.warn(
                f"with CUDA graphs a step of schedule {about.name!r} is predicted to take {peak:,} bytes, over its "
                f"budget of {budget:,}: their private pool stays reserved, and gradients are copied out of it\n  "
                "`remate check FILE --engine NAME --cuda-graphs` predicts it for a file; leave out cuda_graphs=True, "
                "or plan with a smaller budget",
                UserWarning,
                stacklevel=2,
            )
        elif about.compiled is not None and peak > about.compiled:
            warnings.warn(
                f"schedule {about.name!r} was planned for {about.compiled:,} bytes where the engine 'compiled' "
                "executes it; here, by "
                f"{self._engine!r}, the step takes {peak:,}\n  use engine='compiled', or {REPLAN}",
                UserWarning,
                stacklevel=2,
            )

    def _still_held(self) -> None:
        """Warn once if the budget does not hold without the assumed optimizer in backward."""
        if self._warned:
            return
        self._warned = True
        about = self._verified
        peak = simulate(about.linked, "retained").peak
        if peak > about.budget:
            warnings.warn(
                f"schedule {about.name!r} was planned for an optimizer in backward, which consumes gradients when they "
                f"are delivered; they are still in `.grad`: the step takes {peak:,} bytes, over its budget of "
                f"{about.budget:,}\n"
                "  register such an optimizer (register_post_accumulate_grad_hook), or plan with gradients="
                "'retained' or 'accumulated'",
                UserWarning,
                stacklevel=2,
            )
