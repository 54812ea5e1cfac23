"""One small model per peculiarity of modules: what is tied, frozen, updated, random, nested, cast, mutated."""

from __future__ import annotations

import dataclasses
import warnings
from collections import namedtuple
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from remate.capture.capture_step import capture
from remate_runtime.format.signature import output_leaves
from tests.planner.interpreter import compare

Pair = namedtuple("Pair", "first second")


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    scale: float
    mask: torch.Tensor | None = None


class Returns(nn.Module):
    """A linear layer whose forward is given as a function of (module, *inputs)."""

    def __init__(self, function: Any, **members: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.function = function
        for name, member in members.items():
            setattr(self, name, member)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def x(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(shape or (3, 4), generator=torch.Generator().manual_seed(3)).requires_grad_(grad)


def ops(captured: Any) -> list[str]:
    return [op.op for op in captured.graph.operations]


def test_outputs_nested() -> None:
    def function(self: Any, a: torch.Tensor) -> Any:
        y = self.linear(a)
        return {"pair": Pair(y, [y.t(), 3]), "batch": Batch(y * 2, 1.5), "none": None, "name": "n", "inf": float("inf")}

    model = compare(Returns(function), (x(),)).model
    assert model.outputs["dict"]["pair"]["record"] == "Pair"
    assert model.outputs["dict"]["inf"] == {"literal": {"float": "inf"}}
    names = [leaf.name for leaf in output_leaves(model.outputs)]
    assert names == ["pair.first", "pair.second.0", "batch.x"]


def test_inputs_nested() -> None:
    def function(self: Any, batch: Batch, pair: Any, flags: Any, *, scale: Any) -> Any:
        y = self.linear(batch.x) * batch.scale + pair.second[0] + flags["b"]
        return y * scale["s"] if flags["on"] else y

    model = Returns(function)
    args = (Batch(x(), 0.5), Pair(1, (x(),)), {"b": x(4), "on": True, "none": None})
    captured = compare(model, args, {"scale": {"s": x(1)}})
    assert captured.model.inputs["kwargs"] == {"scale": {"dict": {"s": {"tensor": "f32[1]", "name": "scale.s"}}}}


def test_positional_names() -> None:
    class Named(nn.Linear):
        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return super().forward(ids) * mask

    captured = compare(Named(4, 4), (x(), x(4)))
    assert [tree["name"] for tree in captured.model.inputs["args"]] == ["ids", "mask"]


def test_loss_decides_which_outputs_have_gradients() -> None:
    def function(self: Any, a: torch.Tensor) -> Any:
        y = self.linear(a)
        return {"loss": y.square().mean(), "logits": y, "index": y.argmax(-1)}

    captured = compare(Returns(function), (x(),))
    assert [leaf.grad for leaf in output_leaves(captured.model.outputs)] == [True, False, False]
    assert [v.name for v in captured.graph.values if v.kind == "tangent"] == ["grad.loss"]
    both = compare(Returns(function), (x(),), differentiate=["loss", "logits"])
    assert [leaf.grad for leaf in output_leaves(both.model.outputs)] == [True, True, False]


def test_output_is_input_parameter_or_twice_the_same() -> None:
    def function(self: Any, a: torch.Tensor) -> Any:
        y = self.linear(a)
        return y, y, a, y.view(-1), self.linear.weight

    compare(Returns(function), (x(grad=True),))


def test_input_gradients() -> None:
    captured = compare(Returns(lambda self, a, b: self.linear(a) * b), (x(grad=True), x()))
    assert captured.model.inputs["args"][0]["grad"] is True
    assert "grad" not in captured.model.inputs["args"][1]


def test_same_tensor_twice() -> None:
    a = x()
    compare(Returns(lambda self, a, b: self.linear(a) * b), (a, a))


def test_frozen_unused_and_no_gradient() -> None:
    model = Returns(
        lambda self, a: self.linear(a) + self.other.detach(), other=nn.Parameter(x(4)), unused=nn.Linear(2, 2)
    )
    model.linear.bias.requires_grad_(False)
    captured = compare(model, (x(),))
    assert captured.model.frozen == ("linear.bias",)
    assert [captured.graph.values[s].name for s, _ in captured.graph.gradients] == ["linear.weight"]
    assert "unused.weight" in captured.model.parameters


def test_nothing_to_train() -> None:
    model = Returns(lambda self, a: self.linear(a)).requires_grad_(False)
    captured = compare(model, (x(),))
    assert captured.graph.backward_start == len(captured.graph.operations)


def test_tied_parameters() -> None:
    model = Returns(lambda self, a: self.second(self.linear(a)) @ self.third, second=nn.Linear(4, 4))
    model.get_submodule("second").weight = model.linear.weight
    model.third = model.linear.weight
    order = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    captured = compare(model, (x(),))
    assert [name for name, _ in model.named_parameters(remove_duplicate=False)] == order
    assert captured.model.tied == {"linear.weight": "third", "second.weight": "third"}


def test_shared_module() -> None:
    shared = nn.Linear(4, 4)
    model = Returns(lambda self, a: self.one(self.two(a)), one=shared, two=shared)
    captured = compare(model, (x(),))
    assert captured.model.tied == {"two.weight": "one.weight", "two.bias": "one.bias"}


def test_plain_tensor_attribute_is_a_buffer() -> None:
    model = Returns(lambda self, a: self.linear(a) * self.scale, scale=x(4))
    captured = compare(model, (x(),))
    assert captured.model.buffers == {"scale": "f32[4]"}
    assert "scale" in model.__dict__


def test_buffers_that_change() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.register_buffer("average", torch.zeros(4), persistent=False)
            self.register_buffer("steps", torch.zeros((), dtype=torch.long))
            self.last = torch.zeros(4)

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            y = self.norm(a)
            self.steps += 1
            self.average = 0.9 * self.average + 0.1 * y.detach().mean(0)
            self.last.copy_(y.detach()[0])
            return y * self.average

    captured = compare(Counting(), (x(),))
    updated = {captured.graph.values[b].name for b, _ in captured.graph.updates}
    names = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked", "average", "steps", "last"}
    assert updated == names


def test_attributes_are_put_back() -> None:
    def function(self: Any, a: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.seen.append(1)
        self.kept = self.linear(a)
        return self.kept

    model = Returns(function, count=0, seen=[], kept=None)
    with pytest.warns(UserWarning, match="count, seen"):
        capture(model, (x(),))
    assert (model.count, model.seen, model.kept) == (0, [], None)


def test_constants() -> None:
    def function(self: Any, a: torch.Tensor) -> torch.Tensor:
        c = torch.tensor([1.0, float("inf"), -2.5, float("nan")])
        k = torch.tensor([[1 + 2j, 3j]])
        b = torch.tensor([True, False, True, False])
        return torch.where(b, self.linear(a), c) * k.real.sum() + torch.tensor(2) + torch.tensor(0.1)

    captured = compare(Returns(function), (x(),))
    assert next(v.name for v in captured.graph.values if v.kind == "constant") == "constant.0"


@pytest.mark.parametrize(
    "laid_out", [lambda t: t.t(), lambda t: t[:, :1].expand(4, 4), lambda t: t.repeat(1, 2)[:, ::2]]
)
def test_constants_keep_their_memory_layout(laid_out: Any) -> None:
    """As position embeddings of a cached function have it, which are views of others."""
    known = laid_out(torch.randn(4, 4))
    model = Returns(lambda m, x: m.linear(x) + known.transpose(0, 1).reshape(-1) @ x.new_ones(16))
    compare(model, (torch.randn(4, 4),))
    captured = capture(model, (torch.randn(4, 4),))
    (value,) = [v for v in captured.graph.values if v.kind == "constant" and v.type.shape == (4, 4)]
    assert value.type.strides == known.stride()


def test_tensor_of_a_closure_is_a_constant() -> None:
    scale = x(4)
    captured = compare(Returns(lambda self, a: self.linear(a) * scale), (x(),))
    (value,) = [v for v in captured.graph.values if v.kind == "constant"]
    assert value.data == tuple(scale.tolist())


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout1d, nn.AlphaDropout])
def test_dropout(kind: Any, p: float) -> None:
    compare(nn.Sequential(nn.Linear(4, 4), kind(p), nn.Linear(4, 2)), (x(2, 3, 4),))


def test_random_operations_that_nobody_reads_stay_in_order() -> None:
    def function(self: Any, a: torch.Tensor) -> torch.Tensor:
        F.dropout(a, 0.5)
        torch.rand(3)
        noise = torch.randn_like(a)
        torch.randint(0, 5, (3,))
        torch.randperm(4)
        torch.bernoulli(torch.full((3,), 0.5))
        return self.linear(a + noise) * torch.empty(4).uniform_(1, 2) + torch.normal(torch.zeros(4), torch.ones(4))

    captured = compare(Returns(function), (x(),))
    assert sum(op.random for op in captured.graph.operations) == 8


def test_eval_mode_and_partly() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).eval()
    assert not compare(model, (x(),)).graph.updates
    model.train()
    model[1].eval()
    captured = compare(model, (x(),))
    assert captured.model.training
    assert captured.model.mode_overrides == ("1",)


@pytest.mark.quick("False")
@pytest.mark.parametrize("enabled", [True, False])
def test_ambient_autocast(enabled: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 4), nn.Softmax(-1))
    captured = compare(model, (x(),), context=lambda: torch.autocast("cpu", torch.bfloat16, enabled=enabled))
    assert captured.model.autocast == ("bf16" if enabled else None)


def test_autocast_with_a_shared_weight() -> None:
    model = Returns(lambda self, a: self.linear(self.linear(a)))
    # eager sums the two gradients of the cast weight in bf16, a schedule in f32
    captured = compare(model, (x(),), tolerance=2**-7, context=lambda: torch.autocast("cpu", torch.bfloat16))
    assert [op.id for op in captured.graph.operations[: captured.graph.backward_start] if op.op == "aten._to_copy"] == [
        "linear._to_copy",
        "linear._to_copy_2",
        "linear._to_copy_3",
    ]


def test_autocast_inside() -> None:
    def function(self: Any, a: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = self.linear(a)
            with torch.autocast("cpu", enabled=False):
                z = self.linear(a)
        return y.float() + z

    assert "aten._to_copy" in ops(compare(Returns(function), (x(),)))


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_planned_where_no_gradients_are_made(around: Any) -> None:
    model = torch.nn.Linear(4, 4)
    with around():
        captured = capture(model, (torch.zeros(2, 4),))
    assert [leaf.grad for leaf in output_leaves(captured.model.outputs)] == [True]


def test_no_grad_inside() -> None:
    def function(self: Any, a: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = self.linear(a).abs().mean()
            with torch.enable_grad():
                y = self.linear(a)
        return y * scale

    compare(Returns(function), (x(),))


def test_custom_backward() -> None:
    class Round(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
            return a.round()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return grad * 2

    compare(Returns(lambda self, a: Round.apply(self.linear(a))), (x(),))


def test_gradient_inside_forward() -> None:
    def function(self: Any, a: torch.Tensor) -> torch.Tensor:
        energy = self.linear(a).square().sum()
        (force,) = torch.autograd.grad(energy, a, create_graph=True)
        return force.square().sum()

    compare(Returns(function), (x(grad=True),), tolerance=1e-6)


def test_channels_last() -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True)).to(
        memory_format=torch.channels_last  # type: ignore[call-overload]
    )
    captured = compare(model, (x(2, 4, 6, 6).to(memory_format=torch.channels_last),))
    assert captured.model.parameters["0.weight"] == "f32[8,4,3,3]{36,1,12,4}"
    assert captured.model.inputs["args"][0]["tensor"] == "f32[2,4,6,6]{144,1,24,4}"


def test_mixed_types() -> None:
    model = Returns(
        lambda self, a: self.other(self.linear(a).bfloat16()).double() * self.w, other=nn.Linear(4, 4).bfloat16()
    )
    model.w = nn.Parameter(x(4).double())
    compare(model, (x(),))


def test_input_is_a_view_and_a_leaf_of_another_graph() -> None:
    base = x(4, 6, grad=True) * 2
    captured = capture(Returns(lambda self, a: self.linear(a)), (base[:, ::1][:, 1:5],))
    assert captured.model.inputs["args"][0]["tensor"] == "f32[4,4]{6,1}"


def test_parametrizations_update_their_buffers() -> None:
    layers = (
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
    )
    captured = compare(nn.Sequential(*layers), (x(),))
    assert len(captured.graph.updates) == 2


def test_old_weight_norm() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        captured = capture(nn.utils.weight_norm(nn.Linear(4, 4)), (x(),))
    assert "aten._weight_norm_interface" in ops(captured)
    assert len(captured.graph.gradients) == 3


@pytest.mark.parametrize("p", [0.1, 0.15, 0.3, 0.45, 0.5])
def test_dropout_is_eagers_to_the_bit_at_every_rate(p: float) -> None:
    compare(nn.Sequential(nn.Linear(4, 4), nn.Dropout(p)), (x(),))


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_half_precision_dropout(kind: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.3), nn.Linear(16, 4)).to(kind)
    compare(model, (x().to(kind),))  # eager rounds 1 / (1 - p) to half precision


def test_hooks_of_the_model_run() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model[0].register_forward_hook(lambda module, inputs, output: torch.mul(output, 2))  # type: ignore[call-overload]
    model[1].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 3,))
    compare(model, (x(),))


def test_operator_of_a_library() -> None:
    @torch.library.custom_op("remate_tests::twice", mutates_args=())
    def twice(a: torch.Tensor) -> torch.Tensor:
        return torch.mul(a, 2)

    twice.register_fake(torch.empty_like)
    twice.register_autograd(lambda ctx, grad: grad * 2)
    assert "remate_tests.twice" in ops(compare(Returns(lambda self, a: twice(self.linear(a))), (x(),)))


def test_complex_numbers_among_complex_tensors() -> None:
    def function(_: Any, a: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.view_as_complex(torch.tanh(a)) * (1 + 2j)).square().sum()

    compare(Returns(function), (torch.randn(3, 4, 2, requires_grad=True),))
