"""Modules and parameters that forward reaches and that the model does not register: in globals, lists, closures, class
attributes, configurations.

A digest does not contain them, and the self-check of the first call sees how they were then. From there on the guard
compares them: a schedule has their settings, and their tensors as constants.
"""

from __future__ import annotations

import hashlib
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from ..bind.containers import is_mapping
from ..bind.modules import modules_by_path
from .attributes import CHILDREN, hook_name, hooks_of, only_looks, record_attribute, replaced_forward
from .code import Code
from .inner_values import bytes_of
from .ownership import qualified
from .values import MAX_CONSTANT, MISSING, OPAQUE, has_parts, held_by, parts_of_value

_DEEP = 8  # deepest nesting of containers that is searched
_NOT_OF_FORWARD = frozenset(
    """__init__ __repr__ __setstate__ __getstate__ __deepcopy__ extra_repr reset_parameters
    _load_from_state_dict""".split()
)
_UNREGISTERED = ", which the model does not register,"
_TENSOR = "the tensor "
_SHOWN = 4  # modules with changed tensors in a message
Roots = Iterable[tuple[str, object]]


class Unregistered:
    """Modules and constant parameters that forward reads and the model does not register.

    Attributes:
        code: What their classes and hooks compute, collected apart from the model's.
        modules: Every module of them, by where it was found.
    """

    def __init__(self, model: nn.Module, roots: Roots, code: Code) -> None:
        """Search what forward reads.

        Args:
            model: The live model.
            roots: What forward reads, each with a name for messages.
            code: The model's code, already followed.
        """
        own = {id(module): path for path, module in modules_by_path(model, each_once=True).items()}
        registered = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
        self.code = Code(code.known_fields)
        self.modules: dict[str, nn.Module] = {}
        self._tensors: dict[str, torch.Tensor] = {}
        self._own: dict[str, str] = {}  # where forward finds modules of the model
        for name, value in roots:
            for place, item in held_in(value, name):
                if isinstance(item, torch.Tensor):
                    if id(item) not in registered:
                        self._tensors[place] = item
                elif id(item) in own:
                    self._own[place] = own[id(item)]
                elif not any(parameter.requires_grad for parameter in item.parameters()):
                    # A module to train is not part of the step: planning refuses its parameters.
                    self.modules |= {f"{place}.{path}".rstrip("."): part for path, part in item.named_modules()}
        for module in self.modules.values():
            self.code.module_class(type(module))
            for kind, hook in hooks_of(module):
                if not only_looks(kind, hook):
                    self.code.source(hook)

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield the tensors that the step may contain as constants."""
        registered = [vars(module)[kind] for module in self.modules.values() for kind in ("_parameters", "_buffers")]
        held: list[dict[str, Any]] = [self._tensors, *registered]
        for tensor in (tensor for tensors in held for tensor in tensors.values()):
            if tensor is not None and tensor.numel() <= MAX_CONSTANT:
                yield tensor

    def described(self) -> dict[str, Any]:
        """Return what determines what they compute, by a text for messages."""
        described: dict[str, Any] = {f"the module {place!r}": repr(path) for place, path in self._own.items()}
        described |= {f"{_TENSOR}{place!r}": _hash(tensor) for place, tensor in self._tensors.items()}
        for place, module in self.modules.items():
            what = f"the module {place!r}{_UNREGISTERED}"
            described[what] = qualified(type(module))
            for name in read_names(module):
                value = record_attribute(module, name, self.code)
                if value is not OPAQUE and name not in CHILDREN:
                    described[f"{what} attribute {name}"] = value
            forward = replaced_forward(module)
            described[f"{what} forward"] = None if forward is MISSING else qualified(forward)
            described[f"{what} submodules"] = list(vars(module)["_modules"])
            described[f"{what} hooks"] = [hook_name(*each) for each in hooks_of(module) if not only_looks(*each)]
            for name, tensor in (*vars(module)["_parameters"].items(), *vars(module)["_buffers"].items()):
                described[f"{what} tensor {name}"] = None if tensor is None else _hash(tensor)
        described |= {f"function {name!r}": source for name, source in self.code.functions.items()}
        return described | {f"global {name!r}": value for name, value in self.code.values.items()}


def read_names(module: nn.Module) -> list[str]:
    """Return the attributes of an unregistered module that methods of its class read."""
    return sorted(name for name in held_by(module) if name in _names_in(type(module)))


class UnregisteredChanges(NamedTuple):
    """What changed in them.

    Attributes:
        texts: A text for each change.
        constants: Whether tensors changed, which a step has as constants.
    """

    texts: list[str]
    constants: bool


def changes(was: Mapping[str, Any], now: Mapping[str, Any]) -> UnregisteredChanges:
    """Return the differences between what `Unregistered.described` returned."""
    texts: list[str] = []
    other: tuple[str, ...] = ()  # modules of another class, whose attributes say nothing
    written: dict[str, list[str]] = {}  # names of tensors by the module around them
    constants = False
    for what in dict.fromkeys([*was, *now]):
        if was.get(what, OPAQUE) == now.get(what, OPAQUE) or what.startswith(other):
            continue
        if what.endswith(_UNREGISTERED):
            other = (*other, what)
        module, tensor, name = what.partition(f"{_UNREGISTERED} tensor ")
        constants |= bool(tensor) or what.startswith(_TENSOR)
        if tensor:
            written.setdefault(module, []).append(name)
        else:
            texts.append(f"{what} was {was.get(what, 'not there')}, is {now.get(what, 'gone')}")
    shown = [f"{module}: {', '.join(names)}" for module, names in written.items()]
    if shown:
        more = f"; and {len(shown) - _SHOWN} more modules" if len(shown) > _SHOWN else ""
        texts.append(
            f"tensors of modules that the model does not register: {'; '.join(shown[:_SHOWN])}{more}: the step has "
            "them as constants. Register the module (self.teacher = teacher), then they are read at every call"
        )
    return UnregisteredChanges(texts, constants)


def _hash(tensor: torch.Tensor) -> str:
    content = bytes_of(tensor) if tensor.numel() <= MAX_CONSTANT else b""  # larger ones are in no file
    hashed = hashlib.sha256(content if isinstance(content, bytes) else str(content).encode()).hexdigest()[:16]
    return f"{tensor.dtype}{list(tensor.shape)} {hashed}"


def held_in(value: object, name: str, deep: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield modules, and parameters that are not trained, in a value: where they are, and they."""
    if isinstance(value, nn.Module):
        yield name, value
    elif isinstance(value, nn.Parameter):
        if not value.requires_grad and not value.is_meta:
            yield name, value
    elif is_mapping(value) and deep < _DEEP:
        for key, item in dict(value.items()).items():
            yield from held_in(item, f"{name}[{key!r}]", deep + 1)
    elif has_parts(value) and deep < _DEEP:
        for at, item in enumerate(parts_of_value(value)):
            yield from held_in(item, f"{name}[{at}]", deep + 1)


def _names_in(kind: type[nn.Module]) -> Collection[str]:
    """Return the names that methods of a class of modules use, but those for constructing, printing and loading."""
    names: set[str] = set()
    for base in kind.__mro__:
        if base is nn.Module:
            break
        for name, member in vars(base).items():
            function = getattr(member, "fget", getattr(member, "__func__", member))
            code = getattr(function, "__code__", None)
            if name not in _NOT_OF_FORWARD and isinstance(code, types.CodeType):
                names.update(code.co_names)
    return frozenset(names)
