"""What a compiled step will hold, and the functions that make its time, for planners: nothing of the model runs."""

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
    """peak: bytes at the worst moment, counted as a budget counts them. whole: the peak, if no segment were split to
    keep the budget. functions: of the compiled segments, in their order. interpreted: ns of every other operation, as
    the file has them."""

    peak: int
    whole: int
    functions: tuple[Function, ...]
    interpreted: tuple[int, ...]

    def parts(self, ns: Mapping[str, int]) -> tuple[int, ...]:
        """What makes the time of the step. ns: by key of a function, as `ns_of` finds it."""
        return (*(ns[function.key] for function in self.functions), *self.interpreted)


def check_available(device: str) -> None:
    """Raise EngineError where steps for this class of device cannot be compiled here."""
    if reason := unavailable(device):
        raise EngineError(f"nothing can be planned for the engine 'compiled' here: {reason}\n  use cost='measured'")


def predict_memory(
    schedule: Schedule, budget: int, artefacts: Artefacts, namespaces: Collection[str] = ()
) -> PredictedMemory:
    """Of a schedule at the size that it was planned at. Segments are split until they keep the budget. artefacts: what
    has been compiled for the same step with other plans; this adds to it. Raises ScheduleError, EngineError."""
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
