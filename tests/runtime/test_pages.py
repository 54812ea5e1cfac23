"""Paged values on the CPU: results are eager's to the bit, bytes are the predicted ones, and whatever fails leaves
training as it was."""

from __future__ import annotations

import copy
import errno
import gc
import os
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from torch import nn

import remate_runtime
from remate.step_measurement.allocator import peak_bytes
from remate_runtime import apply
from remate_runtime.engine.eager import pages as paging
from remate_runtime.errors import EngineError, ExecutionError
from remate_runtime.flat_step.expansion import expand
from remate_runtime.flat_step.graph import FlatRecompute, Graph
from remate_runtime.flat_step.page_rules import held_outside, is_paged_gradient, is_parameter, stays
from remate_runtime.format.schedule import Page, Recompute, Schedule
from remate_runtime.link.linker import link
from remate_runtime.link.simulator import simulate

from .random_models import Case, case_of
from .small import Layers, data, seeded
from .stepping import assert_same, everything, no_recomputes, schedule_of, step, with_recomputes
from .test_random_recomputes import _CAPTURED, _MODEL, _WANTED, _X

pytestmark = pytest.mark.eager


def able(graph: Graph) -> list[int]:
    held = held_outside(graph)
    return [value for value in range(len(graph.values)) if not stays(graph, value, held)]


def with_pages(schedule: Schedule, pages: Sequence[Page]) -> Schedule:
    return replace(schedule, statements=(*schedule.statements, *pages), requires=("page",))


def everything_paged(schedule: Schedule) -> Schedule:
    graph = expand(schedule).graph
    return with_pages(schedule, [Page(tuple(graph.values[value].name for value in able(graph)))])


CASES = 8


@st.composite
def edits(draw: st.DrawFn) -> tuple[Case, Schedule]:
    """A model, and its schedule after random edits. Number 0 is a model that has everything, others are random."""
    number = draw(st.integers(0, CASES))
    case = case_of(number) if number else Case(_MODEL, _X, _CAPTURED, _WANTED)
    graph = case.captured.graph
    forward = [i for i in range(graph.backward_start) if not graph.operations[i].view]
    last = len(graph.operations) - 1
    recomputes = draw(
        st.lists(
            st.sampled_from(forward).flatmap(
                lambda op: st.builds(FlatRecompute, st.just(op), st.integers(op + 1, last))
            ),
            max_size=12,
        )
    )
    schedule = with_recomputes(case.captured, lambda _: sorted(recomputes, key=lambda one: one.before))
    written = expand(schedule).graph  # its values have the names of the file
    pages = []
    for value in draw(st.lists(st.sampled_from(able(written)), min_size=1, max_size=12)):
        if is_paged_gradient(written, value):
            pages.append(Page((written.values[value].name,)))
            continue
        first = written.values[value].producer + 1
        points = sorted(draw(st.lists(st.integers(first, last), min_size=3, max_size=3, unique=True)))
        ids = [written.operations[point].id if draw(st.booleans()) else "" for point in points]
        if is_parameter(written, value):
            ids[0] = ""
        pages.append(Page((written.values[value].name,), "disk", *ids))
    return case, with_pages(schedule, pages)


@pytest.mark.slow
@settings(max_examples=30)
@given(edits())
def test_any_pages_and_recomputes_give_eager_s_step(edited):
    case, schedule = edited
    planned = apply(copy.deepcopy(case.model), schedule)
    for seed, wanted in enumerate(case.wanted):
        assert_same(step(planned, (case.x,), seed=seed), wanted)
    with torch.no_grad():
        planned(case.x)


class Strided(nn.Module):
    """Kept tensors have gaps, are transposed or channels-last, or have dtypes that numpy does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.lin = nn.Conv2d(4, 8, 3, padding=1), nn.Linear(8, 8)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.conv(x)).bfloat16()
        z = torch.sigmoid(y.permute(0, 2, 3, 1).float().exp().transpose(1, 2))
        return self.lin(z).sin().pow(2).mean()


def test_storages_come_back_as_they_were():
    model, x = seeded(Strided()), data(2, 4, 6, 6).contiguous(memory_format=torch.channels_last)
    eager = copy.deepcopy(model)
    planned = apply(model, everything_paged(schedule_of(model, (x,), recomputes=no_recomputes)))
    for _ in range(2):
        assert_same(step(planned, (x,)), step(eager, (x,)))


@pytest.mark.slow
@pytest.mark.parametrize("recomputes", [no_recomputes, everything])
@pytest.mark.allocating
def test_measured_peak_is_the_predicted_one(recomputes):
    """To the byte, in every step, and less than without pages."""
    model, x = seeded(Layers()), data(512, 64)
    schedule = schedule_of(model, (x,), recomputes=recomputes)
    paged = everything_paged(schedule)
    if recomputes is no_recomputes:
        written = expand(paged)
        paged_peak = simulate(link(written.graph, written.recomputes, written.pages)).peak
        assert paged_peak < simulate(link(written.graph)).peak
    planned = apply(model, paged)

    def run() -> None:
        planned(x).backward()

    for _ in range(3):
        model.zero_grad()
        gc.collect()
        peak = peak_bytes(run)
        if _:
            assert peak == remate_runtime.predicted_peak(planned)


def test_forwards_that_overlap_have_pages_of_their_own():
    model, first, second = seeded(Layers()), data(16, 64), data(16, 64, seed=2)
    eager = copy.deepcopy(model)
    planned = apply(model, everything_paged(schedule_of(model, (first,), recomputes=no_recomputes)))
    for module in (planned, eager):
        a, b = module(first), module(second)
        b.backward()
        a.backward()
    assert_same({n: p.grad for n, p in model.named_parameters()}, {n: p.grad for n, p in eager.named_parameters()})


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0


@pytest.mark.slow
def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model, x = seeded(Layers()), data(16, 64)
    planned = apply(model, everything_paged(schedule_of(model, (x,), recomputes=no_recomputes)))
    step(planned, (x,))
    before = descriptors()
    for _ in range(3):
        step(planned, (x,))
        planned(x)  # without a backward
        assert list(tmp_path.iterdir()) == []
    assert descriptors() == before
    assert sum(thread.name.startswith("remate-page") for thread in threading.enumerate()) >= 2
    del planned, model


def dropping() -> nn.Module:
    return seeded(copy.deepcopy(_MODEL))


@pytest.fixture
def paged_model():
    model = dropping()
    return apply(model, everything_paged(with_recomputes(_CAPTURED, no_recomputes)))


def copies(model: nn.Module) -> int:
    """Count those of a step after the first one, in which parameters move to files."""
    step(model, (_X,))
    calls = []
    move = paging._Copy._move

    def counted(copy_: paging._Copy) -> None:
        calls.append(copy_)
        move(copy_)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paging._Copy, "_move", counted)
        step(model, (_X,))
    return len(calls)


def train(model: nn.Module, ended: list[bool]) -> None:
    """ended: gets an entry when forward is over."""
    loss = model(_X)[0]
    ended.append(True)
    loss.backward()


@pytest.mark.slow
def test_a_fault_at_every_copy_leaves_training_unharmed(paged_model, monkeypatch):
    """Each copy fails in turn. The generator and the buffers are as before where forward fails; the next step is
    eager's."""
    model, total = paged_model, copies(paged_model)
    assert total >= 10
    move = paging._Copy._move
    before = descriptors()
    for bad in range(total):
        model.load_state_dict(dropping().state_dict())
        seen = []

        def failing(copy_: paging._Copy, seen: list[int] = seen, bad: int = bad) -> None:
            seen.append(0)
            if len(seen) == bad + 1:
                raise OSError(errno.EIO, "Input/output error")
            move(copy_)

        torch.manual_seed(0)
        state, buffers = torch.get_rng_state(), {n: b.clone() for n, b in model.named_buffers()}
        ended: list[bool] = []
        with monkeypatch.context() as patch:
            patch.setattr(paging._Copy, "_move", failing)
            with pytest.raises(
                ExecutionError, match=r"cannot be paged (to|from) the scratch file.*Input/output"
            ) as caught:
                train(model, ended)
        assert "clear the gradients and call it again" in str(caught.value)
        if not ended:
            assert torch.equal(torch.get_rng_state(), state)
            for name, buffer in model.named_buffers():
                assert torch.equal(buffer, buffers[name])
        model.load_state_dict(dropping().state_dict())
        assert_same(step(model, (_X,)), _WANTED[0])
    del caught
    assert descriptors() == before


def test_a_full_disk_is_noticed_before_anything_runs(paged_model, monkeypatch):
    def full(number: int, offset: int, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    state = torch.get_rng_state()
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(ExecutionError, match=r"No space left on device\n.*TMPDIR.*nothing has run yet"):
            paged_model(_X)
    assert torch.equal(torch.get_rng_state(), state)
    paged_model.load_state_dict(dropping().state_dict())
    assert_same(step(paged_model, (_X,)), _WANTED[0])


@pytest.mark.slow
def test_an_exception_elsewhere_in_the_step_leaves_nothing_behind(paged_model):
    class StoppedError(Exception):
        pass

    def stop(gradient: torch.Tensor) -> None:
        raise StoppedError

    step(paged_model, (_X,))
    before = descriptors()
    handle = next(paged_model.parameters()).register_hook(stop)
    with pytest.raises(StoppedError):
        paged_model(_X)[0].backward()
    handle.remove()
    paged_model.load_state_dict(dropping().state_dict())
    assert_same(step(paged_model, (_X,)), _WANTED[0])
    assert descriptors() == before


@pytest.mark.skipif(torch.version.cuda is not None, reason="autograd of a CUDA build does not go on after a fork")
def test_after_a_fork_a_step_pages_with_threads_of_its_own(paged_model):
    step(paged_model, (_X,))
    child = os.fork()
    if not child:
        try:
            paged_model.load_state_dict(dropping().state_dict())
            assert_same(step(paged_model, (_X,)), _WANTED[0])
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_memory_of_the_host_is_refused_on_a_cpu():
    schedule = with_recomputes(_CAPTURED, no_recomputes)
    name = next(
        expand(schedule).graph.values[v].name
        for v in able(expand(schedule).graph)
        if "conv" in expand(schedule).graph.values[v].name
    )
    with pytest.raises(EngineError, match=r'"disk"'):
        apply(dropping(), with_pages(schedule, [Page((name,), "host")]))


@pytest.mark.parametrize("engine", ["compiled", "arena"])
def test_other_engines_refuse_with_the_reason(engine):
    schedule = everything_paged(with_recomputes(_CAPTURED, no_recomputes))
    with pytest.raises(EngineError, match=r"does not page values.*\n.*eager"):
        apply(dropping(), schedule, engine=engine)


def test_the_engine_auto_interprets():
    planned = apply(dropping(), everything_paged(with_recomputes(_CAPTURED, no_recomputes)), engine="auto")
    assert_same(step(planned, (_X,)), _WANTED[0])


def test_a_frozen_parameter_keeps_the_pages():
    schedule = everything_paged(with_recomputes(_CAPTURED, no_recomputes))
    model, eager = dropping(), dropping()
    for one in (model, eager):
        next(one.parameters()).requires_grad_(False)
    assert_same(step(apply(model, schedule), (_X,)), step(eager, (_X,)))


def test_a_value_is_paged_recomputed_and_kept_in_one_step():
    model, x = seeded(Layers()), data(16, 64)
    schedule = schedule_of(model, (x,), recomputes=no_recomputes)
    graph = expand(schedule).graph
    tanh = [op for op in graph.operations[: graph.backward_start] if op.op == "aten.tanh"]
    readers = [op for op in graph.operations[graph.backward_start :] if op.op == "aten.tanh_backward"]
    statements = (
        Page((tanh[0].id,), gone=tanh[2].id, back=readers[0].id),
        Recompute((tanh[0].id,), readers[-1].id),
    )
    eager = copy.deepcopy(model)
    planned = apply(model, replace(schedule, statements=statements, requires=("page",)))
    assert_same(step(planned, (x,)), step(eager, (x,)))
