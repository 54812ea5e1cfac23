"""The self-check of one applied model: the order in which it does things, and what becomes of the result.

1. The guard has looked already: what it sees has better words, and costs less.
2. State and generators are noted; the model's own forward runs; everything is put back (`live_forward`).
3. Where backward runs code that is not torch's, one step of each is compared with gradients, if there is room.
4. The scheduled forward runs: its results are those of the call. They are compared.
5. On a difference both run again, with values: what another thread changed meanwhile, and what is rounding, is a
   warning.
6. What is left is located, the state is put back, and StaleModelError raised, on all ranks alike.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ..errors import REPLAN, StaleModelError, StaleModelWarning
from ..staleness.eager_operators import BEYOND_EAGER, EagerOperators, beyond_eager
from ..support.callers import frames_to_caller
from . import ranks
from .checksum import Checksums
from .comparison import OTHER_OPERATORS, Found, Kind, Tolerance, differences
from .generators import Generators
from .gradients import compared_gradients
from .live_forward import Live, NotRunError, callers_hooks, is_torchs, run_live
from .locate import NOT_LOCATED, Located, located
from .memory import fits
from .outcome import Outcome, outcome_of
from .policy import Checks, Turns
from .program import Program
from .snapshot import Snapshot

_SHOWN = 8
_FINE, _ROUNDING, _REAL = range(3)


class SelfCheck:
    """Checks the calls of one applied model that are due. raises: a difference is an error; else a warning, as the
    caller asked to go on with the planned step (`stale="warn"`)."""

    def __init__(self, checks: Checks, raises: bool = True) -> None:
        self._turns, self._raises = Turns(checks), raises
        self._lock = threading.RLock()  # generators and the state of the model are everybody's
        self._told: set[str] = set()

    def due(self, model: Any, step: Hashable, size: Hashable, sharded: bool) -> bool:
        """Whether to check the call that is about to run.

        Args:
            model: The live model.
            step: The file that runs.
            size: Which of its sizes.
            sharded: Whether torch shards parts of the model.
        """
        together = ranks.calls_together(model, sharded)
        family = (step, torch.is_grad_enabled(), together)
        if not self._turns.due(family, size):
            return False
        if not together and _is_watched():
            self._turns.again(family, size)
            return False
        return True

    def run(self, program: Program, fixed: bool) -> Any:
        """The outputs of the scheduled forward, once they are found to be the model's own.

        Args:
            program: The call.
            fixed: Whether there is one file, of fixed sizes: ranks that call together then check the same calls.

        Raises:
            StaleModelError: They are not.
        """
        together = ranks.calls_together(program.model, program.fsdp2) if fixed else ""
        groups = ranks.groups_of(program.model, together)
        with self._lock:
            return _Check(program, groups, self._tell, raises=self._raises).run()

    def now(self, program: Program) -> None:
        """Check a call, gradients too, and leave everything as it was. Raises StaleModelError."""
        with self._lock:
            _Check(program, (), self._tell, gradients=True).leaving_nothing()

    def _tell(self, text: str, once: str = "") -> None:
        """Warn; once: only the first time for this reason."""
        if once in self._told:
            return
        if once:
            self._told.add(once)
        warnings.warn(text, StaleModelWarning, stacklevel=frames_to_caller())


def _is_watched() -> bool:
    """Whether somebody follows each operation (FlopCounterMode), or a graph of CUDA is being recorded: the next call
    will do."""
    recorded = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    return recorded or torch.compiler.is_compiling() or bool(_get_current_dispatch_mode_stack())


class _Check:
    """One check of one call."""

    def __init__(
        self,
        program: Program,
        groups: tuple[Any, ...],
        tell: Callable[..., None],
        gradients: bool = False,
        raises: bool = True,
    ) -> None:
        self.program, self._groups, self._tell, self._gradients = program, groups, tell, gradients
        self._raises = raises
        self._checksums = Checksums()
        self._tolerance = Tolerance(program.exact)
        self._located: Located | None = None
        self._start = Generators.now()
        self._updated = {name: t for name, t in program.updated().items() if t is not None}  # gone: the binding says so
        self._before = [tensor.detach().clone() for tensor in self._updated.values()]
        # Other ranks would wait for a second run, and engines that round differ at once.
        self._keep = bool(groups) or program.fsdp2 or not program.exact or gradients

    def run(self) -> Any:
        if _is_fake(self.program):
            return self.program.run()
        live = self._live(self._keep)
        gradients = self._with_gradients(live)
        made = self.program.run()
        found = [*(self._compared(live.outcome, made, self._keep) if live is not None else ()), *gradients]
        if found and not self._groups and not self.program.fsdp2:
            del made
            made, found = self._again()
        elif self._groups and not self.program.exact and self._verdict(found) == _REAL:
            self._measure_rounding()
            found = [*(self._compared(live.outcome, made, True) if live is not None else ()), *gradients]
        self._judge(found)
        return made

    def leaving_nothing(self) -> None:
        """The same, of a call whose outputs nobody wants."""
        program = self.program
        snapshot = Snapshot(program.model, (program.args, program.kwargs), program.updated().values())
        try:
            self.run()
        finally:
            snapshot.restore(self._checksums)
            self._start.restore()

    def _live(self, keep: bool) -> Live | None:
        program = self.program
        try:
            return run_live(program, self._checksums, keep, self._fits)
        except NotRunError as error:
            if self._gradients and error.error is not None:
                raise error.error from None
            self._tell(
                f"the self-check of schedule {program.name!r} could not run the model's own forward, so this call "
                "is not "
                f"compared with it: {error}\n  call the model itself to see why; apply(..., verify='never') leaves "
                "the check out",
                once=f"live {error}",
            )
            return None

    def _fits(self) -> bool:
        return fits(self.program.eager_bytes, self.program.budget, self.program.device)

    def _with_gradients(self, live: Live | None) -> list[Found]:
        """Differences of gradients, where backward may differ though outputs are the same."""
        program = self.program
        pack = callers_hooks()
        hooked = pack is not None and not is_torchs(pack)
        wanted = self._gradients or (live is not None and live.own_backward) or hooked
        if not wanted or not torch.is_grad_enabled():
            return []
        if program.fsdp2:
            return self._unchecked("blocks are sharded, and torch's hooks take one backward for each forward")
        if not self._fits():
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

    def _unchecked(self, why: str) -> list[Found]:
        self._tell(
            f"the self-check of schedule {self.program.name!r} compared outputs and no gradients, though backward "
            "of the model "
            f"runs code of its own (a custom Function, a hook on a tensor or on saved ones): {why}\n  apply(..., "
            "verify=(args, kwargs)) compares gradients on a batch that is small enough",
            once="gradients",
        )
        return []

    def _where(self) -> Located:
        """Where the schedule and the model differ. Blocks that FSDP2 shards would gather once more, so they are not run
        again."""
        if self._located is None:
            self._located = NOT_LOCATED if self.program.fsdp2 else located(self.program, self._checksums)
        return self._located

    def _measure_rounding(self) -> None:
        """Of an engine that rounds differently: by the largest result of the step, if the step is the model's."""
        if not self.program.exact and self._where().same:
            self._tolerance = self._tolerance._replace(largest=self._where().largest, dtype=self._where().dtype)

    def _compared(self, live: Outcome, made: Any, keep: bool) -> list[Found]:
        program = self.program
        outcome = outcome_of(made, [*program.updated().values()], self._checksums, keep)
        return list(differences(live, outcome, [*program.updated()], self._checksums, self._tolerance))

    def _again(self) -> tuple[Any, list[Found]]:
        """Both once more, now with values. What does not differ again was another thread's doing, or that of chance."""
        program, self._keep = self.program, True
        self._put_back()
        operators = EagerOperators()
        with operators:
            live = self._live(True)
        gradients = self._with_gradients(live)
        parted = beyond_eager(program.graph, operators) if live is not None and program.exact else []
        if parted:
            self._tolerance = self._tolerance._replace(units=OTHER_OPERATORS)
        self._measure_rounding()
        made = program.run()
        found = [*(self._compared(live.outcome, made, True) if live is not None else ()), *gradients]
        if parted and found:
            branches = f"{BEYOND_EAGER} {'; '.join(parted[:_SHOWN])}"
            told = f"{branches}: the schedule took another branch there, so its sums may be "
            found.append(Found(f"{told}made in another order", Kind.ROUNDING))
        if not found and live is not None and not self._tolerance.largest:  # else it is rounding of the engine
            self._tell(
                f"the self-check of schedule {program.name!r} found a difference that was gone when it looked "
                "again: another "
                "thread changed the model or drew random numbers meanwhile, or an operation gives other results in "
                "each run",
                once="again",
            )
        return made, found

    def _put_back(self) -> None:
        self._start.restore()
        with torch.no_grad():
            for tensor, was in zip(self._updated.values(), self._before, strict=True):
                tensor.detach().copy_(was)

    def _verdict(self, found: Sequence[Found]) -> int:
        """The worst of what any rank found."""
        own = _severity(found)
        return ranks.worst(own, self._groups, self.program.device) if self._groups else own

    def _judge(self, found: Sequence[Found]) -> None:
        own, verdict = _severity(found), self._verdict(found)
        if own == _ROUNDING:
            self._tell(
                f"the self-check of schedule {self.program.name!r}: what it computes and what the model computes "
                "differ by "
                f"rounding\n{_listed(found)}",
                once="rounding",
            )
        if verdict < _REAL:
            return
        if self._raises:
            self._put_back()
        told = [*map(Found, self._where().places), *sorted(found, key=_is_rounding)[:_SHOWN]]
        text = (
            f"the schedule is not what the model computes now ({self.program.name}); in this call they differ "
            f"in\n{_listed(told)}"
            f"\n  {REPLAN}"
        )
        if own < _REAL:
            text = (
                f"the self-check of schedule {self.program.name!r} found a difference on another rank\n  its "
                "message names it; "
                f"{REPLAN}"
            )
        if self._raises:
            raise StaleModelError(text)
        self._tell(text, once="stale")


def _severity(found: Sequence[Found]) -> int:
    return max((_ROUNDING if one.kind is Kind.ROUNDING else _REAL for one in found), default=_FINE)


def _is_rounding(one: Found) -> bool:
    return one.kind is Kind.ROUNDING


def _listed(found: Sequence[Found]) -> str:
    return "\n".join(f"  - {one.text}" for one in found)


def _is_fake(program: Program) -> bool:
    """Whether tensors have no values (torch's FakeTensorMode)."""
    module = sys.modules.get("torch._subclasses.fake_tensor")
    return module is not None and any(isinstance(t, module.FakeTensor) for t in program.trained.values())
