"""Checks the inputs of a live call against the recorded call, and flattens them.

Calls are matched by forward's signature, so that positional arguments, keyword arguments and omitted defaults are
equivalent.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import torch

from ..errors import BindError
from ..format.tensor_type import TensorType, parse_type
from ..operator_calls.overloads import TORCH_DTYPES, described, empty, is_dense, laid_out, literal
from ..torch_private.execution import DISABLED_TORCH_FUNCTION
from .containers import children, is_mapping
from .order import arranged, order_error

_MISSING = object()
_CPU = torch.device("cpu")
_OTHER_SHAPE = (
    "plan sizes that vary: dims='auto' for the batch, or a range as below; or run the model's own forward at other "
    "sizes: apply(..., otherwise='original'); or pad"
)
_PLAN_AGAIN = "plan again for this call, or call as planned"

Accept = Callable[[Any, torch.device, list[Any]], None]  # checks an argument and appends its tensors
Leaf = Callable[[Mapping[str, Any], str], Accept]  # of a tensor, a number or a literal, and its name in errors


class Inputs:
    """The recorded call.

    Args:
        ordered: Whether to refuse keys in another order than the recorded one.
        sized: Whether the tree contains named sizes. `flatten` then checks neither types nor literals.
        leaf: Returns what accepts a leaf, instead of a check of its type or value.

    Attributes:
        names: The input leaves in the order in which `flatten` returns their tensors. This is the order of forward, not
            of the file, so callers must match tensors by these names.
    """

    def __init__(
        self,
        tree: Mapping[str, Any],
        forward: Callable[..., Any],
        ordered: bool = True,
        sized: bool = False,
        leaf: Leaf | None = None,
    ) -> None:
        self._signature, self._ordered = inspect.signature(forward), ordered
        self._leaf = leaf or (_any_leaf if sized else _leaf)
        self.names: list[str] = []
        self._nodes = recorded = self._bind(tree.get("args", ()), tree.get("kwargs", {}))
        self._extra = [key for key in recorded if key.startswith("**")]
        self._accepts = self._recorded(recorded)
        self._forms: dict[tuple[int, tuple[str, ...]], list[tuple[Accept, int | str | None]]] = {}

    def flatten(self, args: tuple[object, ...], kwargs: dict[str, Any], device: torch.device) -> list[Any]:
        """Return the tensors of a live call in the order of `names`, or what `leaf` collects.

        Raises:
            BindError: The call is not the recorded one; the text names the input.
            OrderError: Only the order of keys differs.
        """
        form = (len(args), tuple(kwargs))
        plan = self._forms.get(form)
        if plan is None:
            plan = self._forms[form] = self._plan(len(args), form[1])
        tensors: list[Any] = []
        for accept, where in plan:
            argument = _MISSING if where is None else args[where] if isinstance(where, int) else kwargs[where]
            accept(argument, device, tensors)
        return tensors

    def as_planned(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a call that `flatten` accepted, with all keys in the recorded order."""
        given: dict[str, int | str] = self._bind(range(len(args)), {name: name for name in kwargs})
        where = {place: self._nodes.get(key, {}) for key, place in given.items()}
        planned = {key[2:]: at for at, key in enumerate(self._extra)}
        order = sorted(kwargs, key=lambda name: planned.get(name, -1) if f"**{name}" in given else -1)
        return (
            tuple(arranged(where[at], item) for at, item in enumerate(args)),
            {name: arranged(where[name], kwargs[name]) for name in order},
        )

    def _bind(self, args: Iterable[object], kwargs: Mapping[str, object]) -> dict[str, Any]:
        """Return arguments by parameter. Those of `*args` and `**kwargs` are `*0`, `*1` and `**name`.

        The prefix distinguishes a keyword argument from a positional-only parameter of the same name.
        """
        try:
            bound = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise BindError(f"the call does not fit forward{self._signature}: {error}\n  {_PLAN_AGAIN}") from None
        flat: dict[str, Any] = {}
        for name, value in bound.items():
            kind = self._signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                flat.update({f"*{at}": item for at, item in enumerate(value)})
            elif kind is inspect.Parameter.VAR_KEYWORD:
                flat.update({f"**{key}": item for key, item in value.items()})
            else:
                flat[name] = value
        return flat

    def _label(self, key: str) -> str:
        """Return the name of an argument in errors: `rest.0` for the first of `*rest`, `bias` for an item of
        `**more`."""
        if key.startswith("**") or not key.startswith("*"):
            return key.removeprefix("**")
        kind = inspect.Parameter.VAR_POSITIONAL
        return f"{next(n for n, p in self._signature.parameters.items() if p.kind is kind)}.{key[1:]}"

    def _recorded(self, recorded: dict[str, Any]) -> dict[str, Accept]:
        """Return one acceptor per argument of forward, the recorded ones first."""
        accepts: dict[str, Accept] = {}
        for key, node in recorded.items():
            parameter = self._signature.parameters.get(key)
            default = _MISSING if parameter is None or parameter.default is parameter.empty else parameter.default
            label = self._label(key)
            accept = _acceptor(node, label, self.names, self._ordered, self._leaf)
            accepts[key] = _or_default(accept, default, label)
        for name, parameter in self._signature.parameters.items():
            if name not in accepts and parameter.default is not parameter.empty:
                accepts[name] = _left_out(name, parameter.default)
        return accepts

    def _plan(self, count: int, names: tuple[str, ...]) -> list[tuple[Accept, int | str | None]]:
        """Assign the arguments of a call to acceptors.

        Args:
            count: Number of positional arguments.
            names: Names of keyword arguments.
        """
        given: dict[str, int | str] = self._bind(range(count), {name: name for name in names})
        new = [self._label(key) for key in given if key not in self._accepts]
        if new:
            raise BindError(f"the schedule was planned without the input {', '.join(map(repr, new))}\n  {_PLAN_AGAIN}")
        extra = [key for key in given if key.startswith("**")]
        if self._ordered and extra != self._extra and len(extra) == len(self._extra):
            raise order_error("keyword arguments that forward takes as **", [key[2:] for key in self._extra])
        return [(accept, given.get(key)) for key, accept in self._accepts.items()]


def _or_default(accept: Accept, default: object, name: str) -> Accept:
    def run(argument: object, device: torch.device, tensors: list[Any]) -> None:
        if argument is _MISSING:
            if default is _MISSING:
                raise BindError(f"the input {name!r} is missing\n  {_PLAN_AGAIN}")
            argument = default
        accept(argument, device, tensors)

    return run


def _left_out(name: str, default: object) -> Accept:
    def run(argument: object, device: torch.device, tensors: list[Any]) -> None:
        if argument is not _MISSING and argument is not default and not _same(argument, default):
            raise BindError(
                f"the input {name!r} was left out when planning ({default!r}), the call passes {_short(argument)}"
                f"\n  {_PLAN_AGAIN}"
            )

    return run


def _acceptor(node: Mapping[str, Any], label: str, names: list[str], ordered: bool, leaf: Leaf) -> Accept:
    """Return the acceptor of a node of the inputs tree.

    Args:
        node: The node.
        label: Name in errors.
        names: The leaves are appended here.
        ordered: Whether mappings must have their keys in the recorded order.
        leaf: Returns the acceptor of a leaf.
    """
    if "tensor" in node:
        names.append(node.get("name", label))
        return leaf(node, names[-1])
    if "literal" in node or "live" in node:
        return leaf(node, label)
    if "tuple" in node or "list" in node:
        items = node["tuple"] if "tuple" in node else node["list"]
        return _sequence([_acceptor(item, f"{label}.{i}", names, ordered, leaf) for i, item in enumerate(items)], label)
    items = node["dict"] if "dict" in node else node["fields"]
    parts = {key: _acceptor(item, f"{label}.{key}", names, ordered, leaf) for key, item in items.items()}
    return _mapping(parts, label, ordered) if "dict" in node else _record(node["record"], parts, label)


def _leaf(node: Mapping[str, Any], label: str) -> Accept:
    if "tensor" in node:
        return _tensor(parse_type(node["tensor"]), label, node.get("grad", False))
    if "live" in node:
        return _any_leaf(node, label)  # LiveNumbers reads and checks it
    return _literal(literal(node["literal"], _CPU), label)


def _any_leaf(node: Mapping[str, object], label: str) -> Accept:
    """Accept a tensor of any type, or any literal, because the sizes of the call are not known yet."""

    def run(argument: object, device: torch.device, tensors: list[Any]) -> None:
        if "tensor" in node:
            if not isinstance(argument, torch.Tensor):
                was = f"a tensor {node['tensor']}"
                raise BindError(
                    f"the input {label!r} was {was} when planning, now it is {_short(argument)}\n  {_PLAN_AGAIN}"
                )
            tensors.append(argument)

    return run


def _tensor(type_: TensorType, name: str, grad: bool) -> Accept:
    shape, dtype = torch.Size(type_.shape), TORCH_DTYPES[type_.dtype]

    def run(argument: object, device: torch.device, tensors: list[Any]) -> None:
        if not isinstance(argument, torch.Tensor):
            raise BindError(
                f"the input {name!r} was a tensor {type_} when planning, now it is {_short(argument)}\n  {_PLAN_AGAIN}"
            )
        where = _CPU if type_.cpu else device
        if not is_dense(argument):
            raise BindError(
                f"the input {name!r} must be {type_} on {where}, got {described(argument)}\n  make it a dense tensor"
            )
        if argument.shape != shape or argument.dtype is not dtype or argument.device != where:
            raise BindError(
                f"the input {name!r} must be {type_} on {where}, got {described(argument)}\n  "
                + (_OTHER_SHAPE if argument.shape != shape else "convert it, or plan again with it")
            )
        if type(argument) is not torch.Tensor and replaces_functions(type(argument)):
            raise BindError(
                f"the input {name!r} is a {type(argument).__qualname__}, whose __torch_function__ may replace "
                "functions of torch; a schedule runs the operators below them\n  pass x.as_subclass(torch.Tensor), or "
                "call the original model"
            )
        if argument.requires_grad and not grad and torch.is_grad_enabled():
            raise BindError(
                f"the input {name!r} requires grad, and the schedule has no gradient for it"
                "\n  detach it, or plan again with an example that requires grad"
            )
        if not laid_out(argument, type_) or argument.is_conj() or argument.is_neg():
            argument = empty(type_, device).copy_(argument)  # not part of the step; autograd differentiates the copy
        tensors.append(argument)

    return run


def replaces_functions(kind: type[torch.Tensor]) -> bool:
    """Return whether a class of tensors has a `__torch_function__` of its own."""
    given: Any = kind  # torch declares no types here
    plain: Any = torch.Tensor
    own = getattr(given.__torch_function__, "__func__", given.__torch_function__)
    return own not in (plain.__torch_function__.__func__, DISABLED_TORCH_FUNCTION)


def _literal(expected: object, name: str) -> Accept:
    def run(argument: object, device: torch.device, tensors: list[Any]) -> None:
        if not _same(argument, expected):
            live = isinstance(argument, float) and isinstance(expected, int | float)
            advice = f"; it may change if the whole model is planned with live=[{name!r}]" if live else ""
            raise BindError(
                f"the input {name!r} was {expected!r} when planning, now it is {_short(argument)}{advice}"
                f"\n  {_PLAN_AGAIN}"
            )

    return run


def _is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence)


def _sequence(children: list[Accept], name: str) -> Accept:
    def run(argument: object, device: torch.device, tensors: list[Any]) -> None:
        if not _is_sequence(argument) or isinstance(argument, str) or len(argument) != len(children):
            raise BindError(
                f"the input {name!r} must be a sequence of {len(children)}, got {_short(argument)}\n  {_PLAN_AGAIN}"
            )
        for child, item in zip(children, argument, strict=True):
            child(item, device, tensors)

    return run


def _mapping(parts: dict[str, Accept], name: str, ordered: bool) -> Accept:
    order = list(parts)

    def run(argument: object, device: torch.device, tensors: list[Any]) -> None:
        if not is_mapping(argument) or argument.keys() != parts.keys():
            raise BindError(
                f"the input {name!r} must have the keys {sorted(parts)}, got {_short(argument)}\n  {_PLAN_AGAIN}"
            )
        if ordered and list(argument) != order:
            raise order_error(f"keys of the input {name!r}", order)
        for key, part in parts.items():
            part(argument[key], device, tensors)

    return run


def _record(kind: str, parts: dict[str, Accept], name: str) -> Accept:
    def run(argument: object, device: torch.device, tensors: list[Any]) -> None:
        record = children(argument)
        if record is None or record[0] != "record" or type(argument).__name__ != kind:
            raise BindError(
                f"the input {name!r} was a {kind} when planning, now it is {_short(argument)}\n  {_PLAN_AGAIN}"
            )
        if record[1].keys() != parts.keys():
            raise BindError(
                f"the input {name!r} must have the fields {sorted(parts)}, got {sorted(record[1])}\n  {_PLAN_AGAIN}"
            )
        for key, part in parts.items():
            part(record[1][key], device, tensors)

    return run


def _same(argument: object, expected: object) -> bool:
    """Compare literals or containers of literals. True, 1 and 1.0 differ, and so do 0.0 and -0.0; nan equals nan."""
    items, expected_items = children(argument), children(expected)
    if items is not None and expected_items is not None and type(argument) is type(expected):
        return list(items[1]) == list(expected_items[1]) and all(
            _same(items[1][key], expected_items[1][key]) for key in items[1]
        )
    if not isinstance(argument, bool | int | float | complex | str | None):
        return False
    if any(isinstance(argument, kind) is not isinstance(expected, kind) for kind in (bool, int, float, complex)):
        return False
    return (argument == expected and str(argument) == str(expected)) or (argument != argument and expected != expected)


def _short(given: object) -> str:
    if isinstance(given, torch.Tensor):
        return f"a tensor {described(given)}"
    if isinstance(given, float):
        return repr(float(given))
    if isinstance(given, bool | int | str | None):
        return repr(given)[:80]
    if is_mapping(given):
        return f"{type(given).__name__} with the keys {sorted(map(str, given))}"[:400]
    size = f" of {len(given)}" if _is_sequence(given) else ""
    return f"{type(given).__name__}{size}"
