"""The process that calls operators: it forks for each one, and again where a call ended the process.

python -m tools.fuzz.operator_worker JOB RESULT    (tools.fuzz.operators starts it, under its limits)
"""

from __future__ import annotations

import ctypes
import os
import pickle
import random
import resource
import signal
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from mmap import mmap

import msgspec
import torch

from remate_runtime.errors import ScheduleError
from remate_runtime.operator_calls import overload
from remate_runtime.torch_private.operators import has_kernel

from .operator_mutations import mutations
from .operator_program import Program, TooLargeError, check, graph_of, run

CALL_SECONDS = 4.0  # of CPU time
MAX_ENDS = 6  # of processes, after which an operator is not called again
OUTCOMES = ("refused", "large", "raised", "ran")


class End(msgspec.Struct, frozen=True):
    """A call that ended its process. how: name of the signal. ran: whether the operator itself ran, or a check."""

    how: str
    ran: bool
    program: Program


class Row(msgspec.Struct, frozen=True):
    """Results of an operator's calls. counts: by OUTCOMES."""

    name: str
    counts: tuple[int, ...]
    ends: tuple[End, ...]

    @property
    def verdict(self) -> str:
        if self.ends:
            return "ends the process: " + ", ".join(sorted({end.how for end in self.ends}))
        if sum(self.counts):
            return ""
        return "not called" if has_kernel(overload(self.name), torch.device("cpu")) else "no kernel on the CPU"


def tried(name: str, programs: Sequence[Program], combined: int, most: int, until: float) -> Row:
    """All mutations of these calls, in processes that a call may end; a new process continues after that call.

    Args:
        name: The operator.
        programs: Its calls to begin with.
        combined: Random combinations of changes of each.
        most: Calls in all, drawn where there would be more.
        until: The time.monotonic() at which to stop.
    """
    work = [each for n, seed in enumerate(programs) for each in mutations(seed, combined, f"{name}/{n}")]
    if len(work) > most:
        work = [work[at] for at in sorted(random.Random(name).sample(range(len(work)), most))]
    notes = mmap(-1, 64)  # shared with the child: the number of the call, whether it runs, counts
    ends: list[End] = []
    start = 0
    while start < len(work) and len(ends) < MAX_ENDS and time.monotonic() < until:
        status = _in_child(work, start, notes, until)
        at, runs = _read(notes, 0), bool(_read(notes, 1))
        if status == 0:
            break
        how = signal.Signals(status).name if status > 0 else f"exit status {-status}"
        ends.append(End("out of time" if how == "SIGPROF" else how, runs, work[at]))
        start = at + 1
    return Row(name, tuple(_read(notes, 2 + n) for n in range(len(OUTCOMES))), tuple(ends))


def _read(notes: mmap, at: int) -> int:
    return int.from_bytes(notes[8 * at : 8 * at + 8], "little")


def _write(notes: mmap, at: int, number: int) -> None:
    notes[8 * at : 8 * at + 8] = number.to_bytes(8, "little")


def _in_child(work: Sequence[Program], start: int, notes: mmap, until: float) -> int:
    """Run calls in a child process. Returns 0 if it completed, otherwise the signal that ended it, or its exit status
    as a negative number."""
    child = os.fork()
    if child == 0:
        status = 7
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            for at in range(start, len(work)):
                if time.monotonic() > until:
                    break
                _write(notes, 0, at)
                _write(notes, 1, 0)
                signal.setitimer(signal.ITIMER_PROF, CALL_SECONDS)
                outcome = OUTCOMES.index(_outcome(work[at], notes))
                _write(notes, 2 + outcome, _read(notes, 2 + outcome) + 1)
            status = 0
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    return os.WTERMSIG(ended) if os.WIFSIGNALED(ended) else -os.WEXITSTATUS(ended)


def _outcome(program: Program, notes: mmap) -> str:
    try:
        graph = graph_of(program)
        check(graph)
    except ScheduleError:
        return "refused"
    except TooLargeError:
        return "large"
    except Exception:  # errors of torch during inference; a file cannot declare a matching type
        return "refused"
    _write(notes, 1, 1)
    try:
        run(program, graph)
    except Exception:
        return "raised"
    return "ran"


class Job(msgspec.Struct, frozen=True):
    """programs: seed calls, by operator. combined: random combinations of mutations of each. most: calls of an
    operator. seconds: in total."""

    programs: Mapping[str, Sequence[Program]]
    combined: int
    most: int
    seconds: float


def main(job_file: str, result_file: str) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends with its parent process
    os.nice(max(0, 10 - os.nice(0)))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with open(job_file, "rb") as file:
        job: Job = pickle.load(file)
    until = time.monotonic() + job.seconds
    rows = []
    for name, programs in job.programs.items():
        row = tried(name, programs, job.combined, job.most, until)
        rows.append(row)
        if row.ends:
            print(name, row.counts, row.verdict, flush=True)
            for end in row.ends:
                print(f"  {end.how}{'' if end.ran else ' in a check'}: {end.program}", flush=True)
    with open(result_file, "wb") as file:
        pickle.dump(rows, file)


if __name__ == "__main__":
    from tools.fuzz import operator_worker  # so that pickled classes have one name

    operator_worker.main(*sys.argv[1:])
