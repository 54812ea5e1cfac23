"""What a model does differently when it is compiled or exported is not captured, but where a value would be read."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy
import pytest
import torch
import torch.utils.checkpoint
from torch import nn

from remate.capture.capture_step import CaptureError, capture
from remate.step_measurement.beside_eager import try_schedule
from remate_runtime import apply

from ..runtime.small import data, seeded
from ..runtime.stepping import schedule_of

X = data(4, 4)


class Asking(nn.Module):
    """Calls `choose(module, x)` on the result of its linear layer."""

    def __init__(self, choose: Any, **attributes: Any) -> None:
        super().__init__()
        self.linear, self.choose = nn.Linear(4, 4), choose
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.choose(self, self.linear(x)).sum()


def operators(model: nn.Module) -> list[str]:
    return [op.op for op in capture(model, (X,)).graph.operations]


def exact(module: nn.Module, y: torch.Tensor) -> torch.Tensor:
    return y.exp() if torch.compiler.is_compiling() or torch.compiler.is_exporting() else y.tanh()


def of_positions(module: nn.Module, y: torch.Tensor) -> torch.Tensor:
    positions = torch.arange(len(y)).unsqueeze(0)
    packed = (torch.diff(positions, prepend=positions[:, :1] - 1) != 1).cumsum(-1)
    if not torch.compiler.is_compiling() and (packed[:, -1] == 0).all():
        return y.tanh()
    return y.exp()


def of_constants(module: nn.Module, y: torch.Tensor) -> torch.Tensor:
    table = torch.zeros(3)
    table[1] = 2.0
    return y.tanh() if torch.tensor([1.0, 2.0]).sum() == 3 and table.new_ones(2).sum().item() == 2 else y.exp()


def of_data(module: nn.Module, y: torch.Tensor) -> torch.Tensor:
    if not torch.compiler.is_compiling() and y.sum() > 0:
        return y * 2
    return y + y


def test_code_is_not_told_that_it_is_compiled():
    assert "aten.tanh" in operators(seeded(Asking(exact)))
    assert not torch.compiler.is_compiling()


@pytest.mark.quick("of_positions")
@pytest.mark.parametrize("choose", [of_positions, of_constants])
def test_values_that_depend_on_shapes_alone_are_known(choose):
    model = seeded(Asking(choose))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        planned = apply(model, schedule_of(model, (X,)))
    assert "aten.tanh" in operators(model)
    assert torch.equal(planned(X), model(X))


def written(module: nn.Module, y: torch.Tensor) -> torch.Tensor:
    table = torch.zeros(4)
    table += y.detach()[0]
    return y if table.sum() > 0 else -y


def noise(module: nn.Module, y: torch.Tensor) -> torch.Tensor:
    return y if (torch.ones(3) * torch.rand(3)).sum() > 1 else -y


def empty(module: nn.Module, y: torch.Tensor) -> torch.Tensor:
    return y if torch.empty(3).fill_(1.0).add(torch.empty(3)).sum() > 1 else -y


@pytest.mark.parametrize(
    "choose", [written, noise, empty, lambda module, y: y if module.linear.weight.sum() > 0 else -y]
)
def test_values_of_data_random_numbers_and_parameters_are_not(choose):
    with pytest.raises(CaptureError, match=r"reads a tensor's value"):
        capture(seeded(Asking(choose)), (X,))


def test_where_a_value_would_be_read_that_function_is_compiled_and_the_user_told():
    model = seeded(Asking(lambda module, y: of_data(module, exact(module, y))))
    with pytest.warns(
        UserWarning, match=r"another branch than the captured one in of_data \(test_capture_branches.py:\d+\)"
    ):
        names = operators(model)
    assert "aten.tanh" in names
    assert "aten.exp" not in names
    assert not torch.compiler.is_compiling()


SIZES = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "use_cache": False}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Llama", "Qwen3", "Gemma3"])
def test_decoders_have_eagers_peak_and_gradients(name):
    transformers = pytest.importorskip("transformers")
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 16}
    kind = f"{name}TextConfig" if name == "Gemma3" else f"{name}Config"
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, kind)(**SIZES, **heads)).train()
    ids = torch.arange(32).view(2, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule = schedule_of(model, (), {"input_ids": ids, "labels": ids}, lambda graph: [])
    trial = try_schedule(model, (), {"input_ids": ids, "labels": ids}, schedule, 1)
    assert trial.peak == trial.eager_peak
    planned = apply(model, schedule)
    for left, right in zip(gradients(planned, ids), gradients(model, ids), strict=True):
        assert torch.equal(left, right)


def gradients(model: Any, ids: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    model(input_ids=ids, labels=ids).loss.backward()
    return [p.grad.clone() for p in model.parameters()]


OWN = {"python": random.Random(0), "numpy": numpy.random.default_rng(0), "old": numpy.random.RandomState(0)}
DRAWS = {
    "Python's random": lambda module, y: y if random.random() < 0.5 else -y,
    "numpy.random": lambda module, y: y * float(numpy.random.rand()),
    "'python'": lambda module, y: y * module.python.random(),
    "'numpy'": lambda module, y: y * float(module.numpy.random()),
    "'old'": lambda module, y: y if module.old.rand() < 0.5 else -y,
}


def state_of_numpy() -> str:
    words: Any = numpy.random.get_state()
    return str([*words[1].tolist(), *words[2:]])


@pytest.mark.parametrize("what", DRAWS)
def test_draws_outside_the_operations_are_refused(what):
    model = seeded(Asking(DRAWS[what], **OWN))
    states = random.getstate(), state_of_numpy(), torch.get_rng_state(), OWN["python"].getstate()
    with pytest.raises(CaptureError, match=rf"forward draws from {what}.*\n.*layerdrop=0"):
        capture(model, (X,))
    assert states[0] == random.getstate()
    assert states[1] == state_of_numpy()
    assert torch.equal(states[2], torch.get_rng_state())
    assert states[3] == OWN["python"].getstate()


def seeded_in_forward(module: Any, y: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    return y * torch.randn_like(y)


def forked(module: Any, y: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng():
        noise = torch.randn_like(y)
    return y * noise


def replayed(module: Any, y: torch.Tensor) -> torch.Tensor:
    state = torch.get_rng_state()
    once = torch.dropout(y, 0.5, True)
    torch.set_rng_state(state)
    return once + torch.dropout(y * 2, 0.5, True)


def seeded_at_its_end(module: Any, y: torch.Tensor) -> torch.Tensor:
    tensor = y * 2
    torch.default_generator.manual_seed(1)
    return tensor


@pytest.mark.parametrize("choose", [seeded_in_forward, forked, replayed, seeded_at_its_end])
def test_generators_that_forward_seeds_or_sets_back_are_refused(choose):
    model = seeded(Asking(choose))
    state = torch.get_rng_state()
    with pytest.raises(
        CaptureError, match=r"forward seeds torch's generator, or restores.*\(test_capture_branches\.py:\d+\)"
    ):
        capture(model, (X,))
    assert torch.equal(state, torch.get_rng_state())


def test_a_seed_that_forward_reads_is_refused():
    with pytest.raises(CaptureError, match="something else at its next call"):
        capture(seeded(Asking(lambda module, y: y * (torch.initial_seed() % 7))), (X,))


@pytest.mark.slow
def test_layerdrop_of_hugging_face_is_refused():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    convolutions = {"conv_dim": (8, 8), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2}
    positions = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    config = transformers.Wav2Vec2Config(**sizes, **convolutions, **positions, layerdrop=0.0, mask_time_prob=0.5)
    model = transformers.Wav2Vec2Model(config).train()
    with pytest.raises(CaptureError, match=r"numpy\.random.*\n.*mask_time_prob=0"):
        capture(model, (torch.randn(1, 800),))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_in_the_model_are_told(reentrant):
    def choose(module, y):
        return torch.utils.checkpoint.checkpoint(torch.tanh, y, use_reentrant=reentrant)

    with pytest.warns(UserWarning, match=r"checkpoint \(test_capture_branches\.py:\d+\).*is at \d+%"):
        capture(seeded(Asking(choose)), (X,))


class Dropping(nn.Module):
    """Skips its layer at random, by torch's generator."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.encoder_layerdrop = nn.Linear(4, 4), 0.1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.training and torch.rand([]) < self.encoder_layerdrop else self.layer(x)


def test_layer_drop_is_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Dropping())
    with pytest.raises(CaptureError, match=r"model\.1\.encoder_layerdrop = 0\.0"):
        capture(model, (torch.ones(2, 4),))
    with pytest.raises(CaptureError, match=r"train without: model\.encoder_layerdrop = 0\.0"):
        capture(Dropping(), (torch.ones(2, 4),))
