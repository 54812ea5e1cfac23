"""Checks of steps that page values to pinned memory, for any device. A GPU runs them (`test_cuda_pages.py`), and so does
the CPU, whose lanes delay each copy (`test_host_pages.py`)."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import remate
from remate.step_measurement.allocator import compare_times, peak_bytes
from remate_runtime import apply, predicted_peak
from remate_runtime.applied import measured_pages
from remate_runtime.engine.eager.page_copies import Away
from remate_runtime.errors import ExecutionError
from remate_runtime.flat_step.expansion import expand
from remate_runtime.flat_step.graph import Graph
from remate_runtime.flat_step.page_rules import held_outside, stays
from remate_runtime.format.schedule import Page, Schedule
from remate_runtime.link.linker import link
from remate_runtime.link.simulator import Timeline, simulate

from .small import Layers, data, seeded
from .stepping import Recomputes, assert_same, no_recomputes, schedule_of, step


class Dropping(nn.Module):
    """Dropout, a batch norm whose buffers are updated, and reads of a value far apart."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(64, 128), nn.Linear(128, 128), nn.Linear(128, 64)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.drop(torch.nn.functional.gelu(self.a(x)))
        h = h + self.drop(torch.sigmoid(self.b(h)))
        return (self.c(h) * x).pow(2).mean()


class Strided(nn.Module):
    """Kept tensors have gaps, are transposed or channels-last, or have two bytes per element."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.lin = nn.Conv2d(4, 8, 3, padding=1), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        y = torch.tanh(self.conv(x)).bfloat16()
        z = torch.sigmoid(y.permute(0, 2, 3, 1).float().exp().transpose(1, 2))
        return self.lin(z).sin().pow(2).mean()


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layers": (Layers, (512, 64)),
    "dropping": (Dropping, (256, 64)),
    "strided": (Strided, (4, 4, 12, 12)),
}


def made(name: str, device: str) -> tuple[nn.Module, torch.Tensor]:
    make, shape = MODELS[name]
    return seeded(make()).to(device), data(*shape).to(device)


def able(graph: Graph) -> list[int]:
    """Results of forward that can leave."""
    held = held_outside(graph)
    return [
        at
        for at, value in enumerate(graph.values)
        if not stays(graph, at, held) and 0 <= value.producer < graph.backward_start
    ]


def with_pages(schedule: Schedule, pages: Sequence[Page]) -> Schedule:
    return replace(schedule, statements=(*schedule.statements, *pages), requires=("page",))


def paged(schedule: Schedule, points: bool) -> Schedule:
    """The schedule with every value paged that can leave. points: the copies get time, as plans give it to them."""
    graph = expand(schedule).graph
    forward, ops = graph.backward_start, graph.operations
    pages = []
    for value in able(graph):
        reads = [at for at, op in enumerate(ops) if any(graph.root[v] == value for v in op.reads)]
        later = [at for at in reads if at >= forward]
        name = graph.values[value].name
        gone = max([at for at in reads if at < forward], default=graph.values[value].producer) + 3
        if points and later and gone < forward and later[0] - 4 > forward:
            pages.append(Page((name,), "host", "", ops[gone].id, ops[later[0] - 4].id))
        else:
            pages.append(Page((name,), "host"))
    return with_pages(schedule, pages)


def timeline_of(schedule: Schedule) -> Timeline:
    written = expand(schedule)
    return simulate(link(written.graph, written.recomputes, written.pages))


def steps_equal(name: str, device: str, recomputes: Recomputes, points: bool, tolerance: float = 0.0) -> None:
    """Several steps equal those without pages to the bit, and eager's."""
    model, x = made(name, device)
    plain = schedule_of(model, (x,), recomputes=recomputes)
    schedule = paged(plain, points)
    assert timeline_of(schedule).paged["host"] > 0
    unpaged, planned = apply(copy.deepcopy(model), plain), apply(copy.deepcopy(model), schedule)
    for seed in range(4):
        actual = step(planned, (x,), seed=seed)
        assert_same(actual, step(unpaged, (x,), seed=seed))
        assert_same(actual, step(model, (x,), seed=seed), tolerance=tolerance)
    out, back = sorted(measured_pages(planned), key=lambda lane: lane.direction == "back")
    assert out.nbytes == back.nbytes > 0
    assert out.copies == back.copies == sum(lane.copies for lane in timeline_of(schedule).lanes) // 2


def losses_go_down(device: str) -> None:
    """An optimizer between steps, with the parameters of eager after each."""
    model, x = made("dropping", device)
    eager = copy.deepcopy(model)
    planned = apply(model, paged(schedule_of(model, (x,), recomputes=no_recomputes), True))
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.01, momentum=0.9) for one in (planned, eager)]
    losses = []
    for seed in range(6):
        for one, optimizer in zip((planned, eager), optimizers, strict=True):
            losses.append(step(one, (x,), seed=seed)["loss"])
            optimizer.step()
    for ours, theirs in zip(losses[::2], losses[1::2], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert losses[-1] < losses[0]


def two_forwards_in_flight(device: str, order: Sequence[int]) -> None:
    """order: of the two backwards."""
    model, first = made("layers", device)
    second = data(512, 64, seed=2).to(device)
    plain = schedule_of(model, (first,), recomputes=no_recomputes)
    planned, unpaged = apply(copy.deepcopy(model), paged(plain, True)), apply(model, plain)
    for _ in range(2):
        for module in (planned, unpaged):
            losses = module(first), module(second)
            for at in order:
                losses[at].backward()
    gradients = [{n: p.grad for n, p in module.named_parameters()} for module in (planned, unpaged)]
    assert_same(gradients[0], gradients[1])


def peak_is_the_prediction(device: str, points: bool, name: str = "layers") -> None:
    """Of steps after the first one, in which libraries allocate workspaces."""
    model, _ = made(name, device)
    x = data(8192, 64).to(device)
    schedule = paged(schedule_of(model, (x,), recomputes=no_recomputes), points)
    planned = apply(model, schedule)

    def run() -> None:
        planned(x).backward()

    for _ in range(3):
        model.zero_grad()
        gc.collect()
        peak = peak_bytes(run, device)
    predicted = predicted_peak(planned)
    slack = 0 if device == "cpu" else predicted // 100 + (1 << 20)
    assert abs(peak - predicted) <= slack, (peak, predicted)
    assert predicted < timeline_of(schedule_of(model, (x,), recomputes=no_recomputes)).peak


class StoppedError(Exception):
    """In place of a device without memory."""


def given_up_steps_do_no_harm(device: str) -> None:
    """Forwards without a backward, and steps that fail in the middle, while copies are running."""
    model, x = made("layers", device)
    plain = schedule_of(model, (x,), recomputes=no_recomputes)
    schedule = paged(plain, True)
    planned, unpaged = apply(copy.deepcopy(model), schedule), apply(model, plain)
    wanted = step(unpaged, (x,))
    trips = sum(lane.copies for lane in timeline_of(schedule).lanes) // 2
    for stop_at in range(1, trips, 2):
        for method in ("of", "empty"):
            planned(x)
            _stop(planned, x, method, stop_at)
            junk = [torch.full((512, 64), 7.0, device=device) for _ in range(16)]  # takes what was freed
            assert_same(step(planned, (x,)), wanted)
            assert all((tensor == 7.0).all() for tensor in junk), "a copy of a step that was given up wrote here"


def _stop(planned: nn.Module, x: torch.Tensor, method: str, at: int) -> None:
    """Let a step fail at a copy: out ("of") or back ("empty")."""
    original, calls = getattr(Away, method), list[int]()

    def failing(of: Any) -> Any:
        calls.append(0)
        if len(calls) == at:
            raise StoppedError
        return original(of)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Away, method, staticmethod(failing) if method == "of" else failing)
        with pytest.raises(StoppedError):
            planned(x).backward()


def pinned_memory_is_missing(device: str, lanes: type) -> None:
    """lanes: whose `pinned` is replaced."""
    model, x = made("dropping", device)
    plain = schedule_of(model, (x,), recomputes=no_recomputes)
    planned, unpaged = apply(copy.deepcopy(model), paged(plain, True)), apply(model, plain)

    def none(self: Any, nbytes: int) -> torch.Tensor:
        raise RuntimeError("CUDA error: out of memory\nmore text")

    state = torch.get_rng_state()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes, "pinned", none)
        with pytest.raises(ExecutionError, match=r"pinned memory.*out of memory\n.*host_budget.*nothing has run yet"):
            planned(x)
    assert torch.equal(torch.get_rng_state(), state)
    assert_same(step(planned, (x,)), step(unpaged, (x,)))


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        weights = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1)
        x = x + self.out((self.drop(weights) @ v).transpose(1, 2).flatten(2))
        return x + self.drop(self.mlp(x))


class Gpt(nn.Module):
    """Like GPT, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.blocks = nn.Embedding(256, 128), nn.ModuleList(Attention(128) for _ in range(6))
        self.head = nn.Linear(128, 256)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = [
            layer
            for at in range(6)
            for layer in (nn.Conv2d(3 if at == 0 else 32, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.SiLU())
        ]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).pow(2).mean()


class Large(nn.Module):
    """Layers with large results."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.Tanh())))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).mean()


PLANNED: dict[str, Callable[[str], tuple[nn.Module, torch.Tensor]]] = {
    "gpt": lambda device: (Gpt().to(device), torch.randint(256, (8, 128), device=device)),
    "convolutions": lambda device: (Convolutions().to(device), torch.randn(8, 3, 64, 64, device=device)),
}


def planned_steps_equal(name: str, device: str, tolerance: float, **options: Any) -> None:
    """A plan with pages alone, so that there are some however fast the device is. tolerance: of eager's steps."""
    torch.manual_seed(0)
    model, x = PLANNED[name](device)
    options = {"budget": "70%", "strategy": "offload-only", **options}
    schedule = to_host(remate.plan(model, (x,), progress=None, **options))
    assert timeline_of(schedule).paged["host"] > 0
    planned, unpaged = apply(copy.deepcopy(model), schedule), apply(copy.deepcopy(model), without_pages(schedule))
    for seed in range(3):
        actual = step(planned, (x,), seed=seed)
        assert_same(actual, step(model, (x,), seed=seed), tolerance=tolerance)
        if not tolerance or name == "gpt":  # cuDNN may choose another convolution
            assert_same(actual, step(unpaged, (x,), seed=seed), tolerance=tolerance)
    for _ in range(2):
        planned.zero_grad()
        gc.collect()
        peak = peak_bytes(lambda: planned(x).backward(), device)
    predicted = predicted_peak(planned)
    assert peak <= (predicted if device == "cpu" else 1.01 * predicted + (1 << 20)), (peak, predicted)
    assert predicted <= 0.7 * schedule.baseline_peak_bytes


def to_host(schedule: Any) -> Schedule:
    """The schedule with all pages to the host, also those that were planned to the disk of a CPU."""
    statements = [replace(one, to="host") if isinstance(one, Page) else one for one in schedule.statements]
    return replace(schedule, statements=tuple(statements))


def without_pages(schedule: Schedule) -> Schedule:
    kept = tuple(statement for statement in schedule.statements if not isinstance(statement, Page))
    solve = replace(schedule.solve, budget=1 << 60)  # no warning that it takes more
    return replace(schedule, statements=kept, requires=(), solve=solve)


def first(schedule: Schedule) -> str:
    """The first value that can leave."""
    graph = expand(schedule).graph
    return graph.values[able(graph)[0]].name


def copies_overlap(device: str, rows: int, width: int, layers: int, **options: Any) -> None:
    """Large layers whose products take longer than the copies of their results: a plan lets most of the results leave,
    the peak is what it says, and the step waits for few of the copies."""
    torch.manual_seed(0)
    model, x = Large(width, layers).to(device), torch.randn(rows, width, device=device)
    options = {"budget": "60%", "strategy": "offload-only", "host_budget": "16GiB", **options}
    schedule = to_host(remate.plan(model, (x,), progress=None, **options))
    planned, unpaged = apply(copy.deepcopy(model), schedule), apply(model, without_pages(schedule))

    def run(of: nn.Module) -> Callable[[], None]:
        return lambda: of(x).backward()

    peaks = {}
    for name, one in (("paged", planned), ("unpaged", unpaged)):
        for _ in range(3):
            one.zero_grad()
            gc.collect()
            peaks[name] = peak_bytes(run(one), device)
    assert_same({n: p.grad for n, p in planned.named_parameters()}, {n: p.grad for n, p in unpaged.named_parameters()})
    predicted = predicted_peak(planned)
    most = predicted + (64 if device == "cpu" else predicted // 100 + (1 << 20))
    assert 0.95 * predicted <= peaks["paged"] <= most, (peaks, predicted)
    assert peaks["paged"] <= 0.65 * peaks["unpaged"]
    for one in (planned, unpaged):
        one.zero_grad()
    times = compare_times({"unpaged": run(unpaged), "paged": run(planned)}, 5, device)
    run(planned)()
    moved = {lane.direction: lane for lane in measured_pages(planned)}
    lane = schedule.lanes["disk" if "host" not in schedule.lanes else "host"]
    alone = sum(moved[name].nbytes / speed * 1e9 for name, speed in (("out", lane.out), ("back", lane.back)))
    waited = sum(one.waited for one in moved.values())
    extra = times.median["paged"] - times.median["unpaged"]
    print(  # of a measurement: pytest -s
        f"{device}: {moved['out'].nbytes / 2**20:,.0f} MiB each way in {moved['out'].copies} copies; peak "
        f"{peaks['paged'] / 2**20:,.0f} of {peaks['unpaged'] / 2**20:,.0f} MiB; predicted "
        f"{predicted / 2**20:,.0f}; copies alone {alone / 1e6:.2f} ms, waited {waited / 1e6:.2f} ms, step "
        f"{times.median['paged'] / 1e6:.2f} ms, without pages {times.median['unpaged'] / 1e6:.2f} ms, lane "
        f"{lane.out / 1e9:.1f} GB/s (85%)"
    )
    assert moved["out"].nbytes >= 0.3 * peaks["unpaged"]
    if device != "cpu":
        assert waited <= 0.5 * alone
        assert extra <= 0.5 * alone
