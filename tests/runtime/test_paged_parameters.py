"""Parameters and gradients that are paged: training is eager's to the bit in every loop, bytes are the predicted ones, and
whoever looks at such a tensor finds its contents."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from remate.step_measurement.allocator import peak_bytes
from remate_runtime import apply
from remate_runtime.applied import measured_pages
from remate_runtime.engine.eager import mapped
from remate_runtime.engine.eager import pages as paging
from remate_runtime.errors import ExecutionError
from remate_runtime.flat_step.expansion import expand
from remate_runtime.flat_step.page_rules import is_paged_gradient, is_parameter
from remate_runtime.format.schedule import Page, Schedule
from remate_runtime.link.linker import link
from remate_runtime.link.simulator import simulate

from .small import data, seeded
from .stepping import no_recomputes, schedule_of
from .test_pages import able, everything_paged, with_pages

pytestmark = pytest.mark.eager
Loop = Callable[[nn.Module], None]


class Tied(nn.Module):
    """One weight is read three times, one layer twice; a bias is so small that it does not matter."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle = nn.Linear(96, 256), nn.Linear(256, 256)
        self.last = nn.Linear(256, 96, bias=False)
        self.norm = nn.LayerNorm(256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.middle(torch.relu(self.middle(torch.relu(self.first(x))))))
        return (self.last(self.norm(y)) @ self.last.weight).tanh().pow(2).mean()


def weights_paged(model: nn.Module, x: torch.Tensor, gradients: bool = True) -> Schedule:
    """Every parameter is away whenever nothing reads it."""
    schedule = schedule_of(model, (x,), recomputes=no_recomputes)
    graph = expand(schedule).graph
    values = [v for v in able(graph) if is_parameter(graph, v) or (gradients and is_paged_gradient(graph, v))]
    return with_pages(schedule, [Page(tuple(graph.values[v].name for v in values))])


def batches() -> list[torch.Tensor]:
    return [data(8, 96), data(8, 96) + 1, data(8, 96) * 2]


def plain(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for x in batches():
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()


def accumulating(model: nn.Module) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for x in batches():
        for part in x.chunk(2):
            model(torch.cat([part, part])).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def in_backward(model: nn.Module) -> None:
    def update(parameter: torch.Tensor) -> None:
        with torch.no_grad():
            parameter -= 0.1 * parameter.grad  # type: ignore[operator]
        parameter.grad = None

    handles = [parameter.register_post_accumulate_grad_hook(update) for parameter in model.parameters()]
    for x in batches():
        model(x).backward()
    for handle in handles:
        handle.remove()


def same(model: nn.Module, eager: nn.Module) -> None:
    for (name, one), other in zip(model.named_parameters(), eager.parameters(), strict=True):
        assert torch.equal(one, other), name
        assert (one.grad is None) == (other.grad is None), name
        assert one.grad is None or (other.grad is not None and torch.equal(one.grad, other.grad)), name


@pytest.mark.quick("False-in_backward")
@pytest.mark.parametrize("loop", [plain, accumulating, in_backward])
@pytest.mark.parametrize("gradients", [False, True])
def test_a_loop_trains_as_in_eager(loop: Loop, gradients: bool) -> None:
    model = seeded(Tied())
    eager = copy.deepcopy(model)
    planned = apply(model, weights_paged(model, data(8, 96), gradients))
    kept = list(model.parameters())
    for _ in range(2):
        loop(planned)
        loop(eager)
        same(model, eager)
    assert all(one is other for one, other in zip(model.parameters(), kept, strict=True))
    loaded = seeded(Tied())
    loaded.load_state_dict(model.state_dict())
    same_values = zip(loaded.parameters(), eager.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in same_values)


@pytest.mark.quick("False")
@pytest.mark.parametrize("gradients", [False, True])
def test_the_peak_with_parameters_is_the_predicted_one(gradients: bool) -> None:
    model = seeded(Tied())
    schedule = weights_paged(model, data(8, 96), gradients)
    expanded = expand(schedule)
    linked = link(expanded.graph, expanded.recomputes, expanded.pages)
    timeline, planned, x = simulate(linked), apply(model, schedule), data(8, 96)
    planned(x).backward()
    model.zero_grad()
    measured = peak_bytes(lambda: planned(x).backward())
    assert abs(measured - timeline.peak) <= 64
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    paged = parameters + gradients * sum(p.nbytes for p in model.parameters() if p.grad is not None)
    assert timeline.paged["disk"] == paged
    assert timeline.peak < simulate(link(expanded.graph)).peak + parameters


@pytest.mark.quick("everything_paged")
@pytest.mark.parametrize("paged", [everything_paged, None])
def test_what_is_moved_is_measured(paged: Callable[[Schedule], Schedule] | None) -> None:
    """In each step anew, and as much as predicted."""
    model, x = seeded(Tied()), data(8, 96)
    schedule = weights_paged(model, x) if paged is None else paged(schedule_of(model, (x,), recomputes=no_recomputes))
    expanded = expand(schedule)
    lanes = simulate(link(expanded.graph, expanded.recomputes, expanded.pages)).lanes
    planned = apply(model, schedule)
    for _ in range(2):
        planned(x).backward()
        measured = {lane.direction: lane for lane in measured_pages(planned)}
        assert {lane.direction: (lane.nbytes, lane.copies) for lane in lanes} == {
            direction: (lane.nbytes, lane.copies) for direction, lane in measured.items()
        }
        assert all(lane.waited > 0 for lane in measured.values())


@pytest.mark.slow
def test_bytes_leave_the_process() -> None:
    """After a step, no page of the parameters is mapped."""
    model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(4)))
    planned = apply(model, weights_paged(model, data(2, 1024)))

    def resident() -> int:
        found, inside = 0, False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            if line[:8].rstrip(":")[-1:].isalnum() and "-" in line.split()[0]:
                inside = "(deleted)" in line
            elif inside and line.startswith("Rss:"):
                found += int(line.split()[1]) << 10
        return found

    before = resident()  # of other tests in this process
    planned(data(2, 1024)).sum().backward()
    assert resident() - before < 1 << 20
    total = sum(parameter.sum().item() for parameter in model.parameters())
    assert resident() - before >= 16 << 20
    planned(data(2, 1024)).sum().backward()
    assert total == sum(parameter.sum().item() for parameter in model.parameters())


def test_another_view_of_a_parameter_is_noticed() -> None:
    """It would not see later updates: refused, as long as there is one."""
    model = seeded(Tied())
    planned, x = apply(model, weights_paged(model, data(8, 96))), data(8, 96)
    view = model.first.weight.detach()
    with pytest.raises(ExecutionError, match=r"first.weight cannot be paged: another tensor shares its storage"):
        planned(x)
    del view
    planned(x).backward()
    model.last.weight.data = torch.zeros(97, 256)[1:]
    with pytest.raises(ExecutionError, match=r"last.weight cannot be paged: it is part of a larger storage"):
        planned(x)


def test_a_parameter_gets_a_file_again_when_it_was_exchanged(tmp_path: Path) -> None:
    """Also what torch.load maps is another's: what is written to it is in no file."""
    model = seeded(Tied())
    eager = copy.deepcopy(model)
    planned = apply(model, weights_paged(model, data(8, 96)))
    plain(planned)
    plain(eager)
    torch.save(model.state_dict(), tmp_path / "state.pt")
    model.load_state_dict(torch.load(tmp_path / "state.pt", mmap=True), assign=True)
    plain(planned)
    plain(eager)
    same(model, eager)


def test_a_fault_in_a_file_of_a_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is reported before anything runs; an unreadable page, by the step that needs it."""
    model, x = seeded(Tied()), data(8, 96)
    eager = copy.deepcopy(model)
    planned = apply(model, weights_paged(model, x))

    def full(copy_: paging._Copy) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(paging._Copy, "_move", full)
        with pytest.raises(ExecutionError, match=r"first.weight cannot be paged to the scratch file"):
            planned(x)
    plain(planned)
    advise = mapped._advise
    with monkeypatch.context() as patch:
        patch.setattr(mapped, "_advise", lambda t, advice: 5 if advice == mapped._FETCH else advise(t, advice))
        with pytest.raises(ExecutionError, match=r"cannot be paged from its file: Input/output error"):
            planned(x)
    with monkeypatch.context() as patch:  # an older kernel reads at the first touch
        patch.setattr(mapped, "_advise", lambda t, advice: 22 if advice == mapped._FETCH else advise(t, advice))
        plain(planned)
    for _ in range(2):
        plain(eager)
    same(model, eager)


def test_nothing_is_left_of_files() -> None:
    model, x = seeded(Tied()), data(8, 96)
    planned = apply(model, weights_paged(model, x))
    planned(x).backward()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        planned(x).backward()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_frozen_parameter_is_paged_and_gets_no_gradient() -> None:
    model, x = seeded(Tied()), data(8, 96)
    schedule = weights_paged(model, x)
    eager = copy.deepcopy(model)
    planned = apply(model, schedule)
    for one in (model, eager):
        one.first.weight.requires_grad_(False)
    planned(x).backward()
    eager(x).backward()
    same(model, eager)
    assert replace(schedule, statements=()) != schedule
