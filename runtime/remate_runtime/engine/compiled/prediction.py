"""Predicts the memory of a compiled step, and lists the functions that determine its time. Does not run the model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from ...errors import EngineError
from ...flat_step.graph import LIVE
from ...format.schedule import Schedule
from ...format.signature import output_leaves
from ...format.substitution import at_size
from ...link.contract import step_contract
from ...link.verifier import verify
from ...operator_calls.live import operators
from ..compiled_step import LinkedStep
from .artefacts import Artefacts, Function
from .compiled_engine import computations
from .fit import fit
from .inductor import unavailable
from .joined import as_compiled


class PredictedMemory(NamedTuple):
    """A prediction.

    Attributes:
        peak: Peak in bytes, counted as in budgets.
        whole: The peak if no segment were split to keep the budget.
        functions: Functions of the compiled segments, in order.
        interpreted: Time of every other operation in ns, from the file.
    """

    peak: int
    whole: int
    functions: tuple[Function, ...]
    interpreted: tuple[int, ...]

    def parts(self, ns: Mapping[str, int]) -> tuple[int, ...]:
        """Return the times that add up to the step's. ns: measured times by key of the function (`ns_of`)."""
        return (*(ns[function.key] for function in self.functions), *self.interpreted)


def check_available(device: str) -> None:
    """Raise EngineError if steps for this class of device cannot be compiled here."""
    if reason := unavailable(device):
        raise EngineError(f"nothing can be planned for the engine 'compiled' here: {reason}\n  use cost='measured'")


def predict_memory(
    schedule: Schedule, budget: int, artefacts: Artefacts, namespaces: Collection[str] = ()
) -> PredictedMemory:
    """Predict the memory of a schedule at its planned size, with segments that keep the budget.

    Args:
        schedule: The schedule.
        budget: The budget in bytes.
        artefacts: Functions compiled for the same step with other plans. This adds to them.
        namespaces: Permitted namespaces of libraries.

    Raises:
        ScheduleError: The schedule is faulty.
        EngineError: Compilation does not work here.
    """
    schedule = at_size(schedule, {name: dim.planned for name, dim in schedule.model.dims.items()})
    verified = verify(schedule)
    linked = verified.linked
    check_available(linked.graph.device)
    names = [value.name for value in linked.graph.values if value.kind in ("input", "parameter", "buffer", LIVE)]
    contract = step_contract(linked, tuple(output_leaves(schedule.model.outputs)), names)
    live = operators(linked.graph, verified.where, namespaces)
    step = as_compiled(LinkedStep(linked, contract, live, verified.leaves, budget))
    rows, left = computations(step.linked)
    fitted = fit(step, rows, left, artefacts)
    operations = step.linked.graph.operations
    planned = [segment for row in fitted.sections for segment in row]
    functions = tuple(segment.function for segment in planned if segment.function is not None)
    pieces = [piece for segment in planned if segment.function is None for piece in segment.segment.pieces]
    return PredictedMemory(
        fitted.account.peak, fitted.whole, functions, tuple(operations[piece.event.op].ns for piece in pieces)
    )
