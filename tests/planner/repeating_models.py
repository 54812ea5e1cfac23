"""Models of equal or nearly equal blocks. Each has a difference at another place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

COUNT = 6
STATE: dict[str, Any] = {}


class Block(nn.Module):
    def __init__(self, at: int = 0) -> None:
        super().__init__()
        self.at, self.norm, self.first, self.second = at, nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.second(self.changed(self.first(self.norm(x)).relu())))

    def changed(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Stack(nn.Module):
    def __init__(self, block: Callable[[int], nn.Module] = Block) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.blocks = nn.ModuleList([block(at) for at in range(COUNT)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x).pow(2).mean()


class ByNumber(Block):
    def changed(self, x: torch.Tensor) -> torch.Tensor:
        return x.tanh() if self.at == 4 else x


class ByParity(Block):
    def changed(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if self.at % 2 else x


class ByRate(Block):
    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.drop = nn.Dropout(0.1 * at)


class OneRate(Block):
    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.drop.p = 0.3 if at == 3 else 0.1


class Frozen(Block):
    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.first.weight.requires_grad_(at != 3)


class OtherShape(Block):
    def __init__(self, at: int) -> None:
        super().__init__(at)
        if at == 2:
            self.first, self.second = nn.Linear(8, 12), nn.Linear(12, 8)


class Transposed(Block):
    def __init__(self, at: int) -> None:
        super().__init__(at)
        if at == 2:
            self.first.weight = nn.Parameter(torch.randn(8, 16).t())


class ChannelsLast(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Images(Stack):
    """The blocks return tensors in channels-last layout."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x).unflatten(1, (2, 4)).permute(0, 3, 1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(x.permute(0, 2, 3, 1)).pow(2).mean()


class Counts(Block):
    """Updates a buffer."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.register_buffer("seen", torch.zeros(()))

    def changed(self, x: torch.Tensor) -> torch.Tensor:
        assert isinstance(self.seen, torch.Tensor)
        if self.at != 1:
            self.seen += 1
        return x + self.seen


class Normed(Block):
    """Batch norm: running statistics."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.batch = nn.BatchNorm1d(16)

    def changed(self, x: torch.Tensor) -> torch.Tensor:
        return self.batch(x.flatten(0, 1)).view_as(x)


class InPlace(Block):
    def changed(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 2).add_(1)


class OnInput(nn.Module):
    """Writes into its input."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.inner, self.at = Block(at), at

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x.detach())
        return x.mul_(2) if self.at == 3 else x + y


class Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.relu()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad / 2


class OwnFunction(Block):
    def changed(self, x: torch.Tensor) -> torch.Tensor:
        return Half.apply(x) if self.at == 4 else x.relu()  # type: ignore[no-any-return]


class HookedGradient(Block):
    def changed(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if self.at == 4:
            y.register_hook(lambda grad: grad * 3)
        return y


class Detached(Block):
    def changed(self, x: torch.Tensor) -> torch.Tensor:
        return x + (x.detach() if self.at == 4 else x)


class NoGradient(Block):
    def changed(self, x: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(self.at != 4):
            return x * 2


class Cast(Block):
    def changed(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.at == 4):
            return functional.linear(x, self.first.weight @ self.second.weight)


class Leaves(Block):
    """Stores a tensor in a global, which a later block reads."""

    def changed(self, x: torch.Tensor) -> torch.Tensor:
        if self.at == 1:
            STATE["left"] = x
        return x + STATE["left"] if self.at == 5 else x


class Closure(Block):
    """A tensor from a closure, created again by every forward of the whole model."""

    def changed(self, x: torch.Tensor) -> torch.Tensor:
        return x * STATE["scale"]


class WithClosure(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        STATE["scale"] = self.embed.weight.sum()
        return super().forward(x)


class Layered(Stack):
    """All hidden states, a number with each, a mask for all of them."""

    def __init__(self) -> None:
        super().__init__(Masked)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, states = self.embed(x), []
        mask = torch.ones(8, 8, dtype=torch.bool).tril()
        for block in self.blocks:
            x, _, number = block(x, mask=mask)
            states.append(x * number)
        return torch.stack(states).pow(2).mean()


class Masked(Block):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> Any:  # type: ignore[override]
        y = self.second(self.first(x).relu())
        return x + y.masked_fill(mask, 0.0), y, 2


class Tied(Stack):
    def __init__(self) -> None:
        super().__init__()
        left, right = self.blocks[1], self.blocks[4]
        assert isinstance(left, Block)
        assert isinstance(right, Block)
        right.first.weight = left.first.weight


class Twice(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks[3](self.embed(x))
        for block in self.blocks:
            x = block(x)
        return self.head(x).pow(2).mean()


class SharedState(Stack):
    """Every block reads one tensor several times. Its gradient is summed in the order of reads."""

    def __init__(self) -> None:
        super().__init__(Crossed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        shared = x.tanh()
        for block in self.blocks:
            x = block(x, shared)
        return self.head(x).pow(2).mean()


class Crossed(Block):
    def forward(self, x: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return x + self.second(self.first(shared).relu()) * shared


class SharedOnce(SharedState):
    """Every block reads the tensor once, so the sum is within the block's backward."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Biased(at) for at in range(COUNT)])


class Biased(Block):
    def forward(self, x: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return x + self.second(self.first(x).relu()) + shared


class Written(Stack):
    """The caller writes into what the blocks return."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x).mul_(2)
        return self.head(x).pow(2).mean()


class Cached(Stack):
    """A list among the arguments, as in caches of keys and values."""

    def __init__(self) -> None:
        super().__init__(Keeping)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, kept = self.embed(x), []
        for block in self.blocks:
            x = block(x, kept)
        return self.head(x + kept[2]).pow(2).mean()


class Keeping(Block):
    def forward(self, x: torch.Tensor, kept: list[torch.Tensor]) -> torch.Tensor:  # type: ignore[override]
        y = super().forward(x)
        kept.append(y * 2)
        return y


class Cased(Stack):
    """Ambient autocast around one part of forward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        with torch.autocast("cpu", torch.bfloat16):
            for block in self.blocks:
                x = block(x)
        return self.head(x.float()).pow(2).mean()


class Packed(Stack):
    """Only torch's own modules."""

    def __init__(self) -> None:
        super().__init__(lambda at: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True))


def doubled(module: nn.Module, args: Any, output: Any) -> Any:
    return output * 2


def with_hook(what: str) -> Stack:
    model = Stack()
    block = model.blocks[3]
    assert isinstance(block, Block)
    if what == "forward":
        block.first.register_forward_hook(doubled)
    elif what == "around":
        block.register_forward_hook(doubled)
    elif what == "before":
        block.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    else:
        block.first.register_full_backward_hook(lambda module, grads, given: (grads[0] * 2,))
    return model


def instance_forward() -> Stack:
    model = Stack()
    block = model.blocks[3]
    usual = block.forward
    block.forward = lambda x: usual(x) * 2  # type: ignore[method-assign]
    return model


def evaluated() -> Stack:
    model = Stack()
    model.blocks[3].eval()
    return model


KINDS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    # how many of the blocks are not traced
    "plain": (Stack, COUNT),
    "number": (lambda: Stack(ByNumber), COUNT - 1),
    "parity": (lambda: Stack(ByParity), COUNT),
    "rates": (lambda: Stack(ByRate), 0),
    "one rate": (lambda: Stack(OneRate), COUNT - 1),
    "frozen": (lambda: Stack(Frozen), COUNT - 1),
    "shape": (lambda: Stack(OtherShape), COUNT - 1),
    "strides": (lambda: Stack(Transposed), COUNT - 1),
    "channels last": (lambda: Images(ChannelsLast), COUNT),
    "counts": (lambda: Stack(Counts), 0),
    "batch norm": (lambda: Stack(Normed), 0),
    "in place": (lambda: Stack(InPlace), COUNT),
    "on its input": (lambda: Stack(OnInput), COUNT - 2),
    "own function": (lambda: Stack(OwnFunction), COUNT - 1),
    "gradient's hook": (lambda: Stack(HookedGradient), COUNT - 1),
    "detached": (lambda: Stack(Detached), COUNT - 1),
    "no gradient": (lambda: Stack(NoGradient), COUNT - 1),
    "cast": (lambda: Stack(Cast), COUNT - 1),
    "left": (lambda: Stack(Leaves), COUNT - 2),
    "closure": (lambda: WithClosure(Closure), 0),
    "layered": (Layered, COUNT),
    "tied": (Tied, COUNT - 2),
    "twice": (Twice, COUNT - 1),
    "shared": (SharedState, 0),
    "shared once": (SharedOnce, 0),
    "written": (Written, 0),
    "cached": (Cached, 0),
    "autocast": (Cased, COUNT),
    "torch's own": (Packed, COUNT),
    "hook inside": (lambda: with_hook("forward"), COUNT - 1),
    "hook around": (lambda: with_hook("around"), COUNT),
    "hook before": (lambda: with_hook("before"), COUNT),
    "hook of backward": (lambda: with_hook("backward"), COUNT - 1),
    "forward of its own": (instance_forward, COUNT - 1),
    "evaluated": (evaluated, COUNT - 1),
}
