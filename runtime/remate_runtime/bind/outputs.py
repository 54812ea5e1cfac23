"""What a planned model returns: the output tree of a schedule, rebuilt around the values of a step; and the outputs that
the step was planned without a gradient for, which refuse one."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ..errors import ExecutionError
from ..format.signature import output_leaves
from ..operator_calls.overloads import literal
from .attributes import attribute_of

_CPU = torch.device("cpu")


class Detached:
    """Outputs that have a gradient in the live model and none in the step. Without this a loss made of one of them and of
    others would train on the others alone."""

    def __init__(self, tree: Any) -> None:
        leaves = list(output_leaves(tree))
        planned = [leaf.name for leaf in leaves if leaf.grad]
        self._refusals = [(at, _refusal(leaf.name, planned)) for at, leaf in enumerate(leaves) if leaf.detached]
        self._anchor = torch.empty(0, requires_grad=True)  # what autograd sees them depend on

    def guard(self, values: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The step's outputs; those that are detached raise ExecutionError in backward if a gradient arrives.

        sources: what the step ran on. Where none of it requires grad eager has no gradients either.
        """
        if not self._refusals or not torch.is_grad_enabled() or not any(t.requires_grad for t in sources):
            return values
        guarded = list(values)
        for at, refusal in self._refusals:
            guarded[at] = _Refuse.apply([guarded[at]], refusal, self._anchor)
        return guarded


def _refusal(name: str, planned: Sequence[str]) -> str:
    return (
        f"a gradient arrived for the output {name!r}, and the schedule was planned without one for it"
        f"\n  plan again with differentiate={[*planned, name]!r}, or use {name!r} after .detach()"
    )


class _Refuse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: list[torch.Tensor], refusal: str, anchor: torch.Tensor) -> torch.Tensor:
        ctx.refusal = refusal
        ctx.set_materialize_grads(False)
        return value[0].detach()  # in a list, so that the result is no view of an input: it may be written into

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        if gradient is not None:  # DistributedDataParallel hands none on, through a node of its own
            raise ExecutionError(ctx.refusal)
        return None, None, None


Build = Callable[[Sequence[Any]], Any]


class Record:
    """An output record whose class the live model's modules do not define: fields by attribute, key or position."""

    def __init__(self, name: str, fields: Mapping[str, Any]) -> None:
        self.__dict__.update(fields)
        self._name = name

    def keys(self) -> list[str]:
        return [key for key in self.__dict__ if key != "_name"]

    def __getitem__(self, key: str | int) -> Any:
        return self.__dict__[self.keys()[key] if isinstance(key, int) else key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def __repr__(self) -> str:
        return f"{self._name}({', '.join(f'{key}={self[key]!r}' for key in self)})"


def output_builder(tree: Any, model: torch.nn.Module) -> Build:
    """A function from the output leaves, in the order of the file, to the value that the model would return, which sets
    the attributes that forward sets. Raises BindError for one that the model cannot have."""
    numbers = iter(range(sys.maxsize))
    if "returns" not in tree:
        return _builder(tree, numbers, model)
    returned = _builder(tree["returns"], numbers, model)
    children = [(*attribute_of(model, path), _builder(t, numbers, model)) for path, t in tree["attributes"].items()]

    def build(leaves: Sequence[Any]) -> Any:
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
        kind = tuple if "tuple" in node else list
        items = [_builder(item, numbers, model) for item in node["tuple" if "tuple" in node else "list"]]
        return lambda leaves: kind(item(leaves) for item in items)
    fields = node["dict"] if "dict" in node else node["fields"]
    children = {key: _builder(item, numbers, model) for key, item in fields.items()}
    if "dict" in node:
        return lambda leaves: {key: child(leaves) for key, child in children.items()}
    make = _record_class(node["record"], tuple(children), model)
    return lambda leaves: make({key: child(leaves) for key, child in children.items()})


def _record_class(name: str, fields: tuple[str, ...], model: torch.nn.Module) -> Callable[[dict[str, Any]], Any]:
    """The dataclass or named tuple called `name` among what the model's own source modules define or import."""
    if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        origins = dict.fromkeys(base.__module__ for module in model.modules() for base in type(module).__mro__)
        for origin in origins:
            found = vars(sys.modules[origin]).get(name) if origin in sys.modules else None
            if isinstance(found, type) and _holds(found, fields):
                return lambda values, made=found: made(**values)
    return lambda values: Record(name, values)


def _holds(found: type, fields: tuple[str, ...]) -> bool:
    """Whether `found` is a record type that these fields, and no others, can make."""
    if dataclasses.is_dataclass(found):
        required = {
            field.name
            for field in dataclasses.fields(found)
            if field.init and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        }
        allowed = {field.name for field in dataclasses.fields(found) if field.init}
    elif issubclass(found, tuple) and hasattr(found, "_fields"):
        allowed = set(getattr(found, "_fields"))  # noqa: B009 (a tuple type has no such attribute in general)
        required = allowed - set(getattr(found, "_field_defaults", {}))
    else:
        return False
    return required <= set(fields) <= allowed
