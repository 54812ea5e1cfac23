"""Pipelines on several gloo processes: beside the same pipeline without schedules, and against the predicted peaks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import remate
from remate.cli import main
from remate.pipelines.order import pipeline_order
from remate.step_measurement.allocator import peak_bytes
from remate_runtime import apply
from tests.ranks import run_ranks

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
ROWS, WIDTH, MICROBATCHES = 128, 32, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def stages(count: int) -> list[tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    torch.manual_seed(0)
    return [(nn.Sequential(Block(), Block()), (torch.randn(ROWS, WIDTH),)) for _ in range(count)]


def train(modules: dict[int, nn.Module], name: str, count: int) -> tuple[list[torch.Tensor], int]:
    """Losses and gradients of two steps, and the peak of a third one."""
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import get_schedule_class

    parts = [PipelineStage(module, at, count, torch.device("cpu")) for at, module in modules.items()]
    make = get_schedule_class(name)
    single = name in ("1F1B", "GPipe")
    schedule = make(parts[0] if single else parts, MICROBATCHES, loss_fn=nn.functional.mse_loss)  # type: ignore[arg-type]
    torch.manual_seed(1)
    x, target = (torch.randn(MICROBATCHES * ROWS, WIDTH) for _ in range(2))
    losses: list[torch.Tensor] = []

    def step() -> None:
        last = {"target": target, "losses": losses} if count - 1 in modules else {}
        schedule.step(*([x] if 0 in modules else []), **last)

    results: list[torch.Tensor] = []
    for _ in range(2):
        for module in modules.values():
            module.zero_grad()
        step()
        results += [loss.detach().clone() for loss in losses]
        results += [p.grad.clone() for m in modules.values() for p in m.parameters() if p.grad is not None]
    for module in modules.values():
        module.zero_grad()
    return results, peak_bytes(step)


def _rank(rank: int, ranks: int, name: str, count: int, folder: str, meeting: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    mine = pipeline_order(name, count, MICROBATCHES, ranks).stages_of(rank)
    eager, _ = train({at: stages(count)[at][0] for at in mine}, name, count)
    scheduled = {at: apply(stages(count)[at][0], Path(folder, f"stage{at}.json")) for at in mine}
    ours, peak = train(scheduled, name, count)
    assert len(eager) == len(ours)
    assert all(torch.equal(left, right) for left, right in zip(eager, ours, strict=True))
    Path(folder, f"rank{rank}").write_text(json.dumps(peak))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count", "ranks", "budget"),
    [
        ("1F1B", 2, 2, "80%"),
        ("1F1B", 4, 4, "80%"),
        ("GPipe", 2, 2, "45%"),  # with another forward in backward; no single step gains by that
        ("Interleaved1F1B", 4, 2, "85%"),
        ("InterleavedZeroBubble", 4, 2, "90%"),
        ("ZBVZeroBubble", 4, 2, "85%"),
    ],
)
def test_bitwise_and_within_the_predicted_peaks(
    name: str, count: int, ranks: int, budget: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    loss = (nn.functional.mse_loss, torch.randn(ROWS, WIDTH))
    plan = remate.plan_pipeline(
        stages(count), name, MICROBATCHES, budget, "cpu", ranks=ranks, loss=loss, effort="quick", progress=None
    )
    assert any(schedule.solve.time > schedule.solve.baseline_time for schedule in plan)
    assert plan.baseline_time <= plan.lower_bound <= plan.time
    plan.save(tmp_path)
    run_ranks(
        _rank, (ranks, name, count, str(tmp_path), str(tmp_path_factory.mktemp("store") / "meeting")), nprocs=ranks
    )
    for rank in plan.ranks:
        measured = json.loads(Path(tmp_path, f"rank{rank.rank}").read_text()) + rank.buffers
        assert measured <= rank.peak <= plan.budget
        if name in ("1F1B", "GPipe", "ZBVZeroBubble"):
            assert rank.peak <= 1.05 * measured


@pytest.mark.slow
def test_a_rank_that_does_not_fit_is_named() -> None:
    with pytest.raises(
        remate.InfeasibleError, match=r"rank \d \(stage \d\) cannot be planned within 10.0 KiB"
    ) as caught:
        remate.plan_pipeline(stages(2), "1f1b", 2, 10 << 10, "cpu", effort="quick", progress=None)
    assert caught.value.floor <= caught.value.smallest
    text = str(caught.value)
    assert all(f"rank {rank} (stage {rank}): smallest peak found" in text for rank in range(2))
    asked = int(text.partition("at least ")[2].split()[0])
    assert asked == caught.value.smallest
    least = remate.plan_pipeline(stages(2), "1f1b", 2, asked, "cpu", effort="quick", progress=None)
    assert max(rank.peak for rank in least.ranks) <= asked
    plan = remate.plan_pipeline(stages(2), "1f1b", 2, "100%", "cpu", effort="quick", progress=None)
    assert plan.time == plan.lower_bound == plan.baseline_time


@pytest.mark.slow
def test_the_command_writes_a_file_for_each_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[2] / "examples" / "loops" / "pipeline.py"
    folder = tmp_path / "stages"
    options = ["--effort", "quick", "--cost", "cpu", "--budget", "80%", "-o", str(folder)]

    def run(*more: str) -> tuple[int, str, str]:
        status = main(["plan", f"{example}:stages", "--pipeline", "1f1b", *more, *options])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    status, out, error = run("--microbatches", "4")
    assert status == 0, error
    assert "1F1B, 4 microbatches, 2 stages on 2 ranks" in out
    assert sorted(path.name for path in folder.iterdir()) == ["stage0.json", "stage1.json"]
    status, _, error = run()
    assert status == 2
    assert "--microbatches 8" in error
    gathered = "stay gathered for all microbatches"
    for given, code, told in ((["--fsdp", "*"], 1, "--shards"), (["--keep-gathered"], 2, gathered)):
        status, _, error = run("--microbatches", "4", *given)
        assert status == code
        assert told in error
