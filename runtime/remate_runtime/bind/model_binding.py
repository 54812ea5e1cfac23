"""Matches the live model with the signature of a schedule: parameters, buffers, ties, frozen parameters, training
flags.

`apply` compares everything, and one error reports all mismatches. Each call then only checks whether the live tensors
are still the compared ones, and compares the new ones.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from ..errors import REPLAN, BindError
from ..format.schedule import Model
from ..format.tensor_type import TensorType, parse_type
from ..operator_calls.overloads import (
    TORCH_DTYPES,
    address,
    described,
    is_dense,
    laid_out,
    storage_address,
)
from ..support.plain_text import plain
from .distributed import DistributedBinding, local_tensor
from .fsdp2 import Fsdp2
from .inputs import replaces_functions
from .modules import modules_by_path
from .sharding import is_distributed
from .surroundings import check_device

_SHOWN = 20  # mismatches in a message


_NEVER = object()  # no tensor has been compared yet
_REGISTERED = ("_parameters", "_buffers", "_modules")
_attributes, _registered = operator.attrgetter("__dict__"), operator.itemgetter(*_REGISTERED)


class TensorBinding:
    """The location of a parameter or buffer in the model, and the last tensor there that matched."""

    __slots__ = (
        "attributes",
        "class_",
        "distributed",
        "dtype",
        "frozen",
        "gathered",
        "holder",
        "key",
        "kind",
        "name",
        "pointer",
        "storage",
        "tensor",
        "type",
    )

    def __init__(
        self, module: nn.Module, key: str, name: str, type_: TensorType, frozen: bool, parameter: bool
    ) -> None:
        self.attributes: dict[str, Any] = module.__dict__  # FSDP stores views of a flat parameter here
        registered = self.attributes["_parameters" if parameter else "_buffers"]
        self.holder: dict[str, Any] = registered if key in registered else self.attributes
        self.kind = "parameter" if parameter else "buffer"
        self.key, self.name, self.type, self.frozen = key, name, type_, frozen
        self.dtype = TORCH_DTYPES[type_.dtype]
        self.tensor: Any = _NEVER
        self.class_: type = torch.Tensor  # of that tensor
        self.pointer = -1
        self.storage = 0  # `storage_address` of that tensor
        self.distributed: DistributedBinding | None = None  # set for a DTensor
        self.gathered: torch.Tensor | None = None  # the gathered tensor of a parameter that FSDP2 shards

    def get(self) -> Any:
        if self.gathered is not None:
            return self.gathered
        tensor = self.holder.get(self.key)
        return self.attributes.get(self.key) if tensor is None else tensor


class ModelBinding:
    """A model matched with a schedule's signature. Raises BindError with every mismatch.

    Attributes:
        tensors: Tensors of the planned parameters, then of the buffers.
        slots: Their locations.
        changes: How often a tensor differed from the previous one.
    """

    def __init__(self, model: nn.Module, planned: Model) -> None:
        self.model, self.planned = model, planned
        faults: list[str] = []
        modules = modules_by_path(model)
        frozen = set(planned.frozen)
        self.slots = _slots(modules, planned.parameters, frozen, True, faults)
        self.slots += _slots(modules, planned.buffers, frozen, False, faults)
        self.distributed = DistributedBinding(planned)
        for slot in self.slots:
            slot.distributed = self.distributed if slot.name in self.distributed.named else None
        self.changes = 0
        self._tied = [(_entry(modules, a, faults), _entry(modules, b, faults)) for a, b in planned.tied.items()]
        self._others(faults)
        mode_overrides = set(planned.mode_overrides)
        faults += [f"module {name!r}: not in the model" for name in sorted(mode_overrides - modules.keys())]
        self._children = _children(modules, planned.training, mode_overrides)
        self._counts = [(below := vars(m)["_modules"], len(below), name) for name, m in modules.items()]
        self._modules = modules
        self._attributes = list(map(_attributes, modules.values()))  # slots and `_children` refer to them
        self._registered = list(map(_registered, self._attributes))
        self._known = self._known_modules()
        check_device(planned, self.device())
        faults += self._collect(self.device(), applied=True)[1]
        _raise(faults, model, planned)
        self.distributed.check()

    def gather(self, sharded: Fsdp2 | None) -> None:
        """Use the gathered parameters of these parts from now on; None uses the model's own."""
        for slot in (*self.slots, *(slot for pair in self._tied for slot in pair)):
            slot.gathered = None if sharded is None else sharded.whole(slot.name)

    def device(self) -> torch.device:
        """Return the model's device: that of its first parameter or buffer that follows the model."""
        for slot in self.slots:
            tensor = slot.get()
            if isinstance(tensor, torch.Tensor) and not slot.type.cpu:
                return tensor.device
        return (
            torch.device("cuda", torch.cuda.current_device()) if self.planned.device == "cuda" else torch.device("cpu")
        )

    def tensors(self, device: torch.device) -> list[torch.Tensor]:
        """Return live parameters, then buffers, in the planned order.

        Raises:
            BindError: A tensor does not match.
        """
        tensors, faults = self._collect(device)
        _raise(faults, self.model, self.planned)
        return tensors

    def has(self, names: Collection[str]) -> bool:
        """Return whether the named tensors have the planned shapes. Calls without the schedule may replace them."""
        slots = (slot for slot in self.slots if slot.name in names)
        tensors = ((slot, local_tensor(slot.get())) for slot in slots)
        return all(isinstance(t, torch.Tensor) and t.shape == slot.type.shape for slot, t in tensors)

    def _collect(self, device: torch.device, applied: bool = False) -> tuple[list[Any], list[str]]:
        """Return the live tensors and all mismatches.

        Args:
            device: The model's device.
            applied: Whether this is `apply` and not a call. Parameters may then have another precision, because FSDP
                casts them at each call.
        """
        tensors: list[Any] = []
        faults: list[str] = []
        for slot in self.slots:
            tensor: Any = slot.get()
            if (
                tensor is not slot.tensor
                or type(tensor) is not slot.class_
                or tensor.dtype is not slot.dtype
                or address(tensor if slot.distributed is None else local_tensor(tensor)) != slot.pointer
            ):
                _compare(slot, tensor, device, faults, applied)
                self.changes += 1
            if slot.frozen and isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                faults.append(f"{slot.kind} {slot.name!r}: frozen when planned, now it requires grad")
            tensors.append(tensor)
        for other, name in self._tied:
            if other.get() is not name.get():
                faults.append(
                    f"{other.kind} {other.name!r}: the same tensor as {name.name!r} when planned, now another tensor"
                )
        return tensors, faults

    def check_modules(self) -> None:
        """Raise BindError if a submodule was replaced or added, or its training flag is not the recorded one.

        Also if a module has another dict of attributes, parameters, buffers or submodules than at `apply`.
        """
        if not self._same_modules():
            self._report_dicts()
            self._report_modules()

    def _same_modules(self) -> bool:
        try:  # a loop over names of items: in CPython several times faster than `map` over functions of `operator`
            for module, attributes, parameters, buffers, children, count, siblings, key, flag in self._known:
                if (
                    module.__dict__ is not attributes
                    or attributes["_parameters"] is not parameters
                    or attributes["_buffers"] is not buffers
                    or attributes["_modules"] is not children
                    or len(children) != count
                    or siblings[key] is not module
                    or module.training is not flag
                ):
                    return False
        except KeyError:
            return False
        return True

    def _known_modules(self) -> list[tuple[Any, ...]]:
        """Return what `_same_modules` compares, for each module."""
        root = ({"": self.model}, "", self.model, self.planned.training, "")
        places = {name: (siblings, key, flag) for siblings, key, _, flag, name in (root, *self._children)}
        counts = (count for _, count, _ in self._counts)
        return [
            (module, attributes, *dicts, count, *places[name])
            for (name, module), attributes, dicts, count in zip(
                self._modules.items(), self._attributes, self._registered, counts, strict=True
            )
        ]

    def _report_modules(self) -> None:
        faults: list[str] = []
        for siblings, key, module, flag, name in self._children:
            if siblings.get(key) is not module:
                faults.append(f"module {name!r}: replaced after the schedule was applied; apply it again")
            elif module.training is not flag:
                modes = ("train()", "eval()") if flag else ("eval()", "train()")
                faults.append(f"module {name!r}: in {modes[0]} mode when planned, now in {modes[1]}")
        for siblings, count, name in self._counts:
            new = [child for child in list(siblings.values())[count:] if child is not None]
            if any(parameter.requires_grad for child in new for parameter in child.parameters()):
                what = f"module {name!r}" if name else "the model"
                faults.append(
                    f"{what}: has {len(siblings)} submodules, had {count} when the schedule was applied; apply it again"
                )
        _raise(faults, self.model, self.planned)
        self._counts = [(siblings, len(siblings), name) for siblings, _, name in self._counts]
        self._known = self._known_modules()

    def _report_dicts(self) -> None:
        faults: list[str] = []
        known = zip(self._modules.items(), self._attributes, self._registered, strict=True)
        for (name, module), attributes, registered in known:
            now = {"__dict__": _attributes(module), **dict(zip(_REGISTERED, _registered(vars(module)), strict=True))}
            before = zip(now.items(), (attributes, *registered), strict=True)
            other = [key for (key, held), was in before if held is not was]
            if other:
                what = f"module {name!r}" if name else "the model"
                faults.append(f"{what}: has another {other[0]} than when the schedule was applied; apply it again")
        _raise(faults, self.model, self.planned)

    def _others(self, faults: list[str]) -> None:
        """Report parameters that the schedule does not contain, because they would get no gradient."""
        known = {id(slot.get()) for slot in self.slots}
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad and id(parameter) not in known and name not in self.planned.parameters:
                faults.append(f"parameter {name!r}: not in the schedule, it would get no gradient")


def _slots(
    modules: dict[str, nn.Module], planned: dict[str, str], frozen: set[str], parameter: bool, faults: list[str]
) -> list[TensorBinding]:
    kind = "parameter" if parameter else "buffer"
    slots: list[TensorBinding] = []
    for name, text in planned.items():
        path, _, key = name.rpartition(".")
        module = modules.get(path)
        if module is None or not isinstance(getattr(module, key, None), torch.Tensor):
            faults.append(f"{kind} {name!r}: not in the model")
            continue
        slots.append(TensorBinding(module, key, name, parse_type(text), not parameter or name in frozen, parameter))
    return slots


def _entry(modules: dict[str, nn.Module], name: str, faults: list[str]) -> TensorBinding:
    path, _, key = name.rpartition(".")
    module = modules.get(path)
    if module is None or not isinstance(getattr(module, key, None), torch.Tensor):
        faults.append(f"parameter or buffer {name!r}: not in the model")
        module = nn.Module()
    return TensorBinding(module, key, name, TensorType("f32", ()), False, key in vars(module)["_parameters"])


def _children(
    modules: dict[str, nn.Module], training: bool, mode_overrides: set[str]
) -> list[tuple[dict[str, Any], str, nn.Module, bool, str]]:
    """Return for each submodule: the dict that contains it, its key, the module, its training flag, its path."""
    overridden = {id(modules[name]) for name in mode_overrides & modules.keys()}
    submodules: list[tuple[dict[str, Any], str, nn.Module, bool, str]] = []
    for name, module in modules.items():
        if name:
            path, _, key = name.rpartition(".")
            flag = training != (id(module) in overridden)
            submodules.append((vars(modules[path])["_modules"], key, module, flag, name))
    return submodules


def _compare(slot: TensorBinding, tensor: object, device: torch.device, faults: list[str], any_float: bool) -> None:
    """Compare a new tensor, and remember it if it matches.

    Args:
        slot: The location.
        tensor: The tensor.
        device: The model's device.
        faults: Mismatches are appended here.
        any_float: Whether a parameter may have another precision. Such a parameter is not remembered.
    """
    want = torch.device("cpu") if slot.type.cpu else device
    if not isinstance(tensor, torch.Tensor):
        faults.append(f"{slot.kind} {slot.name!r}: planned {slot.type}, the model has {_instead(slot, tensor)}")
    elif slot.distributed is not None:
        _compare_distributed(slot, tensor, want, faults, any_float)
    elif is_distributed(tensor):
        faults.append(f"{slot.kind} {slot.name!r}: planned {slot.type}, the model has a DTensor")
    elif not is_dense(tensor):
        faults.append(f"{slot.kind} {slot.name!r}: planned {slot.type}, the model has {described(tensor)}")
    elif tensor.device != want:
        faults.append(f"{slot.kind} {slot.name!r}: must be on {want}, is {described(tensor)}")
    elif (
        any_float
        and slot.kind == "parameter"
        and tensor.shape == slot.type.shape
        and _is_cast(tensor.dtype, slot.dtype)
    ):
        pass
    elif tensor.shape != slot.type.shape or tensor.dtype is not slot.dtype or not laid_out(tensor, slot.type):
        faults.append(f"{slot.kind} {slot.name!r}: planned {slot.type}, the model has {described(tensor)}")
    elif not any_float and type(tensor) is not slot.class_ and replaces_functions(type(tensor)):
        faults.append(
            f"{slot.kind} {slot.name!r}: is a {type(tensor).__qualname__} now, whose __torch_function__ may replace "
            f"functions of torch; it was a {slot.class_.__qualname__} when the schedule was applied"
        )
    else:
        slot.tensor, slot.class_, slot.pointer = tensor, type(tensor), address(tensor)
        slot.storage = storage_address(tensor)


def _compare_distributed(
    slot: TensorBinding, tensor: torch.Tensor, device: torch.device, faults: list[str], any_float: bool
) -> None:
    """Compare a new DTensor as `_compare` does: its distribution and its local tensor."""
    assert slot.distributed is not None
    if not is_distributed(tensor):
        faults.append(
            f"{slot.kind} {slot.name!r}: planned as a DTensor, the model has {described(tensor)}; call "
            "parallelize_module before apply"
        )
        return
    local = local_tensor(tensor)
    cast = any_float and slot.kind == "parameter" and _is_cast(local.dtype, slot.dtype)
    if fault := slot.distributed.fault(slot.name, tensor):
        faults.append(f"{slot.kind} {slot.name!r}: {fault}")
    elif local.device != device:
        faults.append(f"{slot.kind} {slot.name!r}: must be on {device}, is {described(local)}")
    elif (
        local.shape != slot.type.shape or (local.dtype is not slot.dtype and not cast) or not laid_out(local, slot.type)
    ):
        faults.append(f"{slot.kind} {slot.name!r}: planned {slot.type} on this rank, the model has {described(local)}")
    elif not cast:
        slot.tensor, slot.class_, slot.pointer = tensor, type(tensor), address(local)
        slot.storage = storage_address(local)


def _instead(slot: TensorBinding, value: object) -> str:
    """Describe the model's value where a tensor was planned."""
    if "parametrizations" in slot.attributes.get("_modules", {}):
        return (
            "a tensor that a parametrization computes: plan the model as it is now, "
            "or apply the schedule before it is parametrized"
        )
    return (
        "None"
        if value is None
        else f"{value!r}"[:80]
        if isinstance(value, bool | int | float)
        else f"a {type(value).__name__}"
    )


def _is_cast(dtype: torch.dtype, planned: torch.dtype) -> bool:
    return dtype is torch.float32 and planned in (torch.bfloat16, torch.float16)


def _raise(faults: list[str], model: nn.Module, planned: Model) -> None:
    if not faults:
        return
    shown = faults[:_SHOWN] + ([f"… and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else [])
    hint = f"{REPLAN}, or restore the planned state"
    if all(name.startswith("module.") for name, _ in model.named_parameters()):
        hint = "apply the schedule first, then wrap the result (DistributedDataParallel and the like)"
    raise BindError(
        f"{type(model).__name__} is not what the schedule was planned for ({plain(planned.name)}):\n  - "
        + "\n  - ".join(shown)
        + f"\n  {hint}"
    )
