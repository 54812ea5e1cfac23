"""The planned module is the model: everything but forward is shared."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import remate_runtime
from remate_runtime import BindError, ScheduleError, apply
from remate_runtime.format.fingerprints import fingerprint
from remate_runtime.format.writer import save

from .small import Answer, Answering, Mlp, Normed, Pair, Tied, TwoHeads, data, seeded
from .stepping import assert_same, schedule_of, step


@pytest.fixture(scope="module")
def schedule():
    return schedule_of(seeded(Mlp(0.1)), (data(4, 8),))


@pytest.fixture
def model():
    return seeded(Mlp(0.1))


def test_state_is_shared(model, schedule):
    planned = apply(model, schedule)
    assert planned.state_dict().keys() == model.state_dict().keys()
    assert all(a is b for a, b in zip(planned.parameters(), model.parameters(), strict=True))
    assert isinstance(planned, Mlp)
    assert repr(planned) == repr(model)
    planned.eval()
    assert not model.training
    assert not model.drop.training
    model.train()
    assert planned.training
    planned(data(4, 8)).sum().backward()
    assert model.a.weight.grad is not None
    model.zero_grad()
    assert planned.a.weight.grad is None
    planned.note = torch.zeros(1)
    assert model.note is planned.note
    assert inspect.signature(planned.forward) == inspect.signature(model.forward)
    assert type(planned).forward is Mlp.forward
    assert type(model) is Mlp


def test_load_state_dict_between_the_two(model, schedule):
    planned, other = apply(model, schedule), Mlp()
    planned.load_state_dict(other.state_dict())
    assert torch.equal(model.a.weight, other.a.weight)
    eager = copy.deepcopy(model)
    assert_same(step(planned, (data(4, 8),)), step(eager, (data(4, 8),)))


def test_attributes_and_methods_of_the_model():
    model, args = seeded(Answering()), (data(2, 8),)
    planned = apply(model, schedule_of(model, args))
    assert planned.config == {"width": 8}
    assert planned.describe() == "width 8, train"
    with pytest.raises(AttributeError, match="'Answering' object has no attribute 'nothing'"):
        _ = planned.nothing


def test_from_a_path(model, schedule, tmp_path):
    path = tmp_path / "s.json"
    save(schedule, str(path))
    for source in (path, str(path), remate_runtime.load(path)):
        assert_same(step(apply(model, source), (data(4, 8),)), step(copy.deepcopy(model), (data(4, 8),)))
    with pytest.raises(ScheduleError, match="cannot be read"):
        apply(model, tmp_path / "none.json")


def test_applying_twice_binds_to_the_model_itself(model, schedule):
    planned = apply(apply(model, schedule), schedule)
    assert_same(step(planned, (data(4, 8),)), step(copy.deepcopy(model), (data(4, 8),)))
    planned.eval()
    planned(data(3, 8))


def test_deepcopy_pickle_and_torch_save(model, schedule):
    planned, x = apply(model, schedule), data(4, 8)
    wanted = step(planned, (x,))
    buffer = io.BytesIO()
    torch.save(planned, buffer)
    buffer.seek(0)
    copies = [copy.deepcopy(planned), pickle.loads(pickle.dumps(planned)), torch.load(buffer, weights_only=False)]
    for other in copies:
        assert other.a.weight is not model.a.weight
        assert_same(step(other, (x,)), wanted)
    assert torch.equal(model.a.weight.grad, wanted["grad a.weight"])


def test_weights_only_needs_the_classes_of_the_model_alone(model, schedule):
    buffer = io.BytesIO()
    torch.save(apply(model, schedule), buffer)
    buffer.seek(0)
    assert {name for name in torch.serialization.get_unsafe_globals_in_checkpoint(buffer) if "remate" in name} == set()
    classes = {type(module) for module in model.modules()}
    with torch.serialization.safe_globals([*classes, set]):
        buffer.seek(0)
        other = torch.load(buffer, weights_only=True)
    x = data(4, 8)
    assert_same(step(other, (x,)), step(apply(model, schedule), (x,)))


def test_weights_only_permits_no_operators(model, schedule):
    """A permission that a file gives itself would be none."""
    buffer = io.BytesIO()
    torch.save(apply(model, schedule, namespaces=("aten._weight_norm_interface",)), buffer)
    buffer.seek(0)
    allowed = torch.serialization.safe_globals([*{type(module) for module in model.modules()}, set])
    with allowed, pytest.raises(pickle.UnpicklingError, match="_permitted"):
        torch.load(buffer, weights_only=True)
    buffer.seek(0)
    torch.load(buffer, weights_only=False)


def test_an_overriding_forward_stays_with_the_planned_module(model, schedule):
    """As libraries do that wrap `forward` of an instance, for casts or hooks."""
    planned, calls = apply(model, schedule), []
    inner = planned.forward

    def wrapped(*args):
        calls.append(len(args))
        return inner(*args)

    planned.forward = wrapped
    planned(data(4, 8))
    model(data(5, 8))  # the model itself: eager, any shape
    assert calls == [1]


def test_instances_that_others_make_of_the_class(model, schedule):
    fresh = type(apply(model, schedule))()
    assert fresh(data(2, 8)).shape == (2, 8)


def test_a_forward_set_on_the_model_itself():
    model = seeded(Mlp())
    model.forward = lambda x: Mlp.forward(model, x) * 2
    x = data(4, 8)
    eager = seeded(Mlp())
    planned = apply(model, schedule_of(model, (x,)))
    assert torch.equal(planned(x), eager(x) * 2)
    model.eval()
    assert torch.equal(planned(x), eager(x) * 2)


def test_to_another_dtype_is_refused_and_back_is_fine(model, schedule):
    planned, x = apply(model, schedule), data(4, 8)
    planned.double()
    with pytest.raises(BindError, match=r"'a\.weight'.*planned f32\[32,8\].*f64\[32,8\]"):
        planned(x)
    planned.float()
    planned(x).sum().backward()
    planned.to(torch.device("cpu"))
    planned(x).sum().backward()


def test_replaced_parameters_and_modules(model, schedule):
    planned, x = apply(model, schedule), data(4, 8)
    model.a.weight = nn.Parameter(torch.zeros(32, 8))  # fits: taken from now on
    planned(x).sum().backward()
    assert model.a.weight.grad is not None
    model.a.weight = nn.Parameter(torch.zeros(32, 9))
    with pytest.raises(BindError, match=r"'a\.weight'.*f32\[32,9\]"):
        planned(x)
    model.a = nn.Linear(8, 32)
    with pytest.raises(BindError, match=r"module 'a': replaced"):
        planned(x)
    del model.a
    with pytest.raises(BindError, match=r"module 'a': replaced"):
        planned(x)


def test_a_module_that_is_added_later_is_refused(model, schedule):
    planned = apply(model, schedule)
    model.more = nn.Linear(8, 8)
    with pytest.raises(BindError, match=r"the model: has \d submodules, had \d when the schedule was applied"):
        planned(data(4, 8))
    del model.more
    planned(data(4, 8)).sum().backward()


def test_all_mismatches_in_one_error(schedule):
    model = nn.Module()
    model.a, model.b, model.drop = nn.Linear(8, 16), nn.Linear(32, 8).double(), nn.Dropout()
    model.lora, model.forward = nn.Linear(2, 2), Mlp.forward
    with pytest.raises(BindError) as caught:
        apply(model, schedule)
    text = str(caught.value)
    for part in (
        "planned for (Mlp)",
        "'a.weight': planned f32[32,8], the model has f32[16,8]",
        "'b.bias': planned f32[8], the model has f64[8]",
        "'lora.weight': not in the schedule",
    ):
        assert part in text
    with pytest.raises(BindError, match=r"'a.weight': not in the model"):
        apply(nn.Linear(8, 8), schedule)


def test_wrapped_models_are_told_apart(model, schedule):
    wrapped = nn.Module()
    wrapped.module = model
    with pytest.raises(BindError, match="apply the schedule first, then wrap"):
        apply(wrapped, schedule)


def test_ties_must_hold():
    model, ids = seeded(Tied()), torch.arange(5)
    schedule = schedule_of(model, (ids,))
    eager = copy.deepcopy(model)
    assert_same(step(apply(copy.deepcopy(model), schedule), (ids,)), step(eager, (ids,)))
    planned = apply(model, schedule)
    model.head.weight = nn.Parameter(model.head.weight.clone())
    with pytest.raises(BindError, match=r"'head\.weight': the same tensor as 'embed\.weight'"):
        planned(ids)


def test_frozen_parameters():
    model, x = seeded(Mlp()), data(4, 8)
    model.a.requires_grad_(False)
    planned, eager = apply(model, schedule_of(model, (x,))), copy.deepcopy(model)
    assert_same(step(planned, (x,)), step(eager, (x,)))
    assert model.a.weight.grad is None
    model.a.weight.requires_grad_(True)
    with pytest.raises(BindError, match=r"'a\.weight': frozen when planned"):
        planned(x)


def test_strided_parameters_are_refused(model, schedule):
    model.a.weight = nn.Parameter(torch.randn(8, 32).t())
    with pytest.raises(BindError, match=r"'a\.weight': planned f32\[32,8\].*\{1,32\}"):
        apply(model, schedule)


def test_buffers_may_be_replaced_and_plain_attributes_count():
    model, x = seeded(Answering()), data(2, 8)
    planned = apply(model, schedule_of(model, (x,)))
    model.scale = torch.full((4,), 2.0)
    assert torch.equal(planned(x).logits, copy.deepcopy(model)(x).logits)
    model.scale = torch.ones(5)
    with pytest.raises(BindError, match="buffer 'scale'"):
        planned(x)
    normed, image = seeded(Normed()), data(4, 3, 6, 6)
    planned = apply(normed, schedule_of(normed, (image,)))
    normed.norm.running_mean = torch.zeros(8)
    planned(image)
    assert normed.norm.running_mean.any()


def test_outputs_are_rebuilt():
    model, x = seeded(Answering()), data(2, 8)
    actual, wanted = apply(model, schedule_of(model, (x,)))(x), model(x)
    assert type(actual) is Answer
    assert torch.equal(actual.loss, wanted.loss)
    assert actual.extra[1] == {"n": 3}
    assert isinstance(actual.extra, tuple)
    assert actual.logits.requires_grad  # as in eager; the step refuses a gradient for it
    actual.loss.backward()
    model = seeded(TwoHeads())
    assert type(apply(model, schedule_of(model, (data(4, 8),)))(data(4, 8))) is Pair


def test_unknown_record_classes_are_refused():
    model, x = seeded(TwoHeads()), data(4, 8)
    schedule = schedule_of(model, (x,))
    schedule.model.outputs["record"] = "os.system"
    with pytest.raises(ScheduleError, match="fingerprint"):  # the signature is not to be edited
        apply(model, schedule)
    schedule = replace(schedule, model=replace(schedule.model, fingerprint=fingerprint(schedule)))
    with pytest.raises(BindError, match=r"returns a record 'os\.system' with the fields first, second"):
        apply(model, schedule)


@pytest.mark.slow
def test_hugging_face_style_classes_survive():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=17, n_positions=8, use_cache=False)
    model = transformers.GPT2LMHeadModel(config)
    ids = torch.arange(8).view(1, 8)
    schedule = schedule_of(model, (), {"input_ids": ids, "labels": ids})
    eager, planned = copy.deepcopy(model), apply(model, schedule)
    assert_same(
        step(planned, (), {"input_ids": ids, "labels": ids}), step(eager, (), {"input_ids": ids, "labels": ids})
    )
    result = planned(ids, labels=ids)
    assert type(result).__name__ == "CausalLMOutputWithCrossAttentions"
    assert isinstance(planned, transformers.PreTrainedModel)
    planned.eval()
    assert planned.generate(ids[:, :2], max_new_tokens=2, do_sample=False).shape == (1, 4)


def test_peak_over_the_budget_warns(model, schedule):
    tight = replace(schedule, solve=replace(schedule.solve, budget=10))
    with pytest.warns(UserWarning, match="over its budget"):
        apply(model, tight)


def test_precision_is_compared_at_the_call():
    """FSDP2 casts parameters for each call: they are in single precision when the schedule is applied."""
    x = data(2, 8).bfloat16()
    schedule = schedule_of(seeded(Mlp()).bfloat16(), (x,))
    model = seeded(Mlp())
    planned = apply(model, schedule)
    with pytest.raises(BindError, match=r"'a.weight': planned bf16\[32,8\], the model has f32\[32,8\]"):
        planned(x)
    model.bfloat16()
    assert torch.equal(planned(x), model(x))
    model.float()
    with pytest.raises(BindError, match=r"planned bf16\[32,8\], the model has f32"):
        planned(x)
    with pytest.raises(BindError, match=r"planned f32\[32,8\], the model has bf16"):
        apply(model.bfloat16(), schedule_of(seeded(Mlp()), (data(2, 8),)))


def test_parameters_that_are_views_of_a_flat_one():
    """As FSDP1 has them: the names are plain attributes of the modules while forward and backward run."""
    model, eager = seeded(Mlp()), seeded(Mlp())
    planned = apply(model, schedule_of(model, (data(2, 8),)))
    flat = torch.cat([p.detach().flatten() for p in model.parameters()]).requires_grad_()
    owners = [(m, name, p.shape) for m in model.modules() for name, p in m._parameters.items()]
    for module, name, _ in owners:
        del module._parameters[name]
    for _ in range(2):
        parts = flat.split([shape.numel() for _, _, shape in owners])
        for part, (module, name, shape) in zip(parts, owners, strict=True):
            setattr(module, name, part.view(shape))
        planned(data(2, 8)).sum().backward()
        eager(data(2, 8)).sum().backward()
    wanted: list[Any] = [p.grad for p in eager.parameters()]
    result: Any = flat.grad
    assert torch.equal(result, torch.cat([grad.flatten() for grad in wanted]))
