"""Memory that training needs on its device beside the step: from the memory of a device to a budget, and back."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from remate_runtime import operators
from remate_runtime.format import Gradients, Model, TensorType, did_you_mean, input_leaves, parse_type

from ..errors import UnknownNameError
from .optimizer_state import Factory, factory_named, optimizer_bytes

OptimizerState = str | int | Factory  # a name, bytes, or a function from parameters to an optimizer
MIB = 1 << 20
CONTEXT = (
    768 * MIB
)  # of a CUDA process: context, kernels and workspaces of cuBLAS and cuDNN. An estimate, on the safe side.
# Copies of each trainable parameter that the state of an optimizer of torch.optim holds, in the parameter's dtype.
OPTIMIZERS = {
    "sgd": 0,
    "sgd-momentum": 1,
    "adagrad": 1,
    "rmsprop": 1,
    "muon": 1,
    "adam": 2,
    "adamw": 2,
    "adamax": 2,
    "nadam": 2,
    "radam": 2,
    "adam-amsgrad": 3,
    "adamw-amsgrad": 3,
}


class Resident(msgspec.Struct, frozen=True):
    """Bytes that stay on the device during training: name, size and a remark."""

    what: str
    nbytes: int
    remark: str = ""


def residents(
    model: Model,
    optimizer: OptimizerState,
    context: int | None = None,
    gradients: Gradients = "retained",
    reserve: int = 0,
) -> tuple[Resident, ...]:
    """What stays on the device while `model` trains. Gradients are in the peak of its step, and not here, unless they
    are accumulated: then they are there before and after it.

    optimizer: one of OPTIMIZERS, the path of a class, what makes one of parameters, or bytes. context: bytes of the
    CUDA context, by default CONTEXT for a model on CUDA, and none for one on the CPU. gradients: what becomes of them
    when they are delivered. reserve: bytes to keep free, for what nothing here knows of (an average of the
    parameters). Raises UnknownNameError.
    """
    sharded, model = model.sharded, of_a_rank(model)
    state, remark = _state(model, optimizer)
    about = "" if sharded is None else f"a shard of {sharded.shards}"
    held = [
        Resident("parameters", _bytes(model, model.parameters.values()), about),
        Resident("buffers", _bytes(model, model.buffers.values())),
        Resident("inputs", _bytes(model, (leaf.text for leaf in input_leaves(model.inputs)))),
        Resident("optimizer state", state, remark),
    ]
    if gradients == "accumulated":
        held.append(Resident("gradients", grad_bytes(model), "accumulated in .grad"))
    if model.device != "cpu" or context is not None:
        size, remark = (CONTEXT, "an estimate, --cuda-context changes it") if context is None else (context, "")
        held.append(Resident("CUDA context", size, remark))
    if reserve:
        held.append(Resident("reserve", reserve, "kept free"))
    return tuple(held)


def of_a_rank(model: Model) -> Model:
    """Return the model section with the parameters as the first rank has them between steps: FSDP2 divides each along
    its first axis, in equal parts."""
    if model.sharded is None:
        return model
    parameters = {name: _shard(parse_type(text), model.sharded.shards) for name, text in model.parameters.items()}
    return replace(model, parameters=parameters, sharded=None)


def _shard(whole: TensorType, shards: int) -> str:
    return str(replace(whole, shape=(-(-whole.shape[0] // shards), *whole.shape[1:]), strides=None))


def parameter_bytes_of(model: Model) -> int:
    """Bytes of the device that all parameters take."""
    return _bytes(model, model.parameters.values())


def _state(model: Model, optimizer: OptimizerState) -> tuple[int, str]:
    """Bytes of an optimizer's state, and a remark."""
    check_known(optimizer)
    if isinstance(optimizer, int):
        return optimizer, "as stated"
    if not isinstance(optimizer, str) or optimizer not in OPTIMIZERS:
        factory = factory_named(optimizer) if isinstance(optimizer, str) else optimizer
        name = optimizer if isinstance(optimizer, str) else getattr(factory, "__qualname__", type(factory).__qualname__)
        return optimizer_bytes(model, factory), f"{name}: measured in one step"
    copies, frozen = OPTIMIZERS[optimizer], set(model.frozen)
    state = [text for name, text in model.parameters.items() if name not in frozen for _ in range(copies)]
    multiples = ("nothing", "once the trainable parameters", "twice the trainable parameters")
    times = multiples[copies] if copies < 3 else f"{copies} times the trainable parameters"
    return _bytes(model, state), f"{optimizer}: {times}"


def grad_bytes(model: Model) -> int:
    """Bytes of the device that `.grad` of all trainable parameters takes."""
    model = of_a_rank(model)
    frozen = set(model.frozen)
    return _bytes(model, (text for name, text in model.parameters.items() if name not in frozen))


def check_known(optimizer: OptimizerState) -> None:
    """Raise UnknownNameError for a text that neither is in OPTIMIZERS nor names a class."""
    if isinstance(optimizer, str) and "." in optimizer:
        factory_named(optimizer)
    elif isinstance(optimizer, str) and optimizer not in OPTIMIZERS:
        others = "the path of its class (torch.optim.Adafactor), or its bytes (optimizer_bytes)"
        hint = did_you_mean(optimizer, OPTIMIZERS, f"one of {', '.join(OPTIMIZERS)}, {others}")
        raise UnknownNameError(f"the state of the optimizer {optimizer[:80]!r} is not known\n  hint: {hint}")


def _bytes(model: Model, texts: Iterable[str]) -> int:
    """Of tensors of these types on the device, as its allocator rounds them."""
    unit = operators.DEVICES[model.device].allocation
    types = [parse_type(text) for text in texts]
    return sum(-(-t.nbytes // unit) * unit for t in types if not (t.cpu and model.device != "cpu"))
