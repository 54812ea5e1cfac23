"""Calls in every form that Python allows: a planned model computes what eager does, or refuses; never anything else."""

from __future__ import annotations

import dataclasses
from collections import UserDict
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import nn

from remate_runtime import BindError, apply
from remate_runtime.bind.containers import children

from .small import data, seeded
from .stepping import schedule_of

PHASES = (Phase.explicit, Phase.generate)  # shrinking plans a model at every step: minutes
SETTINGS = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    phases=PHASES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
SHAPE = (3, 2)  # of every tensor: a swapped pair is not noticed by its type


@dataclasses.dataclass
class Batch:
    first: Any
    second: Any = None


class Both(NamedTuple):
    left: Any
    right: Any


class Folding(nn.Module):
    """Takes arguments of every kind, and folds all tensors in them in an order that matters."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(2, 2)

    def forward(self, a, /, b, c=None, *rest, d, e=None, f=1.5, g=(1, None), **more):
        out = self.lin(torch.ones(SHAPE))
        for weight, leaf in enumerate(leaves([a, b, c, rest, d, e, f, g, more]), 1):
            out = out * 0.75 + (self.lin(leaf) if isinstance(leaf, torch.Tensor) else leaf) * weight
        return out.tanh().sum()


class Keywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(2, 2)

    def forward(self, **batch):
        return sum((at + 1) * self.lin(batch[name]).tanh().sum() for at, name in enumerate(sorted(batch)))


def leaves(node: Any) -> list[Any]:
    inner = children(node)
    if inner is None:
        return [0.125 if node is None else node]
    return [leaf for part in inner[1].values() for leaf in leaves(part)]


def fresh(node: Any, seed: int) -> Any:
    """The same structure with other numbers in its tensors."""
    if isinstance(node, torch.Tensor):
        return data(*SHAPE, seed=seed)
    if isinstance(node, Batch):
        return Batch(fresh(node.first, seed + 1), fresh(node.second, seed + 2))
    if isinstance(node, Both):
        return Both(fresh(node.left, seed + 3), fresh(node.right, seed + 4))
    if isinstance(node, UserDict | dict):
        return type(node)({key: fresh(part, seed + 5 + at) for at, (key, part) in enumerate(node.items())})
    if isinstance(node, tuple | list):
        return type(node)(fresh(part, seed + 9 + at) for at, part in enumerate(node))
    return node


tensors = st.builds(lambda seed: data(*SHAPE, seed=seed), st.integers(0, 99))
literals = st.sampled_from([None, 2, 2.0, True, 0.5, -0.0])
arguments = st.recursive(
    tensors | literals,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.tuples(inner, inner),
        st.fixed_dictionaries({"u": inner}, optional={"v": inner}),
        st.fixed_dictionaries({"u": inner}).map(UserDict),
        st.builds(Batch, inner, inner),
        st.builds(Both, inner, inner),
    ),
    max_leaves=4,
)
OPTIONAL: dict[str, Any] = {"c": None, "e": None, "f": 1.5, "g": (1, None)}


@st.composite
def calls(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments by name; `rest` and `more` hold those of `*rest` and `**more`."""
    call = {name: draw(arguments) for name in "abd"}
    call |= draw(st.fixed_dictionaries({}, optional=dict.fromkeys(OPTIONAL, arguments)))
    call["rest"] = draw(st.lists(arguments, max_size=2)) if "c" in call else []
    call["more"] = draw(st.fixed_dictionaries({}, optional=dict.fromkeys(["a", "z", "rest"], arguments)))
    return call


def spelled(draw: Any, call: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """One of the ways to write a call down; what has its default may be written or left out."""
    call = dict(call)
    for name, default in OPTIONAL.items():
        if name not in call and draw(st.booleans()) and (name != "c" or not call["rest"]):
            call[name] = default
        elif name in call and not call["rest"] and is_default(call[name], default) and draw(st.booleans()):
            del call[name]
    count = 3 if call["rest"] else draw(st.integers(1, 3 if "c" in call else 2))
    positional = [call[name] for name in "abc"[:count]] + call["rest"]
    named = {name: call[name] for name in draw(st.permutations("bcdefg")) if name in call and name not in "abc"[:count]}
    both = [*named.items(), *((name, value) for name, value in call["more"].items())]
    if draw(st.booleans()):
        both = [*call["more"].items(), *named.items()]
    return positional, dict(both)


def is_default(value: Any, default: Any) -> bool:
    return type(value) is type(default) and not leaves_differ(value, default)


def leaves_differ(value: Any, default: Any) -> bool:
    left, right = leaves(value), leaves(default)
    return [(type(x), str(x)) for x in left] != [(type(x), str(x)) for x in right] or children(value) != children(
        default
    )


def gradients(model: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    model.zero_grad()
    loss = model(*args, **kwargs)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters())]


@SETTINGS
@given(st.data())
def test_any_spelling_of_the_planned_call_computes_what_eager_does(draws):
    model = seeded(Folding())
    call = draws.draw(calls())
    args, kwargs = spelled(draws.draw, call)
    planned = apply(model, schedule_of(model, args, kwargs))
    for seed in (100, 200):
        again = {name: fresh(value, seed + at) for at, (name, value) in enumerate(call.items())}
        args, kwargs = spelled(draws.draw, again)
        for actual, wanted in zip(gradients(planned, args, kwargs), gradients(model, args, kwargs), strict=True):
            assert torch.equal(actual, wanted)


@pytest.mark.slow
@SETTINGS
@given(st.data())
def test_any_other_call_computes_what_eager_does_or_is_refused(draws):
    model = seeded(Folding())
    call = draws.draw(calls())
    planned = apply(model, schedule_of(model, *spelled(draws.draw, call)))
    right = draws.draw(calls())
    mixed = {**call, **{name: right[name] for name in draws.draw(st.sets(st.sampled_from(sorted(right))))}}
    if "c" not in mixed:
        mixed["rest"] = []
    if draws.draw(st.booleans()):
        mixed["more"] = dict(reversed(mixed["more"].items()))
    args, kwargs = spelled(draws.draw, mixed)
    wanted = gradients(model, args, kwargs)
    try:
        actual = gradients(planned, args, kwargs)
    except BindError:
        return
    assert all(torch.equal(left, right) for left, right in zip(actual, wanted, strict=True))


def test_arguments_go_by_name():
    class Three(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(2, 2)

        def forward(self, a, b=None, c=None):
            return (self.lin(a) * b - c).sum()

    model = seeded(Three())
    a, b, c = (data(*SHAPE, seed=seed) for seed in range(3))
    planned = apply(model, schedule_of(model, (), {"c": c, "a": a, "b": b}))
    for args, kwargs in [((a, b, c), {}), ((), {"a": a, "b": b, "c": c}), ((a,), {"c": c, "b": b})]:
        for actual, wanted in zip(gradients(planned, args, kwargs), gradients(model, args, kwargs), strict=True):
            assert torch.equal(actual, wanted)


def test_forward_of_keywords_only_takes_them_as_planned():
    model = seeded(Keywords())
    batch = {name: data(*SHAPE, seed=seed) for seed, name in enumerate("qrs")}
    planned = apply(model, schedule_of(model, (), batch))
    for actual, wanted in zip(gradients(planned, (), batch), gradients(model, (), batch), strict=True):
        assert torch.equal(actual, wanted)
    other = dict(reversed(batch.items()))
    for actual, wanted in zip(gradients(planned, (), other), gradients(model, (), other), strict=True):
        assert torch.equal(actual, wanted)
    with pytest.raises(BindError, match="'r' is missing"):
        planned(q=batch["q"], s=batch["s"])
    with pytest.raises(BindError, match="without the input 't'"):
        planned(**batch, t=batch["q"])


def test_mappings_are_walked_in_the_planned_order():
    class Summing(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(2, 2)

        def forward(self, batch):
            return sum((at + 1) * self.lin(x).tanh().sum() for at, x in enumerate(batch.values()))

    model = seeded(Summing())
    x, y = data(*SHAPE, seed=1), data(*SHAPE, seed=2)
    planned = apply(model, schedule_of(model, (UserDict(x=x, y=y),)))
    assert torch.equal(planned({"x": x, "y": y}), model({"x": x, "y": y}))
    for _ in range(2):
        with pytest.raises(
            BindError, match=r"keys of the input 'batch' have another order.*\n  pass them in the planned order: x, y"
        ):
            planned({"y": y, "x": x})


class Passing(nn.Module):
    """As a Lightning module around a model: takes a batch by name, or as a mapping, and hands it on."""

    def __init__(self):
        super().__init__()
        self.lin, self.drop, self.norm = nn.Linear(2, 2), nn.Dropout(0.3), nn.BatchNorm1d(2)

    def inner(self, x, y=None, **more):
        return (self.norm(self.drop(self.lin(x))) * more["z"] - y).square().sum()

    def forward(self, given=None, **batch):
        first = 0.0 if given is None else self.inner(**given["in"][0])
        return first + (self.inner(**batch) if batch else 0.0)


@pytest.mark.quick("dict")
@pytest.mark.parametrize("kind", [dict, UserDict])
def test_keys_in_another_order_are_taken_where_forward_does_the_same_with_them(kind):
    model = seeded(Passing())
    x, y, z = (data(3, 2, seed=seed) for seed in range(3))
    planned = apply(model, schedule_of(model, (kind({"in": (kind(x=x, y=y, z=z),)}),), {"x": z, "y": x, "z": y}))
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    results = []
    for module in (planned, model):
        model.load_state_dict(buffers, strict=False)
        torch.manual_seed(0)
        steps = [gradients(module, (kind({"in": (kind(z=z, x=x, y=y),)}),), {"z": y, "x": z, "y": x}) for _ in range(2)]
        results.append([*steps[0], *steps[1], *(buffer.clone() for buffer in model.buffers()), torch.rand(1)])
    for ours, eagers in zip(*results, strict=True):
        assert torch.equal(ours, eagers)


@pytest.mark.quick("first")
@pytest.mark.parametrize("looks", ["items", "first", "grad", "out"])
def test_whatever_goes_by_the_order_of_keys_is_refused(looks):
    class Looking(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(2, 2)

        def forward(self, **batch):
            x = self.lin(batch["a"] - batch["b"])
            if looks == "items":
                return sum((x * y).sum() for y in batch.values())
            if looks == "first":
                return (x * next(iter(batch.values()))).sum()
            with torch.set_grad_enabled(looks != "grad" or next(iter(batch)) == "a"):
                y = x.tanh()
            return {k: (x + y).sum() for k in batch} if looks == "out" else (x * y).sum()

    model, x, y = seeded(Looking()), data(*SHAPE), data(*SHAPE, seed=4)
    planned = apply(model, schedule_of(model, (), {"a": x, "b": y}))
    with pytest.raises(BindError, match=r"keyword arguments that forward takes as .* have another order"):
        planned(b=y, a=x)


def test_records_are_of_the_planned_class_and_have_no_further_fields():
    transformers = pytest.importorskip("transformers")
    output = transformers.modeling_outputs.BaseModelOutput

    class Reading(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(2, 2)

        def forward(self, given):
            out = self.lin(given.last_hidden_state)
            return (out if given.hidden_states is None else out * given.hidden_states[0]).sum()

    model, x = seeded(Reading()), data(*SHAPE)
    planned = apply(model, schedule_of(model, (output(last_hidden_state=x),)))
    assert torch.equal(planned(output(last_hidden_state=x)), model(output(last_hidden_state=x)))
    with pytest.raises(BindError, match=r"must have the fields \['last_hidden_state'\]"):
        planned(output(last_hidden_state=x, hidden_states=(x,)))
    with pytest.raises(BindError, match="was a BaseModelOutput when planning, now it is BaseModelOutputWithPooling"):
        planned(transformers.modeling_outputs.BaseModelOutputWithPooling(last_hidden_state=x))


@pytest.mark.parametrize("live", [2.0, True, "2"])
def test_numbers_are_of_the_planned_type(live):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(9, 2)

        def forward(self, ids, scale=2):
            return self.table((ids * scale).long()).sum()

    model, ids = seeded(Scaled()), torch.arange(4)
    planned = apply(model, schedule_of(model, (ids,), {"scale": 2}))
    with pytest.raises(BindError, match="'scale' was 2 when planning"):
        planned(ids, scale=live)


@pytest.mark.slow
@pytest.mark.parametrize("planned_as", ["tokenizer", "signature", "shuffled", "positional"])
def test_bert_as_tokenizers_call_it(planned_as):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 32, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(**sizes, intermediate_size=8, max_position_embeddings=8, num_labels=2)
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    ids = torch.randint(2, 32, (2, 8))
    given = {
        "input_ids": ids,
        "token_type_ids": torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]] * 2),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 0, 0, 0], [1] * 8]),
        "labels": torch.tensor([0, 1]),
    }
    orders = {
        "tokenizer": list(given),
        "signature": ["input_ids", "attention_mask", "token_type_ids", "labels"],
        "shuffled": ["labels", "token_type_ids", "input_ids", "attention_mask"],
    }
    if planned_as == "positional":
        schedule = schedule_of(model, [given[name] for name in orders["signature"][:3]], {"labels": given["labels"]})
    else:
        schedule = schedule_of(model, (), {name: given[name] for name in orders[planned_as]})
    planned = apply(model, schedule)
    wanted = losses(model, given)
    batch = transformers.BatchEncoding(given)
    for order in orders.values():
        for actual, want in zip(losses(planned, {name: batch[name] for name in order}), wanted, strict=True):
            assert torch.equal(actual, want)
    for actual, want in zip(losses(planned, batch), wanted, strict=True):
        assert torch.equal(actual, want)


def losses(model: Any, batch: Any) -> list[torch.Tensor]:
    model.zero_grad()
    out = model(**batch)
    out.loss.backward()
    return [out.loss.detach(), out.logits.detach(), *(p.grad.clone() for p in model.parameters())]
