"""Builds the outputs of a planned model from the values of a step.

Outputs without a planned gradient raise an error if a gradient arrives.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from ..errors import ExecutionError
from ..format.signature import output_leaves
from ..operator_calls.overloads import literal
from .attributes import attribute_of
from .records import record_maker

_CPU = torch.device("cpu")


class Detached:
    """Outputs that are differentiable in the live model but not in the step.

    Without this check, a loss of such an output and of others would train on the others only. Each such output has its
    own autograd node, which raises the error. The node depends on all tensors that the step read, because autograd
    skips nodes that do not depend on the tensors in `torch.autograd.grad` or `backward(inputs=...)`.
    """

    def __init__(self, tree: object) -> None:
        leaves = list(output_leaves(tree))
        planned = [leaf.name for leaf in leaves if leaf.grad]
        self._refusals = [(at, _refusal(leaf.name, planned)) for at, leaf in enumerate(leaves) if leaf.detached]

    def guard(self, values: Sequence[torch.Tensor], others: Iterable[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return the step's outputs. Detached ones raise ExecutionError in backward if a gradient arrives.

        Args:
            values: The outputs of the step.
            others: Tensors that the step read and has no gradients for. If none requires grad and the step is not
                differentiable either, eager has no gradients.
        """
        if not self._refusals or not torch.is_grad_enabled():
            return values
        # A differentiable output depends on all tensors that the step has gradients for.
        step = next((value for value in values if value.requires_grad), None)
        sources = [source for source in (step, *others) if source is not None and source.requires_grad]
        if not sources:
            return values
        anchors: Any = _Anchor  # torch declares `apply` without types
        refuses: Any = _Refuse
        anchor = anchors.apply(*sources)
        guarded = list(values)
        for at, refusal in self._refusals:
            guarded[at] = refuses.apply([guarded[at]], refusal, anchor)
        return guarded


def _refusal(name: str, planned: Sequence[str]) -> str:
    return (
        f"a gradient arrived for the output {name!r}, and the schedule was planned without one for it"
        f"\n  plan again with differentiate={[*planned, name]!r} ('*' for all), or use {name!r} after .detach()"
    )


class _Anchor(torch.autograd.Function):
    """An empty tensor that depends on all of its arguments and passes no gradient to them."""

    @staticmethod
    def forward(ctx: Any, *sources: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        return torch.empty(0, dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor | None) -> Any:
        return (None,) * len(ctx.needs_input_grad)


class _Refuse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: list[torch.Tensor], refusal: str, anchor: torch.Tensor) -> torch.Tensor:
        ctx.refusal = refusal
        ctx.set_materialize_grads(False)
        return value[0].detach()  # passed in a list, so that the result is no view of an input and may be modified

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        if gradients[0] is not None:  # DistributedDataParallel passes None through its own node
            raise ExecutionError(ctx.refusal)
        return None, None, None


Build = Callable[[Sequence[Any]], Any]


def output_builder(tree: Any, model: torch.nn.Module) -> Build:
    """Return a function from the output leaves, in the order of the file, to the model's return value.

    The function also sets the attributes that forward sets.

    Raises:
        BindError: The model cannot have an attribute or record of the file.
    """
    numbers = iter(range(sys.maxsize))
    if "returns" not in tree:
        return _builder(tree, numbers, model)
    returned = _builder(tree["returns"], numbers, model)
    children = [(*attribute_of(model, path), _builder(t, numbers, model)) for path, t in tree["attributes"].items()]

    def build(leaves: Sequence[object]) -> Any:
        for module, name, child in children:
            setattr(module, name, child(leaves))
        return returned(leaves)

    return build


def _builder(node: Any, numbers: Iterator[int], model: torch.nn.Module) -> Build:
    if "value" in node:
        at = next(numbers)
        return lambda leaves: leaves[at]
    if "literal" in node:
        value = literal(node["literal"], _CPU)
        return lambda leaves: value
    if "tuple" in node or "list" in node:
        kind: Any = tuple if "tuple" in node else list
        items = [_builder(item, numbers, model) for item in node["tuple" if "tuple" in node else "list"]]
        return lambda leaves: kind(item(leaves) for item in items)
    fields = node["dict"] if "dict" in node else node["fields"]
    children = {key: _builder(item, numbers, model) for key, item in fields.items()}
    if "dict" in node:
        return lambda leaves: {key: child(leaves) for key, child in children.items()}
    make = record_maker(node["record"], tuple(children), model)
    return lambda leaves: make({key: child(leaves) for key, child in children.items()})
