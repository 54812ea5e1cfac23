"""Ranks that would wait for each other forever say so instead: which rank, and which field of its file."""

from __future__ import annotations

import os
import signal
import warnings
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from remate_runtime import BindError, apply
from remate_runtime.applied import planned_model
from remate_runtime.bind import modes
from tests.ranks import run_ranks

from .small import data, seeded
from .stepping import everything, no_recomputes, schedule_of
from .test_sharded import Blocks, called, fully_sharded, needs_ranks
from .test_tensor_parallel import applied, hidden, scheduled, sequences


def _different(rank: int) -> None:
    """Ranks with files that gather in different orders refuse at the first call, and say where the files differ."""
    schedule = schedule_of(seeded(Blocks()), (data(4, 8),), recomputes=everything if rank else no_recomputes)
    model = fully_sharded(apply(seeded(Blocks()), schedule), True)
    with pytest.raises(BindError, match=r"ranks 0 and 1 communicate differently over 'FSDP2 ") as refused:
        model(data(4, 8))
    text = str(refused.value)
    assert "differ at /program/" in text or "differ at /blocks/" in text, text
    dist.barrier()
    schedule = schedule_of(seeded(Blocks()), (data(4, 8),))
    called(fully_sharded(apply(seeded(Blocks()), schedule), True))


def _killed(rank: int, world: int, folder: str) -> None:
    """Of two ranks, one ends before it applies its file. The other one names it."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    _different(rank)
    model, schedule = sequences(), scheduled(sequences(), hidden(), no_recomputes)
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with (
        mock.patch.object(planned_model, "agree", partial(planned_model.agree, timeout=1)),
        pytest.raises(BindError, match="rank 0 has waited 1 s for rank 1 to apply a schedule") as refused,
    ):
        applied(model, schedule)
    Path(folder, "told").write_text(str(refused.value))
    os._exit(0)  # gloo waits for the other rank


def _modes(rank: int, world: int, folder: str) -> None:
    """A rank in eval() mode beside one that trains: both are told so, before the first scheduled call and after it."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    schedule = schedule_of(seeded(Blocks()), (data(4, 8),))
    warnings.filterwarnings("ignore", "the schedule steps aside")

    def made() -> Any:
        return fully_sharded(apply(seeded(Blocks()), schedule), True)

    model, other = made(), made()
    for gradients in (False, True, False):  # all ranks alike
        with torch.set_grad_enabled(gradients):
            result = model.eval()(data(4, 8))
        if gradients:
            result.sum().backward()
    called(other)  # another model of the same ranks
    called(model.train())
    model.eval()
    called(model)
    late = made().train(rank == 0)
    with pytest.raises(BindError, match=r"rank 1 runs the model's own forward in a call that rank 0 runs by its sch"):
        late(data(4, 8))
    dist.barrier()
    model.train(rank == 0)
    told = "rank 1 runs .* with gradients, and rank 0 has not done so within 0.5 s"
    # The next collective of rank 0 waits for rank 1, and ends with it.
    with mock.patch.object(modes, "TIMEOUT", 0.5), pytest.raises((BindError, RuntimeError), match=told if rank else ""):
        called(model)
    os._exit(0)


@needs_ranks
@pytest.mark.slow
def test_a_rank_in_eval_mode(tmp_path):
    run_ranks(_modes, (2, str(tmp_path)), nprocs=2)


@needs_ranks
@pytest.mark.slow
def test_other_files_and_a_killed_rank(tmp_path):
    context: Any = run_ranks(_killed, (2, str(tmp_path)), nprocs=2, join=False)
    for process in context.processes:
        process.join(60)
    assert [process.exitcode for process in context.processes] == [0, -signal.SIGKILL]
    assert "check the output of rank 1" in (tmp_path / "told").read_text()
