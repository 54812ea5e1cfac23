"""Calls of the live model against the recorded call: inputs are checked and flattened.

A call is matched by forward's signature, so that positional and keyword arguments, and defaults left out, are equal.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from ..errors import BindError
from ..format.tensor_type import TensorType, parse_type
from ..operator_calls.overloads import TORCH_DTYPES, described, empty, is_dense, laid_out, literal
from .containers import children
from .order import arranged, order_error

_MISSING = object()
_CPU = torch.device("cpu")
_PLAN_AGAIN = "plan again for this call, or call as planned"

Accept = Callable[[Any, torch.device, list[torch.Tensor]], None]  # checks one argument, appends its tensors


class Inputs:
    """The recorded call. ordered: refuse keys in another order than the recorded one. sized: the tree names sizes; then
    `flatten` leaves tensors as they are and looks at neither their types nor literals.

    names: the input leaves of the file, in the order in which `flatten` gives their tensors. That order is forward's,
    not the file's, so whoever takes the tensors goes by these names.
    """

    def __init__(
        self, tree: Mapping[str, Any], forward: Callable[..., Any], ordered: bool = True, sized: bool = False
    ) -> None:
        self._signature, self._ordered = inspect.signature(forward), ordered
        self._leaf = _any_leaf if sized else _leaf
        self.names: list[str] = []
        self._nodes = recorded = self._bind(tree.get("args", ()), tree.get("kwargs", {}))
        self._extra = [key for key in recorded if key.startswith("**")]
        self._accepts = self._recorded(recorded)
        self._forms: dict[tuple[int, tuple[str, ...]], list[tuple[Accept, int | str | None]]] = {}

    def flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device) -> list[torch.Tensor]:
        """The tensors of a live call, in the order of `names`. Raise BindError, naming the input, where the call is not
        the recorded one; OrderError, where only the order of keys is not."""
        form = (len(args), tuple(kwargs))
        plan = self._forms.get(form)
        if plan is None:
            plan = self._forms[form] = self._plan(len(args), form[1])
        found: list[torch.Tensor] = []
        for accept, where in plan:
            given = _MISSING if where is None else args[where] if isinstance(where, int) else kwargs[where]
            accept(given, device, found)
        return found

    def as_planned(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A call that `flatten` has taken, with all keys in the recorded order."""
        given: dict[str, int | str] = self._bind(range(len(args)), {name: name for name in kwargs})
        where = {place: self._nodes.get(key, {}) for key, place in given.items()}
        planned = {key[2:]: at for at, key in enumerate(self._extra)}
        order = sorted(kwargs, key=lambda name: planned.get(name, -1) if f"**{name}" in given else -1)
        return (
            tuple(arranged(where[at], item) for at, item in enumerate(args)),
            {name: arranged(where[name], kwargs[name]) for name in order},
        )

    def _bind(self, args: Iterable[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by parameter; those of `*args` and `**kwargs` as `*0`, `*1` and `**name`: a keyword argument may
        have the name of a positional-only parameter."""
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
        """What an error calls the argument: `rest.0` for the first of `*rest`, `bias` for one of `**more`."""
        if key.startswith("**") or not key.startswith("*"):
            return key.removeprefix("**")
        kind = inspect.Parameter.VAR_POSITIONAL
        return f"{next(n for n, p in self._signature.parameters.items() if p.kind is kind)}.{key[1:]}"

    def _recorded(self, recorded: dict[str, Any]) -> dict[str, Accept]:
        """One acceptor per argument of forward, the recorded ones first."""
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
        """Which argument of a call with `count` positional and these keyword arguments goes to which acceptor."""
        given: dict[str, int | str] = self._bind(range(count), {name: name for name in names})
        new = [self._label(key) for key in given if key not in self._accepts]
        if new:
            raise BindError(f"the schedule was planned without the input {', '.join(map(repr, new))}\n  {_PLAN_AGAIN}")
        extra = [key for key in given if key.startswith("**")]
        if self._ordered and extra != self._extra and len(extra) == len(self._extra):
            raise order_error("keyword arguments that forward takes as **", [key[2:] for key in self._extra])
        return [(accept, given.get(key)) for key, accept in self._accepts.items()]


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


Leaf = Callable[[Mapping[str, Any], str], Accept]  # of a tensor or a literal, and what errors call it


def _acceptor(node: Mapping[str, Any], label: str, names: list[str], ordered: bool, leaf: Leaf) -> Accept:
    """What a node of the inputs tree accepts. label: what errors call it. Appends its leaves to `names`. ordered:
    mappings must have their keys in the recorded order."""
    if "tensor" in node:
        names.append(node.get("name", label))
        return leaf(node, names[-1])
    if "literal" in node:
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
    return _literal(literal(node["literal"], _CPU), label)


def _any_leaf(node: Mapping[str, Any], label: str) -> Accept:
    """A tensor of any type, or any literal: where sizes are still to be read from the call."""

    def run(given: Any, device: torch.device, found: list[torch.Tensor]) -> None:
        if "tensor" in node:
            if not isinstance(given, torch.Tensor):
                was = f"a tensor {node['tensor']}"
                raise BindError(
                    f"the input {label!r} was {was} when planning, now it is {_short(given)}\n  {_PLAN_AGAIN}"
                )
            found.append(given)

    return run


def _tensor(type_: TensorType, name: str, grad: bool) -> Accept:
    shape, dtype = torch.Size(type_.shape), TORCH_DTYPES[type_.dtype]

    def run(given: Any, device: torch.device, found: list[torch.Tensor]) -> None:
        if not isinstance(given, torch.Tensor):
            raise BindError(
                f"the input {name!r} was a tensor {type_} when planning, now it is {_short(given)}\n  {_PLAN_AGAIN}"
            )
        where = _CPU if type_.cpu else device
        if not is_dense(given):
            raise BindError(
                f"the input {name!r} must be {type_} on {where}, got {described(given)}\n  make it a dense tensor"
            )
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


def _mapping(parts: dict[str, Accept], name: str, ordered: bool) -> Accept:
    order = list(parts)

    def run(given: Any, device: torch.device, found: list[torch.Tensor]) -> None:
        if not isinstance(given, Mapping) or given.keys() != parts.keys():
            raise BindError(
                f"the input {name!r} must have the keys {sorted(parts)}, got {_short(given)}\n  {_PLAN_AGAIN}"
            )
        if ordered and list(given) != order:
            raise order_error(f"keys of the input {name!r}", order)
        for key, part in parts.items():
            part(given[key], device, found)

    return run


def _record(kind: str, parts: dict[str, Accept], name: str) -> Accept:
    def run(given: Any, device: torch.device, found: list[torch.Tensor]) -> None:
        inner = children(given)
        if inner is None or inner[0] != "record" or type(given).__name__ != kind:
            raise BindError(
                f"the input {name!r} was a {kind} when planning, now it is {_short(given)}\n  {_PLAN_AGAIN}"
            )
        if inner[1].keys() != parts.keys():
            raise BindError(
                f"the input {name!r} must have the fields {sorted(parts)}, got {sorted(inner[1])}\n  {_PLAN_AGAIN}"
            )
        for key, part in parts.items():
            part(inner[1][key], device, found)

    return run


def _same(given: Any, expected: Any) -> bool:
    """Equal as literals, or as containers of them: True is not 1, 1 is not 1.0, nan is nan, 0.0 is not -0.0."""
    one, other = children(given), children(expected)
    if one is not None and other is not None and type(given) is type(expected):
        return list(one[1]) == list(other[1]) and all(_same(one[1][key], other[1][key]) for key in one[1])
    if not isinstance(given, bool | int | float | complex | str | None):
        return False
    if any(isinstance(given, kind) is not isinstance(expected, kind) for kind in (bool, int, float, complex)):
        return False
    return (given == expected and str(given) == str(expected)) or (given != given and expected != expected)


def _short(given: Any) -> str:
    if isinstance(given, torch.Tensor):
        return f"a tensor {described(given)}"
    if isinstance(given, bool | int | float | str | None):
        return repr(given)[:80]
    if isinstance(given, Mapping):
        return f"{type(given).__name__} with the keys {sorted(map(str, given))}"[:400]
    size = f" of {len(given)}" if isinstance(given, Sequence) else ""
    return f"{type(given).__name__}{size}"
