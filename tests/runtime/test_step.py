"""Steps of scheduled models against eager's: gradients, generators, buffers, several forwards, modes."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

from remate_runtime import apply
from remate_runtime.errors import BindError, ExecutionError

from . import stepping
from .small import Mlp, Normed, Tied, TwoHeads, data, seeded
from .stepping import assert_same, everything, just_in_time, no_recomputes, same_in_low_precision, schedule_of, step

ALL = [no_recomputes, everything, just_in_time]


@pytest.mark.quick("just_in_time")
@pytest.mark.parametrize("recomputes", ALL)
@pytest.mark.parametrize("make", [Mlp, lambda: Mlp(0.4), Normed, Tied, TwoHeads])
def test_several_steps_equal_eager(make, recomputes):
    model = seeded(make())
    x = data(4, 3, 6, 6) if isinstance(model, Normed) else data(4, 8)
    if isinstance(model, Tied):
        x = torch.arange(5)
    eager, planned = copy.deepcopy(model), apply(model, schedule_of(model, (x,), recomputes=recomputes))
    for seed in range(4):  # dropout: the second step must not reuse the generator state of the first
        assert_same(step(planned, (x,), seed=seed), step(eager, (x,), seed=seed))


def test_dropout_advances_the_generator_between_steps():
    model, x = seeded(Mlp(0.5)), data(4, 8)
    eager, planned = copy.deepcopy(model), apply(model, schedule_of(model, (x,)))
    for module in (eager, planned):
        torch.manual_seed(7)
        module.zero_grad()
        for _ in range(3):
            module(x).sum().backward()
        module.state = torch.get_rng_state()
    assert torch.equal(eager.state, planned.state)
    assert_same(dict(_grads(planned)), dict(_grads(eager)))


def _grads(module):
    return [(n, p.grad) for n, p in module.named_parameters()]


def test_dropout_with_p_zero():
    model, x = seeded(Mlp(0.0)), data(4, 8)
    eager, planned = copy.deepcopy(model), apply(model, schedule_of(model, (x,)))
    assert_same(step(planned, (x,)), step(eager, (x,)))


def test_batch_norm_statistics_move_once_per_forward():
    model, x = seeded(Normed()), data(4, 3, 6, 6)
    planned = apply(model, schedule_of(model, (x,)))
    for count in (1, 2, 3):
        planned(x).sum().backward()
        assert model.norm.num_batches_tracked.item() == count


@pytest.mark.quick("just_in_time")
@pytest.mark.parametrize("recomputes", ALL)
def test_two_forwards_before_backward(recomputes):
    model, x, y = seeded(Normed()), data(4, 3, 6, 6), data(4, 3, 6, 6, seed=2)
    eager, planned = copy.deepcopy(model), apply(model, schedule_of(model, (x,), recomputes=recomputes))
    for module in (eager, planned):
        first, second = module(x), module(y)
        first.pow(2).sum().backward()
        second.sum().backward()
    assert_same(dict(_grads(planned)), dict(_grads(eager)))
    assert_same(dict(planned.named_buffers()), dict(eager.named_buffers()))


def test_two_forwards_in_one_loss_with_dropout():
    model, x, y = seeded(Mlp(0.5)), data(4, 8), data(4, 8, seed=2)
    eager, planned = copy.deepcopy(model), apply(model, schedule_of(model, (x,)))
    for module in (eager, planned):
        torch.manual_seed(3)
        (module(x) * module(y)).sum().backward()
    assert_same(dict(_grads(planned)), dict(_grads(eager)), tolerance=1e-6)


def test_two_planned_modules_in_one_process():
    x = data(4, 8)
    models = [seeded(Mlp(0.5)), seeded(TwoHeads())]
    pairs = [(copy.deepcopy(m), apply(m, schedule_of(m, (x,)))) for m in models]
    for seed in range(2):
        for eager, planned in pairs:
            assert_same(step(planned, (x,), seed=seed), step(eager, (x,), seed=seed))


def test_one_model_with_two_schedules():
    model, x, y = seeded(Mlp()), data(4, 8), data(2, 8)
    eager, wide, narrow = (
        copy.deepcopy(model),
        apply(model, schedule_of(model, (x,))),
        apply(model, schedule_of(model, (y,))),
    )
    assert_same(step(wide, (x,)), step(eager, (x,)))
    assert_same(step(narrow, (y,)), step(eager, (y,)))


def test_accumulation_clipping_and_optimizers():
    x, y = data(4, 8), data(4, 8, seed=2)
    for make in (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), lambda p: torch.optim.AdamW(p, 0.01)):
        model = seeded(Mlp(0.2))
        eager, planned = copy.deepcopy(model), apply(model, schedule_of(model, (x,)))
        for module in (eager, planned):
            torch.manual_seed(0)
            optimizer = make(module.parameters())
            for _ in range(3):
                for batch in (x, y):
                    module(batch).pow(2).mean().backward()
                nn.utils.clip_grad_norm_(module.parameters(), 0.1)
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
        assert_same(dict(planned.named_parameters()), dict(eager.named_parameters()))


def test_gradients_are_the_parameters_own():
    """Autograd keeps what it is given: no two parameters may share a gradient's storage, nor share it with a
    tangent."""

    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(12))

        def forward(self, x):
            return (self.a.view(-1) + self.b) + x

    model: Any = Sum()
    x, tangent = data(12), data(12, seed=5)
    planned = apply(model, schedule_of(model, (x,)))
    planned(x).backward(tangent)
    storages = {t.untyped_storage().data_ptr() for t in (model.a.grad, model.b.grad, tangent)}
    assert len(storages) == 3
    assert torch.equal(model.b.grad, tangent)
    assert torch.equal(model.a.grad, tangent.view(3, 4))


def test_grad_scaler():
    model, x = seeded(Mlp()), data(4, 8)
    planned = apply(model, schedule_of(model, (x,)))
    optimizer, scaler = torch.optim.SGD(planned.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=8.0)
    eager = copy.deepcopy(model)
    eager(x).pow(2).mean().backward()
    scaler.scale(planned(x).pow(2).mean()).backward()
    assert torch.equal(model.a.weight.grad, eager.a.weight.grad * 8.0)
    scaler.unscale_(optimizer)
    assert torch.equal(model.a.weight.grad, eager.a.weight.grad)
    scaler.step(optimizer)
    scaler.update()
    assert torch.allclose(model.a.weight, eager.a.weight - 0.1 * eager.a.weight.grad)


def test_hooks_on_the_module_outputs_and_parameters():
    model, x = seeded(Mlp()), data(4, 8)
    planned = apply(model, schedule_of(model, (x,)))
    seen = []
    planned.register_forward_pre_hook(lambda m, args: seen.append("before"))
    planned.register_forward_hook(lambda m, args, out: seen.append("after"))
    planned.register_full_backward_hook(lambda m, gi, go: seen.append("backward"))
    model.a.weight.register_hook(lambda g: g * 2)
    model.b.bias.register_post_accumulate_grad_hook(lambda p: seen.append("accumulated"))
    out = planned(x)
    out.register_hook(lambda g: g * 10)
    out.sum().backward()
    assert sorted(seen) == ["accumulated", "after", "backward", "before"]
    eager = seeded(Mlp())
    eager(x).sum().mul(10).backward()
    assert torch.allclose(model.a.weight.grad, eager.a.weight.grad * 2)


def test_inputs_that_require_grad_pass_gradients_on():
    model, x = seeded(Mlp()), data(4, 8).requires_grad_()
    eager, planned = copy.deepcopy(model), apply(model, schedule_of(model, (x,)))
    source = data(4, 8, seed=3)
    grads = []
    for module in (eager, planned):
        leaf = source.clone().requires_grad_()
        module(leaf * 2).sum().backward()
        grads.append(leaf.grad)
    assert torch.equal(*grads)
    planned(source).sum().backward()  # an input that needs none: its gradient is dropped


def test_missing_tangents():
    model, x = seeded(TwoHeads()), data(4, 8)
    eager, planned = copy.deepcopy(model), apply(model, schedule_of(model, (x,)))
    for module in (eager, planned):
        module(x).first.sum().backward()
    assert_same(dict(_grads(planned)), dict(_grads(eager)))
    assert model.right.weight.grad is None  # not zeros: an optimizer would decay the weight


def test_expanded_and_transposed_tangents():
    model, x = seeded(Mlp()), data(4, 8)
    eager, planned = copy.deepcopy(model), apply(model, schedule_of(model, (x,)))
    for tangent in (torch.ones(()).expand(4, 8), data(8, 4).t()):
        for module in (eager, planned):
            module.zero_grad()
            module(x).backward(tangent)
        assert_same(dict(_grads(planned)), dict(_grads(eager)))


def test_only_part_of_the_gradients():
    model, x = seeded(Mlp()), data(4, 8)
    planned = apply(model, schedule_of(model, (x,)))
    (actual,) = torch.autograd.grad(planned(x).sum(), [model.a.weight])
    eager = seeded(Mlp())
    eager(x).sum().backward()
    assert torch.equal(actual, eager.a.weight.grad)
    model.a.weight.requires_grad_(False)  # frozen after planning: its gradient is dropped
    planned(x).sum().backward()
    assert model.a.weight.grad is None
    assert torch.equal(model.b.weight.grad, eager.b.weight.grad)


def test_second_backward_is_refused():
    model, x = seeded(Mlp()), data(4, 8)
    planned = apply(model, schedule_of(model, (x,)))
    out = planned(x)
    out.sum().backward(retain_graph=True)
    with pytest.raises(ExecutionError, match="run forward again"):
        out.sum().backward()


def test_second_derivatives_are_refused():
    model, x = seeded(Mlp()), data(4, 8)
    out = apply(model, schedule_of(model, (x,)))(x)
    with pytest.raises(ExecutionError, match="create_graph"):
        torch.autograd.grad(out.sum(), [model.a.weight], create_graph=True)


@pytest.mark.quick("no_recomputes")
@pytest.mark.parametrize("recomputes", ALL)
def test_changes_between_forward_and_backward_are_refused(recomputes):
    model, x = seeded(Mlp()), data(4, 8)
    planned = apply(model, schedule_of(model, (x,), recomputes=recomputes))
    out = planned(x)
    with torch.no_grad():
        model.b.weight.add_(1)
    with pytest.raises(ExecutionError, match=r"'b\.weight'.*modified in place"):
        out.sum().backward()
    out = planned(x)
    x.add_(1)
    with pytest.raises(ExecutionError, match="input 'x'"):
        out.sum().backward()


def test_outputs_that_backward_reads_are_watched():
    class Squash(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(8, 8)

        def forward(self, x):
            return torch.tanh(self.lin(x)).view(2, 2, 8)

    model, x = seeded(Squash()), data(4, 8)
    planned = apply(model, schedule_of(model, (x,), recomputes=no_recomputes))
    planned(x).sum().backward()
    out = planned(x)
    out.mul_(2)
    with pytest.raises(ExecutionError, match="output"):
        out.sum().backward()
    model = seeded(Mlp())  # its backward does not read its output: eager allows this, too
    eager, planned = copy.deepcopy(model), apply(model, schedule_of(model, (x,)))
    for module in (eager, planned):
        module(x).mul_(2).sum().backward()
    assert_same(dict(_grads(planned)), dict(_grads(eager)))


def test_no_grad_and_inference_mode():
    model, x = seeded(Normed()), data(4, 3, 6, 6)
    eager, planned = copy.deepcopy(model), apply(model, schedule_of(model, (x,)))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            actual, wanted = planned(x), eager(x)
        assert not actual.requires_grad
        assert torch.equal(actual, wanted)
    assert_same(dict(planned.named_buffers()), dict(eager.named_buffers()))


def test_eval_steps_aside():
    model, x = seeded(Normed()), data(4, 3, 6, 6)
    eager, planned = copy.deepcopy(model), apply(model, schedule_of(model, (x,)))
    for module in (planned, eager):
        module(x)
        module.eval()
    batch = data(1, 3, 9, 9)  # any shape: the model's own forward runs
    assert torch.equal(planned(batch), eager(batch))
    for module in (planned, eager):
        module.train()
    assert torch.equal(planned(x), eager(x))


@pytest.mark.slow
def test_mixed_modes_are_compared():
    model, x = seeded(Normed()), data(4, 3, 6, 6)
    planned = apply(model, schedule_of(model, (x,)))
    model.norm.eval()
    with pytest.raises(BindError, match=r"'norm'.*train\(\) mode when planned"):
        planned(x)
    frozen_statistics = apply(model, schedule_of(model, (x,)))
    eager = copy.deepcopy(model)
    assert_same(step(frozen_statistics, (x,)), step(eager, (x,)))
    model.eval()
    schedule = schedule_of(model, (x,))
    model.train()
    with pytest.raises(BindError, match=r"eval\(\) mode"):
        apply(model, schedule)(x)


def test_autocast_is_part_of_the_plan():
    model, x = seeded(Mlp()), data(4, 8)
    eager = copy.deepcopy(model)
    with torch.autocast("cpu", torch.bfloat16):
        planned = apply(model, schedule_of(model, (x,)))
    results = []
    for module in (eager, planned):
        with torch.autocast("cpu", torch.bfloat16):
            out = module(x)
            assert out.dtype is torch.bfloat16
            results.append(out)
        out.float().sum().backward()
    same_in_low_precision(planned, eager, lambda double: double(x.double()).sum())
    assert stepping.ROUNDING or torch.equal(*results)
    with pytest.raises(BindError, match="planned under autocast to bf16, the call is under no autocast"):
        planned(x)
    plain = apply(model, schedule_of(model, (x,)))
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(BindError, match="no autocast"):
        plain(x)


def test_backward_under_autocast_is_refused():
    """Eager's backward casts there, so its gradients are others than those of a backward outside."""
    model, x = seeded(Mlp()), data(4, 8)
    eager = copy.deepcopy(model)
    plain = apply(model, schedule_of(model, (x,)))
    with torch.autocast("cpu", torch.bfloat16):
        cast = apply(model, schedule_of(model, (x,)))
    for planned, forward_too in ((plain, False), (cast, True)):
        with torch.autocast("cpu", torch.bfloat16, enabled=forward_too):
            losses = [module(x).float().square().sum() for module in (planned, eager)]
        with (
            torch.autocast("cpu", torch.bfloat16),
            pytest.raises(ExecutionError, match=r"after the `with torch\.autocast"),
        ):
            losses[0].backward(retain_graph=True)
        for module, loss in zip((planned, eager), losses, strict=True):
            module.zero_grad()
            loss.backward()
        same_in_low_precision(planned, eager, lambda double: double(x.double()).square().sum())


def test_threads_have_steps_of_their_own():
    model, x = seeded(Mlp()), data(4, 8)
    planned = apply(model, schedule_of(model, (x,)))
    wanted = torch.autograd.grad(planned(x).sum(), [model.a.weight])[0]

    def work(_):
        return torch.autograd.grad(planned(x).sum(), [model.a.weight])[0]

    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(result, wanted) for result in pool.map(work, range(32)))


def test_strided_inputs_are_laid_out_as_recorded():
    model, x = seeded(Mlp()), data(4, 8)
    eager, planned = copy.deepcopy(model), apply(model, schedule_of(model, (x,)))
    strided = data(8, 4).t()
    assert_same(step(planned, (strided,)), step(eager, (strided.contiguous(),)))


def test_errors_inside_the_step_name_the_operation():
    model, x = seeded(Tied()), torch.arange(5)
    planned = apply(model, schedule_of(model, (x,)))
    with pytest.raises(IndexError) as caught:
        planned(torch.full((5,), 99))
    assert any("embed" in note for note in caught.value.__notes__)
    planned(x).sum().backward()
