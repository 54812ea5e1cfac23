"""What a forward changes is put back in place, and what it keeps for backward is discarded."""

from __future__ import annotations

import collections
import contextvars
import dataclasses
import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from remate_runtime.devices.cpu_memory import peak_on_cpu
from remate_runtime.self_check.checksum import Checksums
from remate_runtime.self_check.live_forward import discarding
from remate_runtime.self_check.snapshot import Snapshot

COUNT, LATER, SEEN = 0, None, [1, [2, 3]]
CHOSEN: contextvars.ContextVar[int] = contextvars.ContextVar("CHOSEN", default=0)


@dataclasses.dataclass
class Settings:
    steps: int = 0
    inner: list[Any] = dataclasses.field(default_factory=lambda: [{"a": 1}])


class Slotted:
    __slots__ = ("deep", "value")

    def __init__(self) -> None:
        self.value, self.deep = 1, {"list": [1]}


def counted(module: Any) -> None:
    global COUNT, CREATED
    COUNT += 1
    CREATED = COUNT
    SEEN[1].append(4)
    CHOSEN.set(COUNT)


def closure() -> Callable[[], int]:
    number = 0

    def step() -> int:
        nonlocal number
        number += 1
        return number

    return step


class Stateful(nn.Module):
    shared = 0
    table: dict[str, int] = {}
    buffer: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.numbers, self.deque = [1, {"k": (1, [2])}], collections.deque([1, 2], maxlen=2)
        self.order = collections.OrderedDict(a=1, b=2)
        self.default = collections.defaultdict(list, x=[1])
        self.names = {"a", "b"}
        self.settings, self.slotted, self.closed = Settings(), Slotted(), closure()
        self.count, self.turns, self.items = itertools.count(3), itertools.cycle([1, 2, 3]), iter([1, 2, 3])
        self.random, self.generator = random.Random(1), np.random.default_rng(1)
        self.array, self.own = np.zeros(3), torch.Generator().manual_seed(1)
        self.user = collections.UserDict(a=1)
        self.register_buffer("buffer", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        type(self).shared += 1
        type(self).fresh = 1  # type: ignore[attr-defined]
        self.table["k"] = 1
        self.last, self.numbers[1]["k"][1][0] = x, 5  # type: ignore[index]
        self.numbers.append(1)
        self.deque.append(3)
        self.order.move_to_end("a")
        self.default["y"].append(1)
        self.default["x"].append(2)
        self.names.add("c")
        self.settings.steps += 1
        self.settings.inner[0]["b"] = 2
        self.slotted.value, self.slotted.deep["list"][0] = 2, 7
        self.closed()
        next(self.count)
        next(self.turns)
        next(self.items)
        self.random.random()
        self.generator.random()
        self.array += 1
        self.user["b"] = 2
        torch.rand(1, generator=self.own)
        self.buffer = self.buffer + 1
        counted(self)
        return self.lin(x)


def state(model: Stateful) -> list[Any]:
    """What forward changes, as values."""
    return [
        *[COUNT, SEEN[0], list(SEEN[1]), globals().get("CREATED"), CHOSEN.get()],
        *[Stateful.shared, vars(Stateful).get("fresh"), dict(Stateful.table), "last" in vars(model)],
        *[repr(model.numbers), list(model.deque), list(model.order), dict(model.default), sorted(model.names)],
        *[repr(model.settings), model.slotted.value, repr(model.slotted.deep)],
        *[model.closed.__closure__[0].cell_contents],  # type: ignore[attr-defined]
        *[
            repr(model.count),
            model.items.__reduce__(),
            model.random.getstate(),
            repr(model.generator.bit_generator.state),
        ],
        *[model.array.tolist(), dict(model.user), model.own.get_state().tolist(), model.buffer.tolist()],
    ]


def test_everything_that_a_forward_changes_is_put_back() -> None:
    model, x = Stateful(), torch.randn(2, 4)
    next(model.turns)
    before, held = state(model), dict(vars(model))
    snapshot = Snapshot(model, ((x,), {}), [model.buffer])
    model(x)
    assert state(model) != before
    snapshot.restore(Checksums())
    assert state(model) == before
    assert next(model.turns) == 2
    changed = {name for name, value in vars(model).items() if held.get(name) is not value}
    assert changed <= {"count", "turns", "items"}


def test_iterators_without_a_copy_are_said() -> None:
    model = nn.Linear(2, 2)
    model.source = (n for n in range(3))  # type: ignore[assignment]
    assert Snapshot(model, (), ()).restore(Checksums()).missed == ["an iterator (generator)"]


class Stashing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.kept, ctx.more = x * 1, [x * 2]
        ctx.save_for_backward(x * 3)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def plain(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x)


def on_cpu(x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.save_on_cpu():
        return torch.tanh(x)


WAYS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "operators": plain,
    "ctx of a custom Function": Stashing.apply,  # type: ignore[dict-item]
    "save_on_cpu": on_cpu,
    "checkpoint": lambda x: checkpoint(plain, x, use_reentrant=False),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_kept_for_backward(way: str) -> None:
    x = torch.randn(1000, 100, requires_grad=True)

    class Seen:
        def look(self, thing: Any) -> None:
            pass

    def forward(discards: bool) -> None:
        def run() -> None:
            y = x
            for _ in range(8):
                y = WAYS[way](y)

        if discards:
            with discarding(Seen()):
                run()
        else:
            run()

    forward(False)
    size = x.numel() * 4
    assert peak_on_cpu(lambda: forward(True)) < 5.5 * size
    if way != "checkpoint":
        assert peak_on_cpu(lambda: forward(False)) >= 8 * size
