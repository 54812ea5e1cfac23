"""Convolutions in compiled steps: what only compiled segments see lies as Inductor likes, all else as the file
declares."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from remate.step_measurement.allocator import peak_bytes
from remate_runtime import apply, predicted_peak
from remate_runtime.engine.compiled import artefacts, inductor, kernel_units
from remate_runtime.engine.compiled.compiled_engine import computations
from remate_runtime.engine.compiled.inductor import with_strides_of
from remate_runtime.engine.compiled.layouts import channels_last, free_layouts, held_outside
from remate_runtime.engine.compiled.segments import cut
from remate_runtime.flat_step import expand
from remate_runtime.format.tensor_type import parse_type
from remate_runtime.link import link
from remate_runtime.operator_calls.overloads import laid_out

from ..small import data, seeded
from ..stepping import assert_same, in_blocks, just_in_time, no_recomputes, schedule_of, step
from .subjects import assert_close


class Pictures(nn.Module):
    """Convolutions, one of which the caller sees, one that dropout reads, and one that is joined with another and read
    in backward."""

    differentiate = ("*",)

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.drop = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Dropout(0.2)
        self.two, self.three, self.up = nn.Conv2d(8, 8, 3), nn.Conv2d(8, 4, 3), nn.Upsample(scale_factor=2)
        self.head = nn.Linear(4 * 8 * 8, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = torch.relu(self.norm(self.one(x)))
        second = self.two(self.drop(first))
        third = torch.relu(self.three(torch.tanh(second)) + second[:, :4, 1:-1, 1:-1])
        both = torch.cat([third, self.up(third[:, :, ::2, ::2])], 1)[:, :4]
        return self.head(both.flatten(1)).square().mean() + both.mean(), second


X = data(2, 3, 12, 12)
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as it is": lambda x: x,
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "turned": lambda x: x.transpose(2, 3),
}


def left_behind(model: nn.Module, x: torch.Tensor) -> dict[str, Any]:
    torch.manual_seed(0)
    model.zero_grad()
    loss, features = model(x)
    (loss + (features * torch.linspace(0, 1, 10)).sum()).backward()
    by_name = {"loss": loss.detach(), "features": features.detach(), "strides": torch.tensor(features.stride())}
    by_name |= {f"gradient {name}": p.grad for name, p in model.named_parameters()}
    by_name |= {f"buffer {name}": buffer.clone() for name, buffer in model.named_buffers()}
    return by_name


@pytest.mark.slow
def test_steps_of_convolutions_are_eagers() -> None:
    model, x = seeded(Pictures()).to(memory_format=torch.channels_last), LAYOUTS["channels last"](X)
    schedule, eager = in_blocks(model, (x,), just_in_time), model
    # A call in a different memory layout is computed in the planned one, where dropout draws other numbers than eager
    # PyTorch, which the self-check would report.
    compiled = apply(copy.deepcopy(model), schedule, engine="compiled", verify="never")
    for other in LAYOUTS.values():
        as_planned = torch.empty_strided(x.shape, x.stride()).copy_(other(X))
        assert_close(left_behind(compiled, other(X)), left_behind(eager, as_planned))

    def run() -> None:
        loss, _features = compiled(x)
        loss.backward()

    compiled.zero_grad()
    assert peak_bytes(run) == predicted_peak(compiled)


def test_what_others_see_lies_as_declared() -> None:
    written = expand(schedule_of(seeded(Pictures()), (X,), recomputes=no_recomputes))
    graph, linked = written.graph, link(written.graph, written.recomputes)
    rows, _ = computations(linked)
    interpreted = [first for row in rows for first in cut(graph, row, {}) if not first.compiled]
    free, seen = free_layouts(graph), held_outside(graph, interpreted)
    first, two, three = (op.writes[0] for op in graph.operations if op.op == "aten.convolution")
    assert {first, three} <= free - seen
    assert two in free  # slices of it contain the same elements in any layout
    assert two in seen  # but the caller has it
    (joined,) = (op.writes[0] for op in graph.operations if op.op == "aten.cat")
    assert joined not in free  # it is read in another shape
    (drawn,) = (op for op in graph.operations if op.random)
    assert {*drawn.reads, drawn.writes[0]} <= seen
    assert all(graph.root[value] in seen for _, value in graph.gradients)


class Pools(nn.Module):
    """Maxima of windows that overlap, leave gaps, hang over the edge, and lie in three dimensions; of others the caller
    sees the places. more: other windows."""

    def __init__(self, *more: nn.Module) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(2, 6, 3), nn.Conv2d(6, 6, 3, padding=1)
        gaps, holes = nn.MaxPool2d((2, 3), (3, 1), (1, 0), ceil_mode=True), nn.MaxPool2d(3, 1, dilation=2)
        self.pools, self.seen = nn.ModuleList((gaps, holes, *more)), nn.MaxPool2d(2, return_indices=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(self.one(x))
        z, places = self.seen(y)
        results = [self.two(pool(y)).square().mean() for pool in self.pools]
        deep = torch.max_pool3d(y.unsqueeze(1), (2, 3, 2), (1, 2, 2))
        return sum(results) + z.sum() + torch.tanh(deep).square().sum(), places


def test_places_of_maxima_are_passed_on_in_bytes() -> None:
    model = seeded(Pools(nn.MaxPool2d(2), nn.MaxPool2d(6, 1)))
    graph = expand(schedule_of(model, (data(2, 2, 14, 14),), recomputes=no_recomputes)).graph
    free = free_layouts(graph) - held_outside(graph, ())
    pools = [op.writes[1] for op in graph.operations if "max_pool" in op.op and "backward" not in op.op]
    left = [graph.values[owner].type.shape[2:] for owner in pools if owner is not None and owner not in free]
    assert len(pools) == 6
    assert sorted(left) == [(6, 6), (7, 7)]  # the caller's, and those of more elements than Inductor has kernels for


@pytest.mark.slow
def test_other_processes_compile_poolings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that have not imported what the operators are in."""
    x, model = data(2, 2, 8, 8), seeded(nn.Sequential(nn.Conv2d(2, 3, 3), nn.MaxPool2d(2), nn.Conv2d(3, 2, 1)))
    jobs: list[Any] = []

    def requested(*given: Any) -> Any:
        jobs.append(given)
        raise RuntimeError("not here")

    monkeypatch.setattr(artefacts, "compiled", requested)
    apply(model, schedule_of(model, (x,), recomputes=no_recomputes), engine="compiled")
    script = (
        "import pickle, sys\n"
        "from remate_runtime.engine.compiled import inductor\n"
        "inductor.compiled = lambda module, *rest: print('max_pool' in module.code)\n"
        "for job in pickle.load(sys.stdin.buffer): inductor._compile_here((1, {}), job)"
    )
    given = pickle.dumps([pickle.dumps(job) for job in jobs])
    done = subprocess.run([sys.executable, "-c", script], input=given, capture_output=True, check=False)
    assert done.stdout.split() == [b"True"] * len(jobs), done.stderr.decode()
    assert jobs


@pytest.mark.slow
def test_gradients_of_maxima_are_eagers() -> None:
    x, model = data(2, 2, 14, 14), seeded(Pools())
    compiled, eager = apply(copy.deepcopy(model), in_blocks(model, (x,), just_in_time), engine="compiled"), model
    for given in (x, x.to(memory_format=torch.channels_last), data(2, 2, 14, 14, seed=4)):
        results = []
        for module in (compiled, eager):
            module.zero_grad()
            loss, places = module(given)
            loss.backward()
            results.append({"places": places} | {f"gradient {n}": p.grad for n, p in module.named_parameters()})
        assert_close(*results)

    def run() -> None:
        loss, _places = compiled(x)
        loss.backward()

    compiled.zero_grad()
    assert peak_bytes(run) == predicted_peak(compiled)


@pytest.mark.parametrize("text", ["f32[2,3,4,5]", "f32[2,3,4,5]{60,1,15,3}", "f32[2,3,4,5]{60,20,1,4}"])
def test_results_are_laid_out_anew(text: str) -> None:
    kind = parse_type(text)
    for given in (data(2, 3, 4, 5), data(2, 3, 4, 5).to(memory_format=torch.channels_last)):
        result = with_strides_of(given, kind)
        assert laid_out(result, kind)
        assert torch.equal(result, given)


class Skip(nn.Module):
    """Three gradients meet in front of a norm, one of them of a pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.two, self.three = nn.Conv2d(16, 4, 3, bias=False), nn.Conv2d(16, 4, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = torch.relu(self.norm(self.one(x)))
        return self.two(nn.functional.max_pool2d(first, 2)).square().mean() + self.three(first).square().mean()


@pytest.mark.slow
def test_gradients_that_meet_in_front_of_a_norm_are_added_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not for its sums and for its result: they come in several layouts."""
    reads: list[int] = []
    for few in (2, 4):  # 4 is Inductor's own
        monkeypatch.setattr(inductor, "_FEW_READS", few)
        sources: list[str] = []
        monkeypatch.setattr(kernel_units, "_is_plain", lambda source, sources=sources: not sources.append(source))
        model, x = seeded(Skip()), data(2, 3, 12, 12)
        planned = apply(copy.deepcopy(model), schedule_of(model, (x,), recomputes=no_recomputes), engine="compiled")
        assert_same(step(planned, (x,)), step(model, (x,)), 1e-4)
        reads.append(sum(source.count("loadu(") for source in sources))
    assert reads[0] < reads[1]


class Pointwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.one, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (
            self.head(torch.tanh(self.one(torch.tanh(self.wide(x)).transpose(2, 3).contiguous())).mean((2, 3)))
            .square()
            .mean()
        )


@pytest.mark.slow
def test_strides_of_dimensions_of_size_1_choose_no_layout() -> None:
    """The weights of a convolution by 1 lie in either layout at once, and kernels take the one that their strides
    tell."""
    model, x = seeded(Pointwise()), data(2, 3, 6, 6)
    schedule = schedule_of(model, (x,), recomputes=just_in_time)
    model.one.weight = nn.Parameter(model.one.weight.detach().as_strided((8, 8, 1, 1), (8, 1, 8, 8)))
    planned = apply(copy.deepcopy(model), schedule, engine="compiled")
    for _ in range(2):
        assert_same(step(planned, (x,)), step(model, (x,)), 1e-5)


class Depthwise(nn.Module):
    """A ConvNeXt-like block, whose images are read by convolutions, sums and norms over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.depth = (
            nn.Conv2d(3, 8, 2, 2),
            nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, groups=8) for _ in range(3)),
        )
        self.norm, self.point = nn.LayerNorm(8), nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for depth, point in zip(self.depth, self.point, strict=True):
            y = nn.functional.gelu(point(self.norm(depth(x).permute(0, 2, 3, 1))))
            x = x + y.permute(0, 3, 1, 2)
        return x.square().mean()


class ConvolutionsSeen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.images: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution_backward.default:
            self.images += args[:2]
        return func(*args, **(kwargs or {}))


@pytest.mark.slow
def test_gradients_of_convolutions_read_images_as_channels_last() -> None:
    """Also in segments of backward that contain no other convolution, and across segments."""
    model, x = seeded(Depthwise()), data(2, 3, 16, 16)
    planned = apply(copy.deepcopy(model), in_blocks(model, (x,), just_in_time), engine="compiled")
    assert_same(step(planned, (x,)), step(model, (x,)), 1e-5)
    loss = planned(x)
    with ConvolutionsSeen() as seen:
        loss.backward()
    assert len(seen.images) == 2 * 4
    assert all(image.is_contiguous(memory_format=torch.channels_last) for image in seen.images)


def test_only_images_that_convolutions_reach_are_channels_last() -> None:
    """And not the scores of an attention, which have four dimensions, too."""

    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch, self.scale = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            image = torch.relu(self.patch(x)) * self.scale
            q = image.flatten(2).transpose(1, 2).unflatten(2, (2, 4)).transpose(1, 2)
            scores = torch.tanh(q @ q.transpose(2, 3)) * self.scale
            return scores.square().mean() + torch.relu(image).sum()

    written = expand(schedule_of(seeded(Patches()), (data(2, 3, 16, 16),), recomputes=no_recomputes))
    free = free_layouts(written.graph)
    images = channels_last(written.graph, free)
    assert images
    assert all(kind.shape == (2, 8, 4, 4) and kind.strides == (128, 1, 32, 8) for kind in images.values())
    assert any(written.graph.values[owner].type.shape == (2, 2, 16, 16) for owner in free - set(images))
