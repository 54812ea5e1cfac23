"""The caches that forward fills at its first call: masks, tables of positions, flags. They are filled here without
computing a step.

Forward runs with parameters and inputs that have no data. What follows from Python numbers, constants and buffers is
computed with real data, so that such a cache equals the one of a first call. What follows from parameters, inputs or
random numbers has no data. A cache of it is left alone, because each first call would fill it differently.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from ..bind.containers import is_mapping, mapped
from ..bind.modules import modules_by_path
from ..format.json_values import is_list
from ..torch_private import pytree
from ..torch_private.execution import TorchDispatchMode
from ..torch_private.fake_tensors import FakeTensor, FakeTensorMode, quiet_meta_failures
from ..torch_private.operators import OpOverload, schema_of

_SHAPED = frozenset(
    ("new_empty", "new_full", "new_ones", "new_zeros", "empty_like", "full_like", "ones_like", "zeros_like")
)  # only the tensor's shape, dtype and device matter
_MACHINERY = frozenset(vars(nn.Module()))
_UNSAVED = "_non_persistent_buffers_set"
_ABSENT: Any = object()


class FirstCall(NamedTuple):
    """What a first call of forward does.

    Attributes:
        caches: Attributes and buffers, by path, that it sets, that the second call leaves as they are, and that are the
            same whatever parameters and inputs hold. The model has them now.
        by_data: Those that follow from data or random numbers; the model is without them.
        carried: Attributes that every call sets to data, where the second call computes something else than the first.
        unlike: Whether the second call computes something else than the first.
        whole: Whether both calls came to their end. Otherwise nothing is known, and nothing was changed.
    """

    caches: tuple[str, ...] = ()
    by_data: tuple[str, ...] = ()
    carried: tuple[str, ...] = ()
    unlike: bool = False
    whole: bool = False


def _generators(model: nn.Module) -> list[tuple[Callable[[Any], object], Any]]:
    """Return (setter, state) of every generator that forward may use: global ones and attributes of modules."""
    states: list[tuple[Callable[[Any], object], Any]] = [
        (torch.set_rng_state, torch.get_rng_state()),
        (random.setstate, random.getstate()),
    ]
    if (numpy := sys.modules.get("numpy")) is not None:
        states.append((numpy.random.set_state, numpy.random.get_state()))
    for value in (value for module in model.modules() for value in vars(module).values()):
        if isinstance(value, random.Random):
            states.append((value.setstate, value.getstate()))
        elif numpy is not None and isinstance(value, numpy.random.RandomState):
            states.append((value.set_state, value.get_state()))
        elif numpy is not None and isinstance(value, numpy.random.Generator):
            bits = value.bit_generator
            states.append((functools.partial(setattr, bits, "state"), bits.state))
        elif isinstance(value, torch.Generator):
            states.append((value.set_state, value.get_state()))
    return states


def make_caches(
    model: nn.Module, args: Sequence[object], kwargs: Mapping[str, object], only: Sequence[str] | None = None
) -> FirstCall:
    """Fill the caches that a first call of forward fills. Generators, buffers and everything else stay as they are.

    Args:
        model: The live model, in the mode of the call.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        only: Paths to keep; the others are restored. None keeps all caches.

    Returns:
        The effects of the first call.
    """
    before = _State(model)
    generators = _generators(model)
    try:
        run = _Run(model)
        run.call(args, kwargs)
        first, wrote, requested = _State(model), run.wrote, run.requested
        run.call(args, kwargs)
        second = _State(model)
    except Exception:  # the model's code failed, or needs data: tracing reports the cause
        before.restore({*before.everything, *_State(model).everything})
        before.restore_contents()
        return FirstCall()
    finally:
        for put_back, state in generators:
            put_back(state)
    known = [key for key in first.everything if before.has(key)]  # forward can also create modules
    changed = [key for key in known if not _same(before.value(key), first.value(key))]
    kept = [key for key in changed if _same(first.value(key), second.value(key))]
    data = [key for key in kept if _has_fakes(first.value(key))]
    once = [name for name in wrote if name not in run.wrote]  # buffers that only the first call fills with data
    sets = [key for key in changed if key not in kept and _has_data(first.value(key), before.value(key))]
    carried = [*map(first.path, sets), *before.filled()] if requested != run.requested else []
    caches = [key for key in kept if only is None or first.path(key) in only] if not data and not once else []
    if not any(isinstance(leaf, torch.Tensor) for key in caches for leaf in pytree.tree_leaves(first.value(key))):
        caches = []  # only flags: the digest records them before and after
    before.restore(key for key in {*before.everything, *first.everything, *second.everything} if key not in caches)
    first.restore(caches)
    before.restore_contents()
    return FirstCall(
        tuple(sorted(first.path(key) for key in caches)),
        tuple(sorted({*map(first.path, data), *once})),
        tuple(sorted(carried)),
        requested != run.requested,
        True,
    )


Key = tuple[int, str, bool]  # module, name, whether it is among the buffers


class _State:
    """A snapshot of the attributes and buffers of all modules."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = {id(module): (path, module) for path, module in modules_by_path(model, each_once=True).items()}
        self._values: dict[Key, Any] = {}
        for key, (_, module) in self._modules.items():
            self._values |= {(key, name, True): value for name, value in vars(module)["_buffers"].items()}
            own = ((name, value) for name, value in vars(module).items() if name not in _MACHINERY)
            self._values |= {(key, name, False): value for name, value in own}
        self._unsaved = {id(module): set(vars(module)[_UNSAVED]) for module in model.modules()}
        self._contents = [(b, b.detach().clone()) for b in model.buffers() if not isinstance(b, FakeTensor)]
        self._contents += [(t, t.detach().clone()) for t in self._values.values() if _is_constant(t)]
        registered = [vars(m)[kind] for _, m in self._modules.values() for kind in ("_modules", "_parameters")]
        self._containers: list[tuple[Any, Any]] = [(registry, dict(registry)) for registry in registered]
        objects = [v for v in self._values.values() if isinstance(getattr(v, "__dict__", None), dict)]
        objects = [v for v in objects if not isinstance(v, nn.Module | torch.Tensor | type) and not callable(v)]
        self._containers += [(attributes, dict(attributes)) for attributes in map(vars, objects)]  # configs
        self._containers += [(c, c.copy()) for c in self._values.values() if type(c) in (list, dict, set)]

    @property
    def everything(self) -> list[Key]:
        return list(self._values)

    def has(self, key: Key) -> bool:
        """Return whether the module was there."""
        return key[0] in self._modules

    def value(self, key: Key) -> Any:
        return self._values.get(key, _ABSENT)

    def path(self, key: Key) -> str:
        return f"{self._modules[key[0]][0]}.{key[1]}".lstrip(".")

    def filled(self) -> list[str]:
        """Return the paths of containers that have tensors without data now, and had none."""
        kept = {id(container): contents for container, contents in self._containers}
        return [
            self.path(key)
            for key, value in self._values.items()
            if not key[2] and id(value) in kept and _has_data(value, kept[id(value)])
        ]

    def restore(self, keys: Iterable[Key]) -> None:
        """Restore these attributes and buffers, as far as their modules were there."""
        for key in filter(self.has, keys):
            attributes = vars(self._modules[key[0]][1])
            holder: dict[str, Any] = attributes["_buffers"] if key[2] else attributes
            value = self.value(key)
            if value is _ABSENT:
                holder.pop(key[1], None)
            elif holder.get(key[1], _ABSENT) is not value:
                holder[key[1]] = value
            if key[2]:
                unsaved: set[str] = attributes[_UNSAVED]
                (unsaved.add if key[1] in self._unsaved[key[0]] else unsaved.discard)(key[1])

    def restore_contents(self) -> None:
        """Restore the contents of buffers and containers."""
        with torch.no_grad():
            for tensor, contents in self._contents:
                if not torch.equal(tensor, contents):
                    tensor.copy_(contents)
        for container, contents in self._containers:
            if _identical(container, contents):
                continue
            container.clear()
            container.extend(contents) if is_list(container) else container.update(contents)


class _Run(TorchDispatchMode):
    """Runs forward without data.

    Attributes:
        wrote: Names of buffers that the last run wrote values without data into.
        requested: Operators that the last run called.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] (torch declares no types)
        self._model = model
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._buffers = {id(buffer): name for name, buffer in model.named_buffers()}
        self.wrote: set[str] = set()
        self.requested: list[str] = []  # operators that the last run called

    def call(self, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        self.wrote, self.requested = set(), []
        given, named = mapped(tuple(args), self._without_data), mapped(dict(kwargs), self._without_data)
        with self._parameters_without_data(), self, quiet_meta_failures():
            self._model.forward(*given, **named)

    def _without_data(self, leaf: object) -> Any:
        if not isinstance(leaf, torch.Tensor) or isinstance(leaf, FakeTensor):
            return leaf
        return self._fake.from_tensor(leaf.detach(), static_shapes=True).requires_grad_(leaf.requires_grad)

    @contextmanager
    def _parameters_without_data(self) -> Generator[None]:
        originals: list[tuple[dict[str, Any], str, Any]] = []
        replacements: dict[int, Any] = {}
        try:
            for module in self._model.modules():
                holder: dict[str, Any] = vars(module)["_parameters"]
                for name, parameter in list(holder.items()):
                    if parameter is not None:
                        originals.append((holder, name, parameter))
                        if id(parameter) not in replacements:
                            fake = self._without_data(parameter)
                            replacements[id(parameter)] = nn.Parameter(fake, parameter.requires_grad)
                        holder[name] = replacements[id(parameter)]
            yield
        finally:
            for holder, name, parameter in originals:
                holder[name] = parameter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named: dict[str, Any] = kwargs or {}
        if getattr(func, "namespace", "") != "prim":
            self.requested.append(str(func))
        tensors = [leaf for leaf in pytree.tree_leaves((args, named)) if isinstance(leaf, torch.Tensor)]
        fake = any(isinstance(tensor, FakeTensor) for tensor in tensors)
        schema = schema_of(func) if fake and issubclass(type(func), OpOverload) else None
        if schema is not None and schema.name.split("::")[-1] in _SHAPED:
            like = args[0]
            meta = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
            return func(meta, *args[1:], **named)
        if not fake and torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()):
            return func(*args, **named)
        if schema is not None and schema.is_mutable and (real := self._written(schema, args)):
            self.wrote |= {self._buffers.get(id(tensor), "a tensor") for tensor in real}
            return args[0]
        with self._fake:
            return func(*args, **named)

    @staticmethod
    def _written(schema: Any, args: Sequence[object]) -> list[torch.Tensor]:
        """Return tensors with data that an operator writes into and whose new contents would have no data."""
        pairs = zip(schema.arguments, args, strict=False)
        written = [given for a, given in pairs if a.alias_info is not None and a.alias_info.is_write]
        leaves = [leaf for leaf in pytree.tree_leaves(written) if isinstance(leaf, torch.Tensor)]
        return [tensor for tensor in leaves if not isinstance(tensor, FakeTensor)]


def _same(first: object, second: object) -> bool:
    if isinstance(first, torch.Tensor) or isinstance(second, torch.Tensor):
        return first is second
    if first is second:
        return True
    kinds: tuple[Any, ...] = (int, float)
    for kind in kinds:  # compares as the plain type: a subclass may record that it was compared
        if isinstance(first, kind) and isinstance(second, kind):
            return type(first) is type(second) and kind.__eq__(first, second) is True
    try:
        return type(first) is type(second) and bool(first == second)
    except Exception:  # things that do not compare
        return False


def _identical(first: Any, second: Any) -> bool:
    if len(first) != len(second) or isinstance(first, set):
        return False
    if is_mapping(first):
        return all(a[0] is b[0] and a[1] is b[1] for a, b in zip(first.items(), second.items(), strict=True))
    return all(a is b for a, b in zip(first, second, strict=True))


def _has_fakes(value: object) -> bool:
    return any(isinstance(leaf, FakeTensor) for leaf in pytree.tree_leaves(value))


def _has_data(value: object, before: object) -> bool:
    """Return whether a value has tensors of a run, other than parameters, and had none before."""
    leaves = (leaf for leaf in pytree.tree_leaves(value) if not isinstance(leaf, nn.Parameter))
    return any(isinstance(leaf, FakeTensor) for leaf in leaves) and not _has_fakes(before)


def _is_constant(value: object) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor) and not value.requires_grad
