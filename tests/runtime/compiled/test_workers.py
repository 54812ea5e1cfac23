"""What is compiled is kept on disk, side by side if it is much, and once for all blocks that are equal."""

from __future__ import annotations

import copy
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from remate.step_measurement.allocator import peak_bytes
from remate_runtime import apply, predicted_peak
from remate_runtime.engine.compiled import inductor, workers
from remate_runtime.engine.compiled.artefacts import Artefacts
from remate_runtime.engine.compiled.compiled_engine import computations
from remate_runtime.engine.compiled.fit import fit
from remate_runtime.engine.compiled.graphs import SegmentGraph
from tests.models import ZOO

from ..small import data, seeded
from ..stepping import assert_same, in_blocks, just_in_time, schedule_of, step
from .test_memory import linked_step, wasteful  # noqa: F401 (a fixture)

ENDS = "--read-fd", "--write-fd"  # of the pipes that a child uses, in its options


class Layers(nn.Module):
    """Layers of different widths: nothing is shared. at: what the first one multiplies with, so that code is new."""

    def __init__(self, at: float, count: int = 2) -> None:
        super().__init__()
        self.at, self.layers = at, nn.ModuleList(nn.Linear(8 + k, 9 + k) for k in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x) * self.at)
        return x.square().mean()


def misses() -> int:
    from torch._dynamo.utils import counters

    return counters["inductor"]["fxgraph_cache_miss"]


@pytest.mark.slow
def test_what_has_been_compiled_is_taken_from_the_disk() -> None:
    """Inductor bypasses its cache without a word where something is not as it likes."""
    model, x = seeded(Layers(0.34375)), data(4, 8)  # of no other test: all have one cache
    schedule = schedule_of(model, (x,), recomputes=just_in_time)
    result, seen = [], [misses()]
    for _ in range(2):
        planned = apply(copy.deepcopy(model), schedule, engine="compiled")
        seen.append(misses())
        result.append((predicted_peak(planned), step(planned, (x,))))
    assert seen[0] < seen[1] == seen[2]
    assert result[0][0] == result[1][0]
    assert_same(result[1][1], result[0][1])
    assert peak_bytes(lambda: planned(x).backward()) == result[0][0]


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Tags of what was to be compiled side by side; "done" has been."""
    results: list[list[str]] = []

    def side_by_side(jobs: Sequence[Any], count: int) -> Iterator[str]:
        assert count == min(len(jobs), 8)
        results.append([job[-1] for job in jobs])
        yield from ["", *("no luck" for _ in jobs[1:])]

    monkeypatch.setattr(workers, "compile_side_by_side", side_by_side)
    monkeypatch.setattr(workers, "processes", lambda: 8)
    monkeypatch.setattr(workers, "has_been_compiled", lambda tag: tag.startswith("done"))
    return results


def graph_of(nodes: int) -> SegmentGraph:
    graph = torch.fx.Graph()
    value = graph.placeholder("arg0")
    for _ in range(nodes):
        value = graph.call_function(torch.ops.aten.neg.default, (value,))
    graph.output((value,))
    return SegmentGraph(torch.fx.GraphModule(nn.Module(), graph), (), (), (), ())


def test_only_what_is_worth_it_is_compiled_side_by_side(
    requested: list[list[str]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    few = [(f"new {at}", graph_of(at)) for at in range(3)]
    done = [(f"done {at}", graph_of(at)) for at in range(9)]
    with caplog.at_level(logging.INFO, logger="remate_runtime"):
        workers.prepare([*few, *done])
        assert not requested
        workers.prepare([*few, *done, ("last", graph_of(3))])
    assert requested == [["last", "new 2", "new 1", "new 0"]]  # the largest first
    assert "compiling 4 functions in 4 processes" in caplog.text
    assert "1 of 4 functions compiled\n" in caplog.text
    assert "4 of 4 functions compiled; failed: no luck" in caplog.text
    monkeypatch.setattr(workers, "processes", lambda: 1)
    workers.prepare([*few, ("last", graph_of(3))])
    assert len(requested) == 1


SCRIPT = """
import logging, sys
logging.basicConfig(stream=sys.stdout, format="%(message)s")
logging.getLogger("remate_runtime").setLevel(logging.INFO)
from remate_runtime.engine.compiled import workers
from tests.runtime.compiled.test_workers import planned, misses
workers.processes, workers._WORTHWHILE = lambda: 2, 2
planned(0.8125)
print("misses:", misses())
"""


def planned(at: float) -> tuple[Any, nn.Module]:
    model = seeded(Layers(at))
    return apply(copy.deepcopy(model), in_blocks(model, (data(4, 8),), just_in_time), engine="compiled"), model


@pytest.mark.slow
def test_processes_compile_what_this_one_then_takes() -> None:
    printed = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True).stdout
    assert "compiling 2 functions in 2 processes\n1 of 2 functions compiled\n2 of 2 functions compiled\n" in printed
    assert "misses: 0" in printed


@pytest.mark.slow
def test_what_processes_fail_at_is_compiled_here(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workers, "processes", lambda: 2)
    monkeypatch.setattr(workers, "_WORTHWHILE", 2)
    monkeypatch.setattr(inductor, "_compile_here", divmod)  # refuses what it is given
    with caplog.at_level(logging.INFO, logger="remate_runtime"):
        result, model = planned(0.625)
    assert "2 of 2 functions compiled; failed: TypeError" in caplog.text
    assert "is interpreted" not in caplog.text
    assert_same(step(result, (data(4, 8),)), step(model, (data(4, 8),)), 1e-5)


def test_a_process_that_ends_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It imports what is beside the script, as a file that is called like a module of the standard library."""
    (tmp_path / "linecache.py").write_text("raise SystemExit(1)")
    monkeypatch.syspath_prepend(str(tmp_path))
    jobs = [("x" * 100_000,) for _ in range(8)]  # more than a pipe holds
    reasons = list(inductor.compile_side_by_side(jobs, 2))
    assert reasons
    assert {*reasons} <= {"SubprocPool closed", "the process that compiles ended"}
    assert capfd.readouterr().err == ""


def test_pipe_ends_that_torch_closes_are_not_closed_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Torch closes them from 2.14 on. Their numbers may be those of other files by then."""
    from torch._inductor.compile_worker import subproc_pool

    class Closing(subproc_pool.SubprocPool):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            given: Any = self.process.args
            self.ends = [int(value) for name, _, value in (each.partition("=") for each in given) if name in ENDS]
            for end in self.ends:
                with suppress(OSError):
                    os.close(end)
            os.dup2(other.fileno(), self.ends[0])
            pools.append(self)

    pools: list[Closing] = []
    monkeypatch.setattr(subproc_pool, "SubprocPool", Closing)
    with (tmp_path / "other").open("w") as other:
        list(inductor.compile_side_by_side([(1,)], 2))
        first, second = pools[0].ends
        assert os.path.samestat(os.fstat(first), os.fstat(other.fileno()))
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(second)
        os.close(first)


def functions(layers: int) -> int:
    """How many different functions a GPT-2 of so many layers wants."""
    model, args, kwargs = ZOO["gpt2"].build(layers=layers, width=8, heads=1, batch=1, length=4, vocab=11)
    step_ = linked_step(in_blocks(model, args, just_in_time, kwargs))
    rows, left = computations(step_.linked)
    fitted = fit(step_, rows, left, Artefacts())
    return len({segment.function.key for row in fitted.sections for segment in row if segment.function is not None})


@pytest.mark.slow
@pytest.mark.usefixtures("wasteful")
def test_gpt2_wants_as_few_functions_with_twelve_layers_as_with_six() -> None:
    assert functions(12) == functions(6)
