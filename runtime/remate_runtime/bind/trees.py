"""Calls of the live model against the trees of a schedule: inputs are flattened and checked, outputs are rebuilt.

A call is matched by forward's signature, so that positional and keyword arguments, and defaults left out, are equal.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ..errors import BindError
from ..format.tensor_type import TensorType, parse_type
from ..kernels.overloads import TORCH_DTYPES, described, empty, laid_out, literal

_MISSING = object()
_CPU = torch.device("cpu")
_PLAN_AGAIN = "plan again for this call, or call as planned"

Accept = Callable[[Any, torch.device, list[torch.Tensor]], None]  # checks one argument, appends its tensors


class Inputs:
    """The recorded call. `flatten` turns a live call into the tensors of its leaves, in the order of the file."""

    def __init__(self, tree: Mapping[str, Any], forward: Callable[..., Any]) -> None:
        self._signature = inspect.signature(forward)
        self._accepts = self._recorded(tree)
        self._forms: dict[tuple[int, tuple[str, ...]], list[tuple[Accept, int | str | None]]] = {}

    def flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device) -> list[torch.Tensor]:
        """Raise BindError, naming the input, where the call is not the recorded one."""
        form = (len(args), tuple(kwargs))
        plan = self._forms.get(form)
        if plan is None:
            plan = self._forms[form] = self._plan(len(args), form[1])
        found: list[torch.Tensor] = []
        for accept, where in plan:
            given = _MISSING if where is None else args[where] if isinstance(where, int) else kwargs[where]
            accept(given, device, found)
        return found

    def _bind(self, args: Iterable[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name; those of `*args` and `**kwargs` parameters as `name.0` and by their own name."""
        try:
            bound = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise BindError(f"the call does not fit forward{self._signature}: {error}\n  {_PLAN_AGAIN}") from None
        flat: dict[str, Any] = {}
        for name, value in bound.items():
            kind = self._signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                flat.update({f"{name}.{i}": v for i, v in enumerate(value)})
            elif kind is inspect.Parameter.VAR_KEYWORD:
                flat.update(value)
            else:
                flat[name] = value
        return flat

    def _recorded(self, tree: Mapping[str, Any]) -> dict[str, Accept]:
        """One acceptor per argument of forward, the recorded ones first and in their order."""
        recorded = self._bind(tree.get("args", ()), tree.get("kwargs", {}))
        accepts: dict[str, Accept] = {}
        for name, node in recorded.items():
            parameter = self._signature.parameters.get(name)
            default = _MISSING if parameter is None or parameter.default is parameter.empty else parameter.default
            accepts[name] = _or_default(_acceptor(node, name), default, name)
        for name, parameter in self._signature.parameters.items():
            if name not in accepts and parameter.default is not parameter.empty:
                accepts[name] = _left_out(name, parameter.default)
        return accepts

    def _plan(self, count: int, names: tuple[str, ...]) -> list[tuple[Accept, int | str | None]]:
        """Which argument of a call with `count` positional and these keyword arguments goes to which acceptor."""
        given: dict[str, int | str] = self._bind(range(count), {name: name for name in names})
        extra = [name for name in given if name not in self._accepts]
        if extra:
            raise BindError(
                f"the schedule was planned without the input {', '.join(map(repr, extra))}\n  {_PLAN_AGAIN}"
            )
        return [(accept, given.get(name)) for name, accept in self._accepts.items()]


def _or_default(accept: Accept, default: Any, name: str) -> Accept:
    def run(given: Any, device: torch.device, found: list[torch.Tensor]) -> None:
        if given is _MISSING:
            if default is _MISSING:
                raise BindError(f"the input {name!r} is missing\n  {_PLAN_AGAIN}")
            given = default
        accept(given, device, found)

    return run


def _left_out(name: str, default: Any) -> Accept:
    def run(given: Any, device: torch.device, found: list[torch.Tensor]) -> None:
        if given is not _MISSING and given is not default and not _same(given, default):
            raise BindError(
                f"the input {name!r} was left out when planning ({default!r}), the call gives {_short(given)}"
                f"\n  {_PLAN_AGAIN}"
            )

    return run


def _acceptor(node: Mapping[str, Any], name: str) -> Accept:
    """What a node of the inputs tree accepts."""
    if "tensor" in node:
        return _tensor(parse_type(node["tensor"]), node.get("name", name), node.get("grad", False))
    if "literal" in node:
        return _literal(literal(node["literal"], _CPU), name)
    if "tuple" in node or "list" in node:
        items = node["tuple"] if "tuple" in node else node["list"]
        return _sequence([_acceptor(item, f"{name}.{i}") for i, item in enumerate(items)], name)
    items = node["dict"] if "dict" in node else node["fields"]
    children = {key: _acceptor(item, f"{name}.{key}") for key, item in items.items()}
    return _mapping(children, name) if "dict" in node else _record(children, name)


def _tensor(type_: TensorType, name: str, grad: bool) -> Accept:
    shape, dtype = torch.Size(type_.shape), TORCH_DTYPES[type_.dtype]

    def run(given: Any, device: torch.device, found: list[torch.Tensor]) -> None:
        if not isinstance(given, torch.Tensor):
            raise BindError(
                f"the input {name!r} was a tensor {type_} when planning, now it is {_short(given)}\n  {_PLAN_AGAIN}"
            )
        where = _CPU if type_.cpu else device
        if given.shape != shape or given.dtype is not dtype or given.device != where:
            raise BindError(
                f"the input {name!r} must be {type_} on {where}, got {described(given)}\n  "
                + ("plan again for this shape or pad" if given.shape != shape else "convert it, or plan again with it")
            )
        if given.requires_grad and not grad and torch.is_grad_enabled():
            raise BindError(
                f"the input {name!r} requires grad, and the schedule has no gradient for it"
                "\n  detach it, or plan again with an example that requires grad"
            )
        if not laid_out(given, type_) or given.is_conj() or given.is_neg():
            given = empty(type_, device).copy_(given)  # outside the step: autograd passes through the copy
        found.append(given)

    return run


def _literal(expected: Any, name: str) -> Accept:
    def run(given: Any, device: torch.device, found: list[torch.Tensor]) -> None:
        if not _same(given, expected):
            raise BindError(
                f"the input {name!r} was {expected!r} when planning, now it is {_short(given)}\n  {_PLAN_AGAIN}"
            )

    return run


def _sequence(children: list[Accept], name: str) -> Accept:
    def run(given: Any, device: torch.device, found: list[torch.Tensor]) -> None:
        if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != len(children):
            raise BindError(
                f"the input {name!r} must be a sequence of {len(children)}, got {_short(given)}\n  {_PLAN_AGAIN}"
            )
        for child, item in zip(children, given, strict=True):
            child(item, device, found)

    return run


def _mapping(children: dict[str, Accept], name: str) -> Accept:
    def run(given: Any, device: torch.device, found: list[torch.Tensor]) -> None:
        if not isinstance(given, Mapping) or given.keys() != children.keys():
            raise BindError(
                f"the input {name!r} must have the keys {sorted(children)}, got {_short(given)}\n  {_PLAN_AGAIN}"
            )
        for key, child in children.items():
            child(given[key], device, found)

    return run


def _record(children: dict[str, Accept], name: str) -> Accept:
    def run(given: Any, device: torch.device, found: list[torch.Tensor]) -> None:
        for key, child in children.items():
            if not hasattr(given, key):
                raise BindError(f"the input {name!r} must have the field {key!r}, got {_short(given)}\n  {_PLAN_AGAIN}")
            child(getattr(given, key), device, found)

    return run


def _same(given: Any, expected: Any) -> bool:
    """Equal as literals: True is not 1, nan is nan; what is no literal equals nothing."""
    if not isinstance(given, bool | int | float | complex | str | None):
        return False
    if isinstance(given, bool) is not isinstance(expected, bool):
        return False
    return given == expected or (given != given and expected != expected)


def _short(given: Any) -> str:
    if isinstance(given, torch.Tensor):
        return f"a tensor {described(given)}"
    if isinstance(given, bool | int | float | str | None):
        return repr(given)[:80]
    if isinstance(given, Mapping):
        return f"{type(given).__name__} with the keys {sorted(map(str, given))}"[:400]
    size = f" of {len(given)}" if isinstance(given, Sequence) else ""
    return f"{type(given).__name__}{size}"


# Outputs

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
    """A function from the output leaves, in the order of the file, to the value that the model would return."""
    return _builder(tree, iter(range(sys.maxsize)), model)


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
