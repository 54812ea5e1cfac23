"""No file that is accepted crashes the process that runs it, and what is refused says why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from remate.capture.capture_step import capture
from remate_runtime import apply
from remate_runtime.errors import ScheduleError
from remate_runtime.operator_calls import needed

from .hostile_files import files, line, zeros
from .small import data
from .stepping import schedule_of
from .strangers import edited, inputs, model

ROOT = Path(__file__).parents[2]
CODE = """
import sys, warnings
warnings.simplefilter("ignore")
from remate_runtime import apply
from remate_runtime.errors import RemateError
from tests.runtime.hostile_files import files
from tests.runtime.strangers import inputs, model
for name, schedule in files():
    print(name, end=": ", flush=True)  # the last line names the file that crashed
    try:
        apply(model(), schedule)(inputs()).sum().backward()
    except RemateError as error:
        print("refused", error.code if hasattr(error, "code") else type(error).__name__)
    except (RuntimeError, IndexError) as error:
        print("stopped by torch,", error.__notes__[0])
    else:
        print("ran")
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["eager", pytest.param("compiled", marks=pytest.mark.slow)])
def test_no_hostile_file_crashes_the_process(engine: str) -> None:
    command = [sys.executable, "-c", CODE.replace("(model(), schedule)", f"(model(), schedule, engine={engine!r})")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = dict(row.rsplit(": ", 1) for row in done.stdout.splitlines())
    assert outcomes.keys() == {name for name, _ in files()}
    stopped = {name for name, outcome in outcomes.items() if outcome.startswith("stopped by torch")}
    assert stopped == {
        "aten.index.Tensor", "aten.gather", "aten.index_select", "aten.embedding", "aten.take", "aten.scatter.value",
        "aten.index_add", "aten.nll_loss_forward",
    } | {name for name in outcomes if name.startswith("as_strided")}  # fmt: skip
    assert {name for name, outcome in outcomes.items() if outcome == "ran"} == {
        "embedding_dense_backward",
        "aten._grouped_mm",
    }


@pytest.mark.parametrize("name", ["max_pool2d indices -1", "gelu_backward", "embedding_dense_backward scaled"])
def test_a_refusal_says_where_and_what_would_permit_it(name: str) -> None:
    schedule = dict(files())[name]
    with pytest.raises(ScheduleError) as caught:
        apply(model(), schedule)
    at = len(schedule.blocks["Mlp"].forward) - 6
    assert caught.value.code == "R050"
    assert caught.value.where == f"/blocks/Mlp/forward/{at}"
    assert "'model.bad'" in caught.value.message
    assert f"namespaces=('{schedule.blocks['Mlp'].forward[at].op}',)" in caught.value.hint


POOLED = line("aten.max_pool2d_with_indices", "%map", [2, 2], [2, 2], out=("f32[1,2,2,2]", "i64[1,2,2,2]"), id="pool")
BACK = ("aten.max_pool2d_with_indices_backward", "%g", "%map", [2, 2], [2, 2], [0, 0], [1, 1], False)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((zeros("g", 1, 2, 2, 2), line(*BACK, "%pool:1", out="f32[1,2,4,4]")), ""),
        ((zeros("g", 1, 2, 1, 1), line(*BACK, "%pool:1", out="f32[1,2,4,4]")), "`grad` must have the shape"),
        (
            (zeros("g", 1, 2, 2, 2), zeros("map2", 1, 2, 3, 3),
             line(BACK[0], "%g", "%map2", *BACK[3:], "%pool:1", out="f32[1,2,3,3]")),
            "`self` must be as in 'model.pool'",
        ),
        (
            (zeros("g", 1, 2, 2, 2), line(*BACK[:4], [1, 1], *BACK[5:], "%pool:1", out="f32[1,2,4,4]")),
            "`stride` must be as in 'model.pool'",
        ),
        (
            (zeros("g", 1, 2, 2, 2),
             line(*BACK[:3], [{"float": "inf"}, {"float": "inf"}], *BACK[4:], "%pool:1", out="f32[1,2,4,4]")),
            "`kernel_size` must be as in 'model.pool'",
        ),
        ((zeros("g", 1, 2, 2, 2), line(*BACK, "%pool:0", out="f32[1,2,4,4]")), "`indices` must be output 1"),
        (
            (zeros("g", 1, 2, 2, 2), line("aten.mul.Tensor", "%pool:1", 3, out="i64[1,2,2,2]", id="far"),
             line(*BACK, "%far", out="f32[1,2,4,4]")),
            "indices must be what aten.max_pool2d_with_indices made",
        ),
    ],
)  # fmt: skip
def test_indices_are_those_that_a_forward_operator_made(lines, message: str) -> None:
    schedule = edited(zeros("map", 1, 2, 4, 4), POOLED, *lines)
    if not message:
        apply(model(), schedule)(inputs()).sum().backward()
        return
    with pytest.raises(ScheduleError) as caught:
        apply(model(), schedule)
    assert message in caught.value.message


@pytest.mark.parametrize("factor", [1e308, {"float": "inf"}, "2"])
def test_factors_of_any_kind_are_refused(factor: object) -> None:
    resized = line("aten._upsample_bilinear2d_aa", "%map", [2, 2], False, factor, factor, out="f32[1,2,2,2]")
    with pytest.raises(ScheduleError, match="scales_h"):
        apply(model(), edited(zeros("map", 1, 2, 4, 4), resized))


@pytest.mark.parametrize("size", [5, ["a", "b", "c", "d"], [1, 2, 4], [{"float": "nan"}] * 4])
def test_sizes_of_any_kind_are_refused(size: object) -> None:
    back = line("aten._upsample_bilinear2d_aa_backward", "%g", [2, 2], size, False, 1.0, 1.0, out="f32[1,2,4,4]")
    with pytest.raises(ScheduleError):
        apply(model(), edited(zeros("g", 1, 2, 2, 2), back))


class Everything(torch.nn.Module):
    """Layers whose backward operators are paired with forward ones."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.batch, self.group = torch.nn.Conv2d(2, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.GroupNorm(2, 4)
        self.layer, self.pad = torch.nn.LayerNorm(6), torch.nn.ReflectionPad2d(1)
        self.frozen = torch.nn.BatchNorm2d(4, track_running_stats=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.layer(self.group(self.batch(self.frozen(self.conv(self.pad(x))))))
        pooled = [
            torch.nn.functional.max_pool2d(a, 2), torch.nn.functional.adaptive_max_pool2d(a, 3),
            torch.nn.functional.adaptive_avg_pool2d(a, 3), torch.nn.functional.max_pool2d(a, 3, stride=1)[..., :3, :3],
        ]  # fmt: skip
        near = torch.cdist(a.flatten(2), a.flatten(2)).sum() + torch.pdist(a.flatten(1)).sum()
        heads = a.reshape(2, 4, 6, 6)
        mixed = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        wave = (
            torch.fft.irfft(torch.fft.rfft(heads), n=6)
            + torch.fft.irfft2(torch.fft.rfft2(heads))
            + torch.fft.hfft(heads, n=6)
        )
        mixed = mixed + wave
        return torch.nn.functional.gelu(torch.stack(pooled).sum(0)).sum() + near + mixed.sum()


@pytest.mark.slow
@pytest.mark.parametrize("train", [True, False])
def test_what_capture_writes_needs_no_permission(train: bool) -> None:
    live = Everything().train(train)
    x = data(2, 2, 6, 6)
    graph = capture(live, (x,), {}).graph
    paired = {op.op for op in graph.operations if op.op.endswith("_backward")}
    assert len(paired) >= 10
    assert needed(graph) == ()
    apply(live, schedule_of(live, (x,)))(x).backward()
