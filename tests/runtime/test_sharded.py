"""Models that torch shards: gradients are those of eager to the bit, or the model is refused with the way that
works."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

import remate
from remate.capture.capture_step import capture
from remate.errors import CaptureError
from remate_runtime import BindError, apply
from tests.ranks import run_ranks

from .small import data, seeded
from .stepping import everything, just_in_time, schedule_of, with_recomputes

needs_ranks = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.Sequential(Block(), Block()), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(x))


def fully_sharded(model: Any, blocks: bool, root: bool = True, **options: Any) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    options["mesh"] = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks if blocks else ():
        fully_shard(block, **options)
    return fully_shard(model, **options) if root else model


def flat(model: Any) -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel

    for at, block in enumerate(model.blocks):
        model.blocks[at] = FullyShardedDataParallel(block, device_id=torch.device("cpu"))
    return model


def tensor_parallel(model: Any, hooks: bool = True) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks if hooks else ():
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if not hooks:
        model.head.weight = nn.Parameter(distribute_tensor(model.head.weight.detach(), mesh, [Shard(0)]))
    return model


def called(model: Any) -> None:
    model(data(4, 8)).sum().backward()


def with_policy(model: Any) -> Any:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return fully_sharded(model, True, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))


def checkpointed(model: Any) -> None:
    checkpoint(fully_sharded(model, True), data(4, 8).requires_grad_(), use_reentrant=True).sum().backward()


REFUSED: dict[str, tuple[str, Callable[[Any, Any], object]]] = {
    "fully_shard, apply": ("apply the schedule first", lambda m, s: apply(fully_sharded(m, True), s)),
    "apply with stale": ("apply the schedule first", lambda m, s: apply(fully_sharded(m, True), s, stale="warn")),
    "the model alone, apply": ("apply the schedule first", lambda m, s: apply(fully_sharded(m, False), s)),
    "blocks without the model": (
        "call fully_shard(model), too",
        lambda m, s: called(fully_sharded(apply(m, s), True, root=False)),
    ),
    "forward called directly": (
        "and then the model itself",
        lambda m, s: fully_sharded(apply(m, s), True).forward(data(4, 8)),
    ),
    "blocks that cast": ("casts its inputs or outputs", lambda m, s: called(with_policy(apply(m, s)))),
    "several files": ("one of several steps", lambda m, s: called(fully_sharded(apply(m, [s, s]), True))),
    "other shapes": (
        "one of several steps",
        lambda m, s: called(fully_sharded(apply(m, s, otherwise="original"), True)),
    ),
    "checkpointed": ("without torch.utils.checkpoint", lambda m, s: checkpointed(apply(m, s))),
    "blocks, FullyShardedDataParallel": ("when it is called", lambda m, s: called(flat(apply(m, s)))),
    "FullyShardedDataParallel, apply": ("when it is called", lambda m, s: apply(flat(m), s)),
    "tensor parallel": ("'blocks.0.up.weight' is a DTensor", lambda m, s: called(tensor_parallel(apply(m, s)))),
    "tensor parallel, apply": ("is a DTensor", lambda m, s: apply(tensor_parallel(m), s, stale="warn")),
    "tensor parallel without hooks": (
        "'head.weight' is a DTensor (S(0)",
        lambda m, s: called(tensor_parallel(apply(m, s), hooks=False)),
    ),
}


def _refusals(rank: int) -> None:
    schedule = schedule_of(seeded(Blocks()), (data(4, 8),))
    for name, (told, act) in REFUSED.items():
        with pytest.raises(BindError) as refused:
            act(seeded(Blocks()), schedule)
        assert told in str(refused.value), (name, str(refused.value))
        assert "\n  " in str(refused.value), name
    with pytest.raises(CaptureError, match="DTensor"):
        remate.plan(fully_sharded(seeded(Blocks()), True), (data(4, 8),), budget="100%")


def _other_torch(rank: int) -> None:
    """Where torch's own objects are not what they were, the model is refused, by the name of what is missing."""
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
    from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

    schedule = schedule_of(seeded(Blocks()), (data(4, 8),))
    for kind, name, other in (
        (FSDPState, "_pre_forward", lambda state, module: None),
        (FSDPParamGroup, "post_backward", None),
    ):
        model = fully_sharded(apply(seeded(Blocks()), schedule), True)
        told = rf"torch 2.*: {kind.__name__}\.{name} differs from torch 2\.13\n  plan one block"
        with mock.patch.object(kind, name, other), pytest.raises(BindError, match=told):
            called(model)


def _alone(model: Any, rank: int) -> None:
    called(fully_sharded(model, False))


def _steps(model: Any, rank: int, **options: Any) -> None:
    """Two steps, and a call without gradients between them."""
    optimizer = torch.optim.SGD(fully_sharded(model, True, **options).parameters(), 0.1)
    for at in range(2):
        model(data(4, 8, seed=rank + at)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model(data(4, 8))
    model(data(4, 8, seed=rank)).pow(2).mean().backward()


def _kept(model: Any, rank: int) -> None:
    _steps(model, rank, reshard_after_forward=False)


def _grouped(model: Any, rank: int) -> None:
    """Two blocks in one group; a layer of a block on its own."""
    from torch.distributed.fsdp import fully_shard

    fully_shard(model.blocks[0].up)
    fully_shard([model.blocks[0], model.blocks[1]])
    called(fully_shard(model))


def _accumulated(model: Any, rank: int) -> None:
    fully_sharded(model, True)
    for at in range(3):
        model.set_requires_gradient_sync(at == 2)
        model(data(4, 8, seed=rank + at)).pow(2).mean().backward()


def _frozen(model: Any, rank: int) -> None:
    model.blocks[1].requires_grad_(False)
    _steps(model, rank)


def _twice(model: Any, rank: int) -> None:
    fully_sharded(model, True)
    (model(data(4, 8, seed=rank)).pow(2).mean() + model(data(4, 8, seed=9)).sum()).backward()


def _checkpointed(model: Any, rank: int) -> None:
    """torch recomputations nothing where it sees no tensor that backward saved."""
    checkpoint(fully_sharded(model, True), data(4, 8), use_reentrant=False).sum().backward()


LOOPS = (_alone, _steps, _kept, _grouped, _accumulated, _frozen, _twice, _checkpointed)


def _equal(rank: int) -> None:
    captured = capture(seeded(Blocks()), (data(4, 8),))
    schedules = [with_recomputes(captured, recomputes) for recomputes in (everything, just_in_time)]
    for loop in LOOPS:
        model = seeded(Blocks())
        loop(model, rank)
        for schedule in schedules:
            planned = seeded(Blocks())
            loop(apply(planned, schedule), rank)
            for (name, found), wanted in zip(planned.named_parameters(), model.parameters(), strict=True):
                where = loop.__name__, name
                assert torch.equal(found.to_local(), wanted.to_local()), where
                assert (found.grad is None) == (wanted.grad is None), where
                assert found.grad is None or torch.equal(found.grad.to_local(), wanted.grad.to_local()), where


@contextlib.contextmanager
def gathering() -> Iterator[list[tuple[str, str | None]]]:
    """Which parts are gathered and freed meanwhile."""
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    seen: list[tuple[str, str | None]] = []

    def noting(name: str) -> Any:
        method = getattr(FSDPParamGroup, name)

        def run(group: Any) -> None:
            if group.is_unsharded is (name == "_to_sharded") and group._module_fqn:
                seen.append((name, group._module_fqn))
            method(group)

        return mock.patch.object(FSDPParamGroup, name, run)

    with noting("_to_unsharded"), noting("_to_sharded"):
        yield seen


def _gathered(rank: int) -> None:
    """Each block is gathered twice a step, on its own, and freed again, as without a schedule."""
    schedule = schedule_of(seeded(Blocks()), (data(4, 8),))
    found = []
    for model in (fully_sharded(seeded(Blocks()), True), fully_sharded(apply(seeded(Blocks()), schedule), True)):
        called(model)
        with gathering() as seen:
            called(model)
        found.append(seen)
    assert [name for name, _ in found[0]] == ["_to_unsharded", "_to_sharded"] * 4
    assert sorted(found[1]) == sorted(found[0])
    assert found[1][:4] == found[0][:4]


def _freed(rank: int) -> None:
    """In backward a block with enough gradients for a delivery of their own is reduced and freed before the next is
    done."""

    class Wide(Blocks):
        def __init__(self) -> None:
            super().__init__()
            for block in self.blocks:
                block.up, block.down = nn.Linear(8, 40000), nn.Linear(40000, 8)

    schedule = schedule_of(seeded(Wide()), (data(4, 8),), recomputes=just_in_time)
    model = fully_sharded(apply(seeded(Wide()), schedule), True)
    called(model)
    with gathering() as seen:
        called(model)
    assert [path for does, path in seen if does == "_to_sharded"][-2:] == ["blocks.1", "blocks.0"]


def _resumed(rank: int, folder: str) -> None:
    """Block files: accumulation without communication, a checkpoint of DCP, and on from there by other processes."""
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.checkpoint.state_dict_saver import save

    schedule = schedule_of(seeded(Block()), (data(4, 8).requires_grad_(),))

    def made(planned: bool) -> tuple[Any, torch.optim.Optimizer]:
        model = seeded(Blocks())
        for at in range(2) if planned else ():
            model.blocks[at] = apply(model.blocks[at], schedule)
        return fully_sharded(model, True), torch.optim.AdamW(model.parameters(), 0.1)

    def train(model: Any, optimizer: torch.optim.Optimizer, seed: int) -> None:
        for at in range(2):
            model.set_requires_gradient_sync(at == 1)
            model(data(4, 8, seed=seed + at + rank).requires_grad_()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    wanted, there, back = made(False), made(True), made(True)
    for model, optimizer in (wanted, there):
        train(model, optimizer, 1)
    weights, moments = get_state_dict(*there)
    save({"model": weights, "optimizer": moments}, checkpoint_id=f"{folder}/saved")
    weights, moments = get_state_dict(*back)
    load({"model": weights, "optimizer": moments}, checkpoint_id=f"{folder}/saved")
    set_state_dict(*back, model_state_dict=weights, optim_state_dict=moments)
    for model, optimizer in (wanted, back):
        train(model, optimizer, 5)
    for found, expected in zip(back[0].parameters(), wanted[0].parameters(), strict=True):
        assert torch.equal(found.to_local(), expected.to_local())


def _rank(rank: int, world: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    try:
        _equal(rank)
        _gathered(rank)
        _freed(rank)
        _resumed(rank, folder)
        _refusals(rank)
        _other_torch(rank)
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
@needs_ranks
def test_one_rank(tmp_path):
    run_ranks(_rank, (1, str(tmp_path)), nprocs=1)


@needs_ranks
@pytest.mark.slow
def test_two_ranks(tmp_path):
    run_ranks(_rank, (2, str(tmp_path)), nprocs=2)
