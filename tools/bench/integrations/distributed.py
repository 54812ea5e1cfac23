"""The same under torch's own engines for several ranks: gloo, on the CPU, processes of this machine."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn

import remate
from remate.step_measurement.allocator import peak_bytes
from remate_runtime import Schedule, apply

from .models import Classifier, batches, classifier

RANKS = 2
BUDGET, BLOCKS_BUDGET = "80%", "60%"  # of the whole model; of its blocks
Given = Schedule | None
Trained = tuple[nn.Module, int]  # the model after the loop, and the peak of a further step, in bytes


class Across(NamedTuple):
    """The result of all ranks.

    Attributes:
        bitwise: Whether parameters equal eager's on all ranks after the loop.
        peak: Bytes of a step on the rank with the largest peak, including gathered parameters and buffers of the
            collectives.
        eager: The same without a schedule.
    """

    bitwise: bool
    peak: int
    eager: int


def _ddp(**options: Any) -> Callable[[Given, Given], Trained]:
    def train(whole: Given, block: Given) -> Trained:
        from torch.nn.parallel import DistributedDataParallel

        model = classifier()
        wrapped = DistributedDataParallel(model if whole is None else apply(model, whole), **options)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        peak = _steps(wrapped, optimizer, no_sync=None if "static_graph" in options else wrapped.no_sync)
        return model, peak

    return train


def _blocks(model: Classifier, block: Given, wrap: Callable[[nn.Module], nn.Module]) -> None:
    for at, inner in enumerate(model.blocks):
        model.blocks[at] = wrap(inner if block is None else apply(inner, block))


def _fsdp1(use_orig_params: bool) -> Callable[[Given, Given], Trained]:
    def train(whole: Given, block: Given) -> Trained:
        from torch.distributed.fsdp import FullyShardedDataParallel

        def wrap(module: nn.Module) -> nn.Module:
            return FullyShardedDataParallel(module, use_orig_params=use_orig_params, device_id=torch.device("cpu"))

        model = classifier()
        _blocks(model, block, wrap)
        sharded = wrap(model)
        return sharded, _steps(sharded, torch.optim.SGD(sharded.parameters(), 0.1))

    return train


def _fsdp2(precision: torch.dtype | None, whole_model: bool = False) -> Callable[[Given, Given], Trained]:
    def train(whole: Given, block: Given) -> Trained:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        options: dict[str, Any] = {"mesh": init_device_mesh("cpu", (dist.get_world_size(),))}
        if precision is not None:
            options["mp_policy"] = MixedPrecisionPolicy(param_dtype=precision)

        def wrap(module: nn.Module) -> nn.Module:
            fully_shard(module, **options)
            return module

        model: Any = classifier()
        if whole_model:
            model = model if whole is None else apply(model, whole)
            block = None
        _blocks(model, block, wrap)
        wrap(model)
        return model, _steps(model, torch.optim.SGD(model.parameters(), 0.1))

    return train


CASES: dict[str, Callable[[Given, Given], Trained]] = {
    "DDP, no_sync": _ddp(),
    "DDP, static_graph": _ddp(static_graph=True),
    "DDP, find_unused_parameters": _ddp(find_unused_parameters=True),
    "FSDP2, whole model over sharded blocks": _fsdp2(None, whole_model=True),
    "FSDP2 per block": _fsdp2(None),
    "FSDP2 per block, MixedPrecisionPolicy(bf16)": _fsdp2(torch.bfloat16),
    "FSDP1 per block, use_orig_params": _fsdp1(True),
    "FSDP1 per block, flat parameters": _fsdp1(False),
}


def _steps(model: Any, optimizer: torch.optim.Optimizer, no_sync: Any = None) -> int:
    """Three steps; where it is given, under `no_sync` in the second. Returns the peak of a further one."""
    torch.manual_seed(7)
    *given, last = batches(4, seed=dist.get_rank())
    for at, batch in enumerate(given):
        if no_sync is not None and at == 1:
            with no_sync():
                model(**batch)["loss"].backward()
            continue
        model(**batch)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
    return peak_bytes(lambda: model(**last)["loss"].backward())


def outcomes(names: Sequence[str]) -> dict[str, Across]:
    """By case, the same loop with a schedule and without one."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, (folder, tuple(names)), nprocs=RANKS)
        by_rank = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(RANKS)]
    by_name = {name: list(zip(*(results[name] for results in by_rank), strict=True)) for name in names}
    return {name: Across(all(same), max(peaks), max(eager)) for name, (same, peaks, eager) in by_name.items()}


def _rank(rank: int, folder: str, names: Sequence[str]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    try:
        batch = batches(1)[0]
        whole = remate.plan(classifier(), (), batch, budget=BUDGET, cost="cpu")
        blocks = {dtype: _of_blocks(dtype, batch) for dtype in (torch.float32, torch.bfloat16)}
        results = {}
        for name in names:
            block = blocks[torch.bfloat16 if "bf16" in name else torch.float32]
            (eager, held), (planned, peak) = CASES[name](None, None), CASES[name](whole, block)
            pairs = zip(eager.parameters(), planned.parameters(), strict=True)
            results[name] = all(torch.equal(_local(left), _local(other)) for left, other in pairs), peak, held
        Path(folder, f"{rank}.json").write_text(json.dumps(results))
    finally:
        dist.destroy_process_group()


def _of_blocks(dtype: torch.dtype, batch: dict[str, torch.Tensor]) -> Schedule:
    call = {**batch, "x": batch["x"].detach().to(dtype).requires_grad_()}
    schedules = remate.plan(classifier().to(dtype), (), call, at="blocks.*", budget=BLOCKS_BUDGET, cost="cpu")
    assert isinstance(schedules, Schedule)
    return schedules


def _local(parameter: Any) -> torch.Tensor:
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter
