"""The self-check of an applied model: its order, and what happens with the result.

1. The guard runs first: its messages are more precise, and it costs less.
2. The check records state and generators, runs the model's own forward, and restores everything (`live_forward`).
3. If backward runs code that is not torch's and memory suffices, it compares the gradients of one step of each.
4. The scheduled forward runs. The call returns its results, and the check compares them.
5. On a difference both run again and keep values. Changes by another thread, and rounding, lead to a warning.
6. A remaining difference is located, the state is restored, and all ranks raise StaleModelError together.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from ..devices.libraries import present_platform
from ..engine.callers_modes import callers_modes
from ..errors import REPLAN, StaleModelError, StaleModelWarning
from ..operator_calls.overloads import is_fake
from ..staleness.eager_operators import (
    BEYOND_EAGER,
    EagerOperators,
    beyond_eager,
    beyond_schedule,
    draws_beyond_eager,
)
from ..support.callers import frames_to_caller
from ..torch_private.execution import dispatch_modes
from . import ranks
from .checksum import Checksums
from .comparison import OTHER_OPERATORS, Difference, Kind, Tolerance, differences, without_frozen
from .generators import Generators
from .gradients import compared_gradients
from .live_forward import LiveForward, NotRunError, callers_hooks, is_torchs, run_live
from .locate import NOT_LOCATED, Located, located
from .memory import fits
from .outcome import ForwardOutcome, outcome_of
from .policy import Checks, Turn, Turns
from .program import PLANNED_LAYOUT, Program
from .snapshot import Snapshot

_SHOWN = 8
_FINE, _ROUNDING, _REAL = range(3)


class SelfCheck:
    """Checks the calls of an applied model that are due.

    Args:
        raises: A difference is an error, else a warning (`stale="warn"`: the caller chose the planned step).
    """

    def __init__(self, checks: Checks, raises: bool = True) -> None:
        self._turns, self._raises, self._warn = Turns(checks), raises, _Warnings()
        self._verdicts = ranks.Verdicts(self._warn)
        self._lock = threading.RLock()  # generators and the state of the model are shared between threads

    def due(self, model: Any, step: Hashable, size: Hashable, sharded: bool, form: Hashable, each: bool) -> Turn | None:
        """Return the turn to check the call that is about to run; None if it is not checked.

        Args:
            model: The live model.
            step: The file that runs.
            size: The size among those of the file.
            sharded: Whether torch shards parts of the model.
            form: The form of the call (`bind.call_form`). Ranks that call together may get calls of different forms.
            each: Check each new size.
        """
        together = ranks.calls_together(model, sharded)
        modes = tuple(map(type, callers_modes()))  # such a mode may change what an operator computes
        family = (step, torch.is_grad_enabled(), together, modes, None if together else form)
        if not self._turns.due(family, size, each):
            return None
        if not together and _is_watched():
            self._turns.again(family, size)
            return None
        return Turn(family, size, bool(together))

    def run(self, turn: Turn, program: Program, fixed: bool) -> Any:
        """Run the scheduled forward and return its outputs if they equal the model's own.

        Args:
            turn: As returned by `due`. If the outputs differ, the next such call is checked, too.
            program: The call.
            fixed: There is one file, of fixed sizes, and other calls are refused. Ranks that call together then check
                the same calls.

        Raises:
            StaleModelError: The outputs differ.
        """
        together = ranks.calls_together(program.model, program.fsdp2) if fixed or program.communicates else ""
        groups = ranks.groups_of(program.model, together)
        with self._lock:
            try:
                return _Check(program, groups, self._verdicts, self._warn, raises=self._raises).run()
            except StaleModelError:
                self._turns.again(turn.family, turn.size)
                raise

    def start_again(self) -> None:
        """Check the next call of every program."""
        self._turns.start_again()

    def now(self, program: Program) -> None:
        """Check a call including gradients, and restore everything.

        Raises:
            StaleModelError: The results differ.
        """
        together = ranks.calls_together(program.model, program.fsdp2) if program.communicates else ""
        groups = ranks.groups_of(program.model, together)
        with self._lock:
            _Check(program, groups, self._verdicts, self._warn, gradients=True).leaving_nothing()


class _Warnings:
    """The warnings of a self-check. It is an object of its own, so that no method of the check refers back to it: the
    model that has the check is freed with its last reference."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def __call__(self, text: str, once: str = "") -> None:
        """Warn, and only once for each non-empty key `once`."""
        if once in self._warned:
            return
        if once:
            self._warned.add(once)
        warnings.warn(text, StaleModelWarning, stacklevel=frames_to_caller())


def _is_watched() -> bool:
    """Return whether a mode of torch's observes each operation (FlopCounterMode) or a CUDA graph is being recorded. The
    check then waits for the next call."""
    recorded = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    return recorded or torch.compiler.is_compiling() or len(callers_modes()) < len(dispatch_modes())


class _Check:
    """A check of one call."""

    def __init__(
        self,
        program: Program,
        groups: tuple[object, ...],
        verdicts: ranks.Verdicts,
        tell: Callable[..., None],
        gradients: bool = False,
        raises: bool = True,
    ) -> None:
        self.program, self._groups, self._warn, self._gradients = program, groups, tell, gradients
        self._verdicts, self._raises = verdicts, raises
        self._checksums = Checksums()
        self._tolerance = Tolerance(program.exact)
        self._located: Located | None = None
        self._start = Generators.now()
        updated: Any = program.updated()  # None in place of a missing buffer, which the binding reports
        self._updated: dict[str, torch.Tensor] = {name: t for name, t in updated.items() if t is not None}
        self._before = [tensor.detach().clone() for tensor in self._updated.values()]
        # Other ranks would wait for a second run. Engines that round differently need values in the first run.
        self._keep = bool(groups) or program.fsdp2 or not program.exact or gradients

    def run(self) -> Any:
        if _is_fake(self.program):
            return self.program.run()
        live = self._live_compared() if self.program.chosen_for else self._live(self._keep)
        gradients = self._with_gradients(live)
        outputs = self.program.run()
        differing = [*(self._compared(live.outcome, outputs, self._keep) if live is not None else ()), *gradients]
        if differing and not self._groups and not self.program.fsdp2:
            del outputs
            outputs, differing = self._again()
        elif self._groups and not self.program.exact and self._verdict(differing) == _REAL:
            self._measure_rounding()
            differing = [*(self._compared(live.outcome, outputs, True) if live is not None else ()), *gradients]
        self._judge(differing)
        return outputs

    def _live_compared(self) -> LiveForward | None:
        """Run the model's own forward, and warn of operators that differ from those that were chosen elsewhere."""
        operators = EagerOperators()
        with operators:
            live = self._live(self._keep)
        differing = beyond_eager(self.program.graph, operators) if live is not None else []
        if differing:
            instead = beyond_schedule(self.program.graph, operators)
            here = present_platform(self.program.device)
            results = (
                "other random numbers are drawn, so results differ"
                if draws_beyond_eager(self.program.graph, operators)
                else "results can differ by rounding"
            )
            self._warn(
                f"the operators of schedule {self.program.name!r} were chosen for {self.program.chosen_for}, and "
                f"the model runs others in forward here ({here}). The schedule has\n{_lines(differing)}\n"
                f"  and the model\n{_lines(instead or ['nothing instead'])}\n"
                f"  {results}, and memory and time can differ from the prediction. Plan again here: "
                "remate replan S.json --model FILE.py:build; or keep the plans: remate rebind, with the same arguments",
                once="operators",
            )
        return live

    def leaving_nothing(self) -> None:
        """Run the check for a call whose outputs are not used."""
        program = self.program
        snapshot = Snapshot(program.model, (program.args, program.kwargs), program.updated().values())
        try:
            self.run()
        finally:
            snapshot.restore(self._checksums)
            self._start.restore()

    def _live(self, keep: bool) -> LiveForward | None:
        program = self.program
        try:
            return run_live(program, self._checksums, keep, self._fits)
        except NotRunError as error:
            if self._gradients and error.error is not None:
                raise error.error from None
            self._warn(
                f"the self-check of schedule {program.name!r} could not run the model's own forward, so this call is "
                f"not compared with it: {error}\n  call the model itself to see why; apply(..., verify='never') leaves "
                "out the check",
                once=f"live {error}",
            )
            return None

    def _fits(self) -> bool:
        return fits(self.program.eager_bytes, self.program.budget, self.program.device)

    def _with_gradients(self, live: LiveForward | None) -> list[Difference]:
        """Return differences of gradients where backward may differ although outputs are equal."""
        program = self.program
        pack = callers_hooks()
        hooked = pack is not None and not is_torchs(pack)
        wanted = self._gradients or (live is not None and live.own_backward) or hooked
        if not wanted or not torch.is_grad_enabled():
            return []
        if program.fsdp2:
            return self._unchecked("blocks are sharded, and torch's hooks take one backward for each forward")
        if program.communicates and not self._gradients:
            return self._unchecked("ranks communicate, and each has memory of its own for such a step")
        if not program.communicates and not self._fits():
            return self._unchecked(f"a step of the model itself takes about {program.eager_bytes:,} bytes")
        try:
            return list(compared_gradients(program, self._checksums, self._tolerance, self._keep))
        except torch.OutOfMemoryError:
            return self._unchecked("a step of the model itself runs out of memory")
        except StaleModelError:
            raise
        except Exception as error:
            if self._gradients:
                raise
            lines = str(error).splitlines()
            return self._unchecked(f"a step raises {type(error).__name__}: {lines[0] if lines else ''}")

    def _unchecked(self, why: str) -> list[Difference]:
        self._warn(
            f"the self-check of schedule {self.program.name!r} compared only outputs, no gradients, although backward "
            f"of the model runs custom code (a custom Function, a hook on a tensor or on saved tensors): {why}\n  "
            "apply(..., verify=(args, kwargs)) compares gradients on a batch that fits into memory",
            once="gradients",
        )
        return []

    def _where(self) -> Located:
        """Return where the schedule and the model differ.

        Not for blocks that FSDP2 shards: another run would gather parameters again. Not for ranks that
        communicate: another run would wait for the others.
        """
        if self._located is None:
            self._located = (
                NOT_LOCATED
                if self.program.fsdp2 or self.program.communicates
                else located(self.program, self._checksums)
            )
        return self._located

    def _measure_rounding(self) -> None:
        """Set the tolerance of an engine that rounds differently to the largest result, if the step is the model's."""
        if not self.program.exact and self._where().same:
            self._tolerance = self._tolerance._replace(largest=self._where().largest, dtype=self._where().dtype)

    def _compared(self, live: ForwardOutcome, outputs: object, keep: bool) -> list[Difference]:
        program = self.program
        outcome = outcome_of(outputs, [*program.updated().values()], program.plain(), self._checksums, keep)
        if not all(tensor.requires_grad for tensor in program.trained.values()):
            live = without_frozen(live, outcome)
        return list(differences(live, outcome, [*program.updated()], self._checksums, self._tolerance))

    def _again(self) -> tuple[Any, list[Difference]]:
        """Run both again and keep values. A difference that disappears comes from another thread or from chance."""
        program, self._keep = self.program, True
        self._put_back()
        operators = EagerOperators()
        with operators:
            live = self._live(True)
        gradients = self._with_gradients(live)
        operators_beyond = beyond_eager(program.graph, operators) if live is not None and program.exact else []
        if operators_beyond:
            self._tolerance = self._tolerance._replace(units=OTHER_OPERATORS)
        self._measure_rounding()
        outputs = program.run()
        differing = [*(self._compared(live.outcome, outputs, True) if live is not None else ()), *gradients]
        if operators_beyond and differing:
            differing.append(Difference(self._explained(operators_beyond, operators), Kind.ROUNDING))
        rounds = bool(self._tolerance.largest)  # which explains a difference that does not appear again
        if not differing and live is not None and not rounds:
            self._warn(
                f"the self-check of schedule {program.name!r} found a difference that did not appear again: another "
                "thread changed the model or drew random numbers meanwhile, or an operation is not deterministic",
                once="again",
            )
        return outputs, differing

    def _explained(self, beyond: Sequence[str], operators: EagerOperators) -> str:
        chosen = self.program.chosen_for
        if not chosen:
            why = "the schedule took a different branch"
        else:
            why = f"they are those of {chosen}, and this is {present_platform(self.program.device)}"
        if draws_beyond_eager(self.program.graph, operators):
            effect = "these draw other random numbers, so results cannot be compared"
        else:
            effect = "sums may have a different order"
        return f"{BEYOND_EAGER} {'; '.join(beyond[:_SHOWN])}: {why}; {effect}"

    def _put_back(self) -> None:
        self._start.restore()
        with torch.no_grad():
            for tensor, was in zip(self._updated.values(), self._before, strict=True):
                tensor.detach().copy_(was)

    def _verdict(self, differing: Sequence[Difference]) -> int:
        """Return the worst verdict of all ranks."""
        own = _severity(differing)
        return self._verdicts.worst(own, self._groups) if self._groups else own

    def _judge(self, differing: Sequence[Difference]) -> None:
        own, verdict = _severity(differing), self._verdict(differing)
        if own == _ROUNDING:
            layout = self.program.other_layout
            advice = f"\n  {layout}; {PLANNED_LAYOUT}" if layout else ""
            self._warn(
                f"the self-check of schedule {self.program.name!r}: the results of the schedule and of the model "
                f"differ by rounding\n{_listed(differing)}{advice}",
                once=f"rounding {self.program.copied_inputs}",
            )
        if verdict < _REAL:
            return
        if self._raises:
            self._put_back()
        listed = [*map(Difference, self._where().places), *sorted(differing, key=_is_rounding)[:_SHOWN]]
        text = (
            f"the schedule does not compute what the model computes now ({self.program.name}); this call differs in\n"
            f"{_listed(listed)}\n  {REPLAN}"
        )
        if own < _REAL:
            text = (
                f"the self-check of schedule {self.program.name!r} found a difference on another rank\n  its message "
                f"names it; {REPLAN}"
            )
        if self._raises:
            raise StaleModelError(text, differences=_listed(listed))
        self._warn(text, once="stale")


def _severity(differing: Sequence[Difference]) -> int:
    return max((_ROUNDING if difference.kind is Kind.ROUNDING else _REAL for difference in differing), default=_FINE)


def _is_rounding(difference: Difference) -> bool:
    return difference.kind is Kind.ROUNDING


def _listed(differing: Sequence[Difference]) -> str:
    return "\n".join(f"  - {difference.text}" for difference in differing)


def _lines(operators: Sequence[str]) -> str:
    more = [f"and {len(operators) - _SHOWN} more"] if len(operators) > _SHOWN else []
    return "\n".join(f"  - {operator}" for operator in [*operators[:_SHOWN], *more])


def _is_fake(program: Program) -> bool:
    """Return whether tensors have no values (torch's FakeTensorMode)."""
    return any(map(is_fake, program.trained.values()))
