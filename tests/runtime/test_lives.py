"""A planned model and its eager twin live through the same: whatever a loop does in whatever order, they stay equal to
the bit; compiled, in double precision, but for rounding."""

from __future__ import annotations

import copy
import functools
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from torch import nn

from remate_runtime import apply
from remate_runtime.format.schedule import Schedule

from .small import data, seeded
from .stepping import everything, just_in_time, no_recomputes, schedule_of

Model = Any
RECOMPUTES = {"none": no_recomputes, "everything": everything, "just in time": just_in_time}
NAMES = ("embed.weight", "first.weight", "first.bias", "norm.weight", "last.weight", "gain")


class Lively(nn.Module):
    """Tied weights, a draw, running statistics, a counter, arguments of every kind, outputs that a loss may leave
    out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.first, self.norm = nn.Embedding(7, 6), nn.Linear(6, 10), nn.BatchNorm1d(10)
        self.drop, self.last, self.gain = nn.Dropout(0.3), nn.Linear(10, 6), nn.Parameter(torch.ones(6))
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("calls", torch.zeros(()))
        self.calls: torch.Tensor

    def forward(self, x: torch.Tensor, ids: torch.Tensor, mask: Any = None, *, scale: Any = None) -> dict[str, Any]:
        with torch.no_grad():
            self.calls.add_(1)
        h = x + self.embed(ids)
        h = h if mask is None else h * mask
        h = self.drop(torch.relu(self.norm(self.first(h))))
        h = self.last(h) * self.gain
        h = h if scale is None else h * scale
        return {"logits": self.head(h), "features": h, "best": h.argmax(-1), "power": h.square().mean()}


def arguments(seed: int, rows: int = 5, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 7, (rows,), generator=torch.Generator().manual_seed(seed))
    return {
        "x": data(rows, 6, seed=seed).to(dtype),
        "ids": ids,
        "mask": data(rows, 1, seed=seed + 1).to(dtype),
        "scale": data(1, seed=seed).to(dtype),
    }


@functools.cache
def schedule(recomputes: str, dtype: torch.dtype) -> Schedule:
    given = arguments(0, dtype=dtype)
    return schedule_of(
        seeded(Lively()).to(dtype),
        (given["x"], given["ids"], given["mask"]),
        {"scale": given["scale"]},
        RECOMPUTES[recomputes],
    )


def loss_of(out: dict[str, torch.Tensor], parts: frozenset[str]) -> torch.Tensor:
    return sum((out[name] * 1.5).square().mean() for name in sorted(parts))  # type: ignore[return-value]


seeds = st.integers(0, 5)
parts = st.frozensets(st.sampled_from(["logits", "features", "power"]), min_size=1)
names = st.sampled_from(NAMES)


class Lives(RuleBasedStateMachine):
    """`models`: the planned one and its twin. What a rule does to one it does to the other, from the same state of the
    generator."""

    engine = "eager"
    dtype = torch.float32
    near = 0.0  # what may differ

    def __init__(self) -> None:
        super().__init__()
        self.models: list[Model] = []
        self.grown = 0

    @initialize(recomputes=st.sampled_from(sorted(RECOMPUTES)))
    def begin(self, recomputes: str) -> None:
        prepared, file = seeded(Lively()).to(self.dtype), schedule(recomputes, self.dtype)
        planned = apply(prepared, file, otherwise="original", engine=self.engine)
        self.models = [planned.train(), seeded(Lively()).to(self.dtype).train()]

    def given(self, seed: int, rows: int = 5) -> dict[str, torch.Tensor]:
        return arguments(seed, rows, self.dtype)

    def same(self, ours: Any, wanted: Any) -> None:
        same(ours, wanted, self.near)

    def both(self, act: Callable[[Model], Any], seed: int = 0) -> None:
        """`act` on each; what it returns is equal, and so is what it draws."""
        results = []
        for model in self.models:
            torch.manual_seed(seed)
            result = act(model)
            results.append((result, torch.get_rng_state()))
        self.same(results[0][0], results[1][0])
        assert torch.equal(results[0][1], results[1][1]), "the generator"

    @rule(seed=seeds, parts=parts, order=st.permutations(["x", "ids", "mask", "scale"]), positional=st.integers(0, 3))
    def step(self, seed: int, parts: frozenset[str], order: list[str], positional: int) -> None:
        given = self.given(seed)
        first = [given[name] for name in ("x", "ids", "mask")[:positional]]
        named = {name: given[name] for name in order if name not in ("x", "ids", "mask")[:positional]}

        def act(model: Model) -> Any:
            out = model(*first, **named)
            loss_of(out, parts).backward()
            return {name: value.detach() for name, value in out.items()}

        self.both(act, seed)

    @rule(seed=seeds, parts=parts)
    def step_with_input_gradients(self, seed: int, parts: frozenset[str]) -> None:
        def act(model: Model) -> Any:
            given = {n: t.clone().requires_grad_(t.is_floating_point()) for n, t in self.given(seed).items()}
            loss_of(model(**given), parts).backward()
            return [tensor.grad for tensor in given.values()]

        self.both(act, seed)

    @rule(seed=seeds, parts=parts, how=st.sampled_from(["summed", "in order", "reversed"]))
    def two_forwards(self, seed: int, parts: frozenset[str], how: str) -> None:
        def act(model: Model) -> None:
            losses = [loss_of(model(**self.given(s)), parts) for s in (seed, seed + 1)]
            if how == "reversed":
                losses.reverse()
            for loss in losses:
                loss.backward()

        self.both(act, seed)

    @rule(seed=seeds, rows=st.sampled_from([2, 5, 8]), mode=st.sampled_from(["train", "eval"]))
    def without_gradients(self, seed: int, rows: int, mode: str) -> None:
        def act(model: Model) -> Any:
            model.train(mode == "train")
            with torch.no_grad():
                out = model(**self.given(seed, rows))
            model.train()
            return out

        self.both(act, seed)

    @rule(
        seed=seeds,
        parts=parts,
        rows=st.sampled_from([2, 3, 8]),
        leave=st.sampled_from([(), ("mask",), ("mask", "scale")]),
    )
    def another_call(self, seed: int, parts: frozenset[str], rows: int, leave: tuple[str, ...]) -> None:
        """The last batch of an epoch, arguments left out: the model's own forward runs."""

        def act(model: Model) -> Any:
            given = {name: tensor for name, tensor in self.given(seed, rows).items() if name not in leave}
            loss = loss_of(model(**given), parts)
            loss.backward()
            return loss.detach()

        self.both(act, seed)

    @rule(seed=seeds)
    def forward_alone(self, seed: int) -> None:
        self.both(lambda model: float(model(**self.given(seed))["power"]), seed)

    @rule(seed=seeds, parts=parts, of=st.lists(names, min_size=1, max_size=3, unique=True))
    def some_gradients(self, seed: int, parts: frozenset[str], of: list[str]) -> None:
        def act(model: Model) -> Any:
            known = dict(model.named_parameters())
            wanted = [known[name] for name in of if known[name].requires_grad]
            if not wanted:
                return None
            return torch.autograd.grad(loss_of(model(**self.given(seed)), parts), wanted, allow_unused=True)

        self.both(act, seed)

    @rule(name=names)
    def freeze_or_not(self, name: str) -> None:
        def act(model: Model) -> None:
            parameter = dict(model.named_parameters())[name]
            parameter.requires_grad_(not parameter.requires_grad)
            parameter.grad = None

        trained = [n for n, p in self.models[1].named_parameters() if p.requires_grad]
        if trained != [name]:
            self.both(act)

    @rule(rate=st.sampled_from([0.1, 1.0]), clip=st.booleans(), to_none=st.booleans())
    def optimize(self, rate: float, clip: bool, to_none: bool) -> None:
        def act(model: Model) -> None:
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=rate).step()
            model.zero_grad(set_to_none=to_none)

        self.both(act)

    @rule(name=names, shift=st.sampled_from([0.5, -0.25]))
    def change_data(self, name: str, shift: float) -> None:
        """As weights are loaded, averaged or pruned by a library."""

        def act(model: Model) -> None:
            parameter = dict(model.named_parameters())[name]
            parameter.data = parameter.data + shift
            model.norm.running_mean.add_(shift)

        self.both(act)

    @rule(seed=seeds)
    def load(self, seed: int) -> None:
        other = {name: tensor * 1.01 for name, tensor in seeded(Lively()).to(self.dtype).state_dict().items()}
        self.both(lambda model: model.load_state_dict(other) and None)

    @rule(how=st.sampled_from(["deepcopy", "file"]))
    def copied(self, how: str) -> None:
        def again(model: Model) -> Model:
            if how == "deepcopy":
                return copy.deepcopy(model)
            file = io.BytesIO()
            torch.save(model, file)
            file.seek(0)
            return torch.load(file, weights_only=False)

        gradients = how == "deepcopy" and [[p.grad for p in model.parameters()] for model in self.models]
        self.models = [again(model) for model in self.models]
        for model, held in zip(self.models, gradients or [], strict=False):
            for parameter, gradient in zip(model.parameters(), held, strict=True):
                parameter.grad = None if gradient is None else gradient.clone()

    @rule(seed=seeds, parts=parts, name=names)
    def hooked(self, seed: int, parts: frozenset[str], name: str) -> None:
        """A hook of a parameter sees its gradient, and changes it."""

        def act(model: Model) -> Any:
            seen: list[torch.Tensor] = []
            parameter = dict(model.named_parameters())[name]
            if not parameter.requires_grad:
                return seen
            handle = parameter.register_hook(lambda gradient: seen.append(gradient.clone()) or gradient * 2)
            loss_of(model(**self.given(seed)), parts).backward()
            handle.remove()
            return seen

        self.both(act, seed)

    @rule(seed=seeds)
    def wrong_call(self, seed: int) -> None:
        """Refused by both; the loop catches it and goes on."""
        for model in self.models:
            with pytest.raises(Exception):  # noqa: B017, PT011
                model(self.given(seed)["x"][:, :3], self.given(seed)["ids"])
        with torch.no_grad():
            self.models[0].calls.copy_(self.models[1].calls)

    @invariant()
    def equal(self) -> None:
        if self.models:
            ours, twin = self.models
            self.same(list(ours.parameters()), list(twin.parameters()))
            self.same([p.grad for p in ours.parameters()], [p.grad for p in twin.parameters()])
            self.same(dict(ours.named_buffers()), dict(twin.named_buffers()))
            assert [p.requires_grad for p in ours.parameters()] == [p.requires_grad for p in twin.parameters()]


def same(ours: Any, wanted: Any, near: float = 0.0) -> None:
    """Equal, to the bit or nearly, in the same layout."""
    assert type(ours) is type(wanted) or isinstance(wanted, torch.Tensor)
    if isinstance(wanted, dict):
        assert ours.keys() == wanted.keys()
        ours, wanted = list(ours.values()), list(wanted.values())
    if isinstance(wanted, list | tuple):
        for left, right in zip(ours, wanted, strict=True):
            same(left, right, near)
    elif isinstance(wanted, torch.Tensor):
        assert torch.equal(ours, wanted) or (near and torch.allclose(ours, wanted, near, near))
        assert ours.stride() == wanted.stride()
    else:
        assert ours == wanted or (near and ours == pytest.approx(wanted, rel=near, abs=near))


class ArenaLives(Lives):
    engine = "arena"


class CompiledLives(Lives):
    engine, dtype, near = "compiled", torch.float64, 1e-9


@pytest.mark.eager
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("lives", "count"),
    [
        (Lives, 3),
        *(pytest.param(*item, marks=pytest.mark.slow) for item in ((Lives, 8), (ArenaLives, 6), (CompiledLives, 1))),
    ],
)
def test_lives(lives: type[Lives], count: int) -> None:
    kept = settings(
        max_examples=count,
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=True,
    )
    run_state_machine_as_test(lives, settings=kept)
