"""Tensor parallelism: steps on local tensors with collectives, beside the same model without a schedule."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch import nn

import remate
from remate.capture.capture_step import capture
from remate.errors import CaptureError
from remate_runtime import BindError, EngineError, ScheduleError, StaleModelError, apply
from remate_runtime.bind import agreement
from remate_runtime.format import RANKS_FEATURE, Schedule, decode, encode, fingerprint
from tests.ranks import run_ranks

from .small import data, seeded
from .stepping import everything, just_in_time, no_recomputes, schedule_of, with_recomputes

needs_ranks = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
COMMUNICATION = "_c10d_functional"


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.mlp, self.head = nn.Embedding(12, 8), Mlp(), nn.Linear(8, 12)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.mlp(self.table(tokens)))


class Experts(nn.Module):
    """Four experts, two on each of two ranks, and as many tokens for each; group: of a mesh, or torch's default one."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.norm, self.group = nn.LayerNorm(8), group
        self.up, self.down = nn.Parameter(torch.zeros(4, 8, 16)), nn.Parameter(torch.zeros(4, 16, 8))

    def sent(self, x: torch.Tensor) -> torch.Tensor:
        from torch.distributed._functional_collectives import all_to_all_single_autograd

        return all_to_all_single_autograd(x.contiguous(), [4, 4], [4, 4], self.group)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        came = self.sent(self.norm(x).view(8, 8)).view(2, 2, 2, 8).transpose(0, 1).reshape(2, 4, 8)
        made = torch.relu(came @ local(self.up)) @ local(self.down)
        return x + self.sent(made.view(2, 2, 2, 8).transpose(0, 1).reshape(8, 8)).view_as(x)


def mesh() -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))


def columns_and_rows() -> nn.Module:
    """Weights cut, all else on all ranks: an all-reduce in forward and one in backward."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    return parallelize_module(seeded(Mlp()), mesh(), {"up": ColwiseParallel(), "down": RowwiseParallel()})


def sequences() -> nn.Module:
    """Sequences cut, too: gathered and scattered; gradients of the norm are sums over the ranks."""
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    return parallelize_module(seeded(Mlp()), mesh(), plan)


def words() -> nn.Module:
    """Rows of an embedding cut: ranks do different steps, and its gradient has all rows on each."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {
        "table": RowwiseParallel(input_layouts=Replicate()),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(),
        "head": ColwiseParallel(output_layouts=Replicate()),
    }
    return parallelize_module(seeded(Words()), mesh(), plan)


def experts() -> nn.Module:
    """Experts cut, as expert parallelism does: tokens are sent to the ranks of their experts, and back."""
    from torch.distributed.tensor import Shard, distribute_tensor

    model: Any = seeded(Experts(mesh().get_group()))
    for name in ("up", "down"):
        setattr(model, name, nn.Parameter(distribute_tensor(getattr(model, name).detach(), mesh(), [Shard(0)])))
    return model


def plain_experts() -> nn.Module:
    model = seeded(Experts(dist.group.WORLD))
    model.up, model.down = (nn.Parameter(of_all.detach()[:2].clone()) for of_all in (model.up, model.down))
    return model


def hidden() -> torch.Tensor:
    return data(2, 4, 8)


def tokens() -> torch.Tensor:
    return torch.arange(10).view(2, 5) % 12


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "columns and rows": (columns_and_rows, hidden),
    "sequences": (sequences, hidden),
    "words": (words, tokens),
    "experts": (experts, hidden),
}


def scheduled(model: nn.Module, x: torch.Tensor, recomputes: Any) -> Schedule:
    return of_ranks(schedule_of(model, (x,), recomputes=recomputes))


def of_ranks(schedule: Schedule) -> Schedule:
    return replace(schedule, namespaces=(COMMUNICATION,), requires=(RANKS_FEATURE,))


def applied(model: nn.Module, schedule: Schedule, **options: Any) -> Any:
    return apply(model, schedule, namespaces=(COMMUNICATION,), **options)


def assert_equal_steps(model: Any, planned: Any, x: torch.Tensor) -> None:
    """Three steps: outputs, gradients and how they are distributed, parameters."""
    optimizers = [torch.optim.SGD(one.parameters(), 0.1) for one in (model, planned)]
    for _ in range(3):
        outputs = [one(x) for one in (model, planned)]
        assert torch.equal(*outputs)
        for output in outputs:
            output.square().sum().backward()
        for (name, wanted), found in zip(model.named_parameters(), planned.parameters(), strict=True):
            assert found.grad._spec == wanted.grad._spec if hasattr(wanted.grad, "_spec") else True, name
            assert torch.equal(local(found.grad), local(wanted.grad)), name
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for wanted, found in zip(model.parameters(), planned.parameters(), strict=True):
        assert torch.equal(local(found), local(wanted))


def local(tensor: Any) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _equal(rank: int) -> None:
    """Whatever is recomputed, collectives among it."""
    for name, (made, given) in MODELS.items():
        captured = capture(made(), (given(),))
        for recomputes in (no_recomputes, everything, just_in_time):
            schedule = of_ranks(with_recomputes(captured, recomputes))
            assert decode(encode(schedule)) == decode(encode(decode(encode(schedule)))), name
            assert_equal_steps(made(), applied(made(), schedule), given())


def _told(rank: int) -> None:
    """What files say of ranks."""
    one = scheduled(sequences(), hidden(), no_recomputes).model
    assert one.ranks == {"tp": 2}
    assert one.coordinate == {}
    assert one.parameters["up.weight"] == "f32[8,8]"
    about = {name: part for part in one.distributed for name in part.tensors}
    assert about["up.weight"].placements == ("S(0)",)
    assert about["up.weight"].shape == (16, 8)
    assert about["norm.weight"].gradient == ("P(sum)",)
    assert scheduled(words(), tokens(), no_recomputes).model.coordinate == {"tp": rank}
    names = [op.op for block in scheduled(sequences(), hidden(), no_recomputes).blocks.values() for op in block.forward]
    assert [name for name in names if name.startswith(COMMUNICATION)] == [
        f"{COMMUNICATION}.all_gather_into_tensor",
        f"{COMMUNICATION}.reduce_scatter_tensor",
    ]


def _refused(rank: int) -> None:
    schedule = scheduled(sequences(), hidden(), no_recomputes)
    plain = schedule_of(seeded(Mlp()), (hidden(),))
    of_columns = scheduled(columns_and_rows(), hidden(), no_recomputes)
    of_words = scheduled(words(), tokens(), no_recomputes)
    other = replace(of_words, model=replace(of_words.model, coordinate={"tp": 1 - rank}))
    other = replace(other, model=replace(other.model, fingerprint=fingerprint(other)))
    refused: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (BindError, "plan the model after parallelize_module", lambda: apply(sequences(), plain)),
        (BindError, "planned as a DTensor", lambda: applied(seeded(Mlp()), schedule, stale="warn")),
        (BindError, "the model has a DTensor", lambda: applied(sequences(), of_columns, stale="warn")),
        (BindError, f"planned for rank {1 - rank} of 'tp'", lambda: applied(words(), other, stale="warn")),
        (ScheduleError, "was not permitted", lambda: apply(sequences(), schedule)),
        (EngineError, "communicates with other ranks", lambda: applied(sequences(), schedule, engine="compiled")),
        (
            CaptureError,
            "planned for one size",
            lambda: remate.plan(columns_and_rows(), (hidden(),), dims={"x": {0: "b"}}),
        ),
        (
            CaptureError,
            r"_c10d_functional.all_to_all_single communicates in a process group .*\n.*plan the parts around it",
            lambda: remate.plan(plain_experts(), (hidden(),)),
        ),
        (CaptureError, "the output 'output' is a DTensor", lambda: remate.plan(returning_parts(), (hidden(),))),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind, told, act in refused:
            with pytest.raises(kind, match=told):
                act()


def returning_parts() -> nn.Module:
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    model = nn.Sequential(seeded(nn.Linear(8, 16)))
    return parallelize_module(model, mesh(), {"0": ColwiseParallel(use_local_output=False)})


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.mlp(x).unsqueeze(1)
        return nn.functional.scaled_dot_product_attention(heads, heads, heads)


def _in_contexts(rank: int) -> None:
    """Within `context_parallel`, attention is another function than a schedule runs."""
    from torch.distributed.tensor.experimental import context_parallel

    whole, part = data(2, 8, 8), data(2, 4, 8)
    planned = apply(seeded(Attends()), schedule_of(seeded(Attends()), (part,)), verify="never")
    without = apply(seeded(Mlp()), schedule_of(seeded(Mlp()), (part,)))
    with context_parallel(mesh(), buffers=[whole], buffer_seq_dims=[1]):
        with pytest.raises(BindError, match=r"was replaced after apply, as context_parallel\(\) does"):
            planned(whole)
        assert without(whole).shape == part.shape
        with pytest.raises(
            CaptureError, match=r"is replaced by ring attention \(context_parallel\).*\n.*plan the parts"
        ):
            remate.plan(seeded(Attends()), (whole,))
    assert planned(part).shape == (2, 1, 4, 8)


def _compared(rank: int) -> None:
    """Ranks that would run different collectives refuse, and say which; those that nobody joins say whom they miss."""
    own = no_recomputes if rank else everything
    with pytest.raises(BindError, match=r"ranks \d and \d communicate differently over 'tp': collective 3 is") as told:
        applied(sequences(), scheduled(sequences(), hidden(), own))
    assert "recomputes" in str(told.value)
    assert "differ at /program/" in str(told.value) or "differ at /blocks/" in str(told.value)
    dist.barrier()
    if not rank:
        with pytest.raises(BindError, match=r"rank 0 has waited 0.5 s for rank 1 to apply a schedule over 'tp'"):
            agreement.agree({"tp": mesh_name()}, [], timeout=0.5)
    dist.barrier()
    if rank:
        agreement.agree({"tp": mesh_name()}, [])


def mesh_name() -> str:
    return dist.distributed_c10d._get_default_group().group_name


def _checked(rank: int) -> None:
    """The self-check compares with the model's own forward, and gradients where asked to; its verdict is that of all
    ranks, though one alone sees a difference."""
    model = columns_and_rows()
    schedule = scheduled(model, hidden(), just_in_time)
    applied(model, schedule, verify=True)
    applied(model, schedule, verify=((hidden(),), {}))
    ((name, block),) = schedule.blocks.items()
    *before, last = block.forward
    assert last.op == "aten.add.Tensor"  # after the last collective, so that the other rank does not notice it
    wrong = replace(block, forward=(*before, replace(last, op="aten.sub.Tensor")))
    changed = replace(schedule, blocks={name: wrong})
    changed = replace(changed, model=replace(changed.model, fingerprint=fingerprint(changed)))
    planned = applied(model, changed if rank else schedule)
    with pytest.raises(
        StaleModelError, match="does not compute what the model computes" if rank else "on another rank"
    ):
        planned(hidden())


def _rank(rank: int, world: int, folder: str) -> None:
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world, timeout=limit)
    try:
        for check in (_told, _equal, _refused, _in_contexts, _compared, _checked):
            check(rank)
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
@needs_ranks
def test_two_ranks(tmp_path):
    run_ranks(_rank, (2, str(tmp_path)), nprocs=2)
