"""Random training loops: the same steps for the model itself and for a planned one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .case import Options
from .comparison import Seen, tensors_of

STEPS = 3
KINDS = (
    "plain",
    "weighted",
    "first output",
    "others detached",
    "scaled",
    "clipped",
    "gradients",
    "accumulated",
    "interleaved",
    "output written",
    "hook of a parameter",
    "hook of an output",
    "without gradients",
    "inference",
    "evaluation",
)

Call = Callable[[Tensor], Any]


class Loop:
    """A loop that is run several times, each time with the same data and random numbers.

    What depends on the results of the model, such as whether an output may be written, is decided in the first run.
    """

    def __init__(self, seed: int, options: Options, rows: Sequence[int], with_input: bool, seeds: bool) -> None:
        """Make a loop.

        Args:
            seed: What decides.
            options: Type of the data, and autocast.
            rows: Sizes of batches to draw from.
            with_input: Whether the input requires a gradient.
            seeds: Whether a run sets the seed of random numbers, which all threads share.
        """
        self.seed, self.options, self.rows, self.with_input, self.seeds = seed, options, rows, with_input, seeds
        self._decided: dict[str, bool] = {}

    def run(self, model: nn.Module, calls: Sequence[Call] = ()) -> Seen:
        """All that can be seen of the loop: outputs, gradients, buffers and attributes.

        Args:
            model: The module with the parameters.
            calls: What to call, drawn for each call. Default: the module.
        """
        if self.seeds:
            torch.manual_seed(self.seed)
        run = _Run(self, model, calls or [model])
        for _ in range(STEPS):
            run.train(run.dice.choice(KINDS))
        return run.seen

    def run_plainly(self, model: nn.Module) -> None:
        """Run one plain step, which every model can be trained with."""
        _Run(self, model, [model]).train("plain")

    def decided(self, what: str, now: bool) -> bool:
        """Whether something was so in the first run."""
        return self._decided.setdefault(what, now)


class _Run:
    """One run of a loop."""

    def __init__(self, loop: Loop, model: nn.Module, calls: Sequence[Call]) -> None:
        self.loop, self.model, self.calls, self.seen = loop, model, calls, Seen()
        self.dice = random.Random(f"loop {loop.seed}")
        self.data = torch.Generator().manual_seed(loop.seed)
        self.parameters = dict(model.named_parameters())
        self.step = self.called = 0

    def train(self, kind: str) -> None:
        """Run one step of a kind."""
        self.model.zero_grad(set_to_none=True)
        x, output = self._forward()
        if kind == "output written":
            self._write(output)
        handles = self._hooks(kind, output)
        loss = self._loss(kind, output)
        if kind == "interleaved":
            other = self._loss(kind, self._forward()[1])
            _backward(other)
        if kind == "gradients":
            self._compute_gradients(loss)
        else:
            _backward(loss if loss is None or kind != "scaled" else loss * 1024)
        if kind == "accumulated":
            _backward(self._loss(kind, self._forward()[1]))
        for handle in handles:
            handle.remove()
        self._call_otherwise(kind)
        if x.requires_grad:
            self._see("gradient of the input", x.grad)
        self._update(kind)
        self._see_state()
        self.step += 1

    def _forward(self) -> tuple[Tensor, Any]:
        x = self._batch()
        if self.loop.with_input:
            x.requires_grad_()
        call = self.dice.choice(self.calls)
        self.called += 1
        with self.loop.options.casting():
            output = call(x * 1 if self.loop.with_input else x)
        return x, output

    def _batch(self) -> Tensor:
        rows = self.dice.choice(self.loop.rows)
        return torch.randn(rows, 16, generator=self.data).to(self.loop.options.dtype)

    def _loss(self, kind: str, output: Any) -> Tensor | None:
        outputs = tensors_of(output)
        for index, tensor in enumerate(outputs):
            self._see(f"output {index} of call {self.called}", tensor)
        trained = [tensor for tensor in outputs if tensor.requires_grad]
        if not trained:
            return None
        if kind == "first output":
            trained = trained[:1]
        elif kind == "others detached":
            trained = [trained[0], *(tensor.detach() for tensor in trained[1:])]
        if kind == "weighted":
            return torch.stack([(tensor * _weights(tensor)).sum() for tensor in trained]).sum()
        return torch.stack([tensor.square().mean() for tensor in trained]).sum()

    def _write(self, output: Any) -> None:
        """Write over the only output, where eager PyTorch permits it."""
        outputs = tensors_of(output)
        last = outputs[-1]
        if self._decided("write", len(outputs) == 1 and last.requires_grad and not last._is_view()):
            last.mul_(2)

    def _hooks(self, kind: str, output: Any) -> list[Any]:
        if kind == "hook of a parameter":
            return [next(iter(self.parameters.values())).register_hook(_doubled)]
        if kind == "hook of an output":
            first = tensors_of(output)[0]
            if self._decided("hook", first.requires_grad and not first._is_view()):
                return [first.register_hook(lambda gradient: gradient * 0.5)]
        return []

    def _decided(self, what: str, now: bool) -> bool:
        return self.loop.decided(f"{what} {self.step}", now)

    def _compute_gradients(self, loss: Tensor | None) -> None:
        if loss is None:
            return
        parameters = list(self.parameters.values())
        for parameter, gradient in zip(
            parameters, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True
        ):
            parameter.grad = gradient

    def _call_otherwise(self, kind: str) -> None:
        """Call the model without gradients, or in evaluation mode."""
        call, x = self.dice.choice(self.calls), self._batch()
        if kind == "without gradients":
            with torch.no_grad(), self.loop.options.casting():
                output = call(x)
        elif kind == "inference":
            with torch.inference_mode(), self.loop.options.casting():
                output = call(x)
        elif kind == "evaluation":
            self.model.eval()
            with torch.no_grad(), self.loop.options.casting():
                output = call(x)
            self.model.train()
        else:
            return
        for index, tensor in enumerate(tensors_of(output)):
            self._see(f"other output {index}", tensor)

    def _update(self, kind: str) -> None:
        for name, parameter in self.parameters.items():
            self._see(f"gradient of {name}", parameter.grad)
        if kind == "clipped":
            torch.nn.utils.clip_grad_norm_(self.parameters.values(), 0.5)
        with torch.no_grad():
            for parameter in self.parameters.values():
                if parameter.grad is not None:
                    parameter -= 0.05 * parameter.grad.clamp(-1, 1).nan_to_num()

    def _see_state(self) -> None:
        for name, tensor in self.model.named_buffers():
            self._see(name, tensor)
        for name, value in vars(self.model).items():
            if isinstance(value, Tensor):
                self._see(name, value)
        self._see("rows", torch.tensor(self.model.rows, dtype=torch.float64))  # a number, or a tuple of numbers

    def _see(self, what: str, tensor: Tensor | None) -> None:
        """Keep a copy that shows whether the tensor requires a gradient."""
        copy = None if tensor is None else tensor.detach().clone().requires_grad_(tensor.requires_grad)
        self.seen[f"step {self.step}: {what}"] = copy


def _weights(tensor: Tensor) -> Tensor:
    return torch.linspace(0.1, 1, tensor.numel()).view(tensor.shape).to(tensor.dtype)


def _doubled(gradient: Tensor | None) -> Tensor | None:
    """A hook; a step has None for a parameter that the loss does not reach."""
    return None if gradient is None else gradient * 2


def _backward(loss: Tensor | None) -> None:
    if loss is not None:
        loss.backward()
