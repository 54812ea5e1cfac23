"""Seed calls of listed operators: the calls in torch's own samples, and for other operators calls generated from their
schemas.

If the kernel of an operator trusts its arguments, the seed includes the call that produced them.
"""

from __future__ import annotations

import itertools
import random
import sys
import unittest
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from remate_runtime.flat_step.graph import Ref
from remate_runtime.format.tensor_type import TensorType
from remate_runtime.operator_calls import overload
from remate_runtime.operators import OPERATORS, PAIRED

from .operator_program import Call, Program, Source, check, graph_of, listed, name_of, type_of

PER_OPERATOR = 4
SAMPLES = 6
MAX_ELEMENTS = 4096
_DTYPES = (torch.float32, torch.int64, torch.complex64, torch.bool, torch.bfloat16)
_SHORT = {
    torch.float32: "f32", torch.float64: "f64", torch.int64: "i64", torch.int32: "i32", torch.bool: "bool",
    torch.bfloat16: "bf16", torch.float16: "f16", torch.complex64: "c64", torch.complex128: "c128", torch.uint8: "u8",
    torch.int8: "i8", torch.int16: "i16",
}  # fmt: skip


class NoFileError(Exception):
    """An argument that no file can contain."""


class Recorder(TorchDispatchMode):
    """Records the first calls of every listed operator, by argument types."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds: dict[str, dict[Any, Program]] = {}
        self._made: dict[int, tuple[torch.Tensor, OpOverloadCall, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = name_of(func)
        result = func(*args, **(kwargs or {}))
        if name in OPERATORS and len(self.seeds.setdefault(name, {})) < PER_OPERATOR:
            self._keep(name, args, kwargs or {})
        if any(name in pair.by for pair in PAIRED.values() if pair.outputs):
            listed_results = result if isinstance(result, tuple | list) else [result]
            for at, each in enumerate(listed_results):
                if isinstance(each, torch.Tensor):
                    self._made[id(each)] = (each, (name, args, kwargs or {}), at)
        return result

    def forget(self) -> None:
        self._made.clear()

    def _keep(self, name: str, args: Any, kwargs: Any) -> None:
        sources: dict[int, int] = {}
        types: list[TensorType] = []
        forward: OpOverloadCall | None = None

        def argument(value: Any, inner: bool = False) -> Any:
            nonlocal forward
            if not isinstance(value, torch.Tensor):
                return _literal(value, lambda each: argument(each, inner))
            recorded = self._made.get(id(value))
            if (
                not inner
                and recorded is not None
                and recorded[0] is value
                and name in PAIRED
                and recorded[1][0] in PAIRED[name].by
            ):
                forward = recorded[1]
                return Ref(-1 - recorded[2])
            if value.numel() > MAX_ELEMENTS or value.layout is not torch.strided:
                raise NoFileError
            if id(value) not in sources:
                sources[id(value)] = len(types)
                try:
                    types.append(type_of(value))
                except KeyError:
                    raise NoFileError from None
            return Ref(sources[id(value)])

        try:
            calls = [Call(name, tuple(map(argument, args)), {k: argument(v) for k, v in kwargs.items()})]
            if forward is not None:
                before, given, named = forward
                inner = [argument(each, True) for each in given]
                calls.insert(0, Call(before, tuple(inner), {k: argument(v, True) for k, v in named.items()}))
        except NoFileError:
            return
        key = (tuple(types), repr(calls))
        self.seeds[name].setdefault(key, Program(tuple(map(Source, types)), tuple(calls)))


OpOverloadCall = tuple[str, Any, Any]


def _literal(value: Any, element: Callable[[Any], Any]) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(element, value))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, complex):
        return {"complex": (value.real, value.imag)}
    if isinstance(value, torch.dtype) and value in _SHORT:
        return {"dtype": _SHORT[value]}
    if isinstance(value, torch.device):
        return {"device": "main"}
    if isinstance(value, torch.memory_format):
        return {"memory_format": str(value).removeprefix("torch.")}
    if value is torch.strided:
        return {"layout": "strided"}
    raise NoFileError


def recorded(progress: Callable[[str], None] = lambda _: None) -> dict[str, list[Program]]:
    """The calls that torch's samples of its operators, and some layers, make."""
    recorder = Recorder()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dtype in _DTYPES:
            for info, sample in _samples(dtype):
                recorder.forget()
                try:
                    with recorder:
                        _backward(info.op(sample.input, *sample.args, **sample.kwargs))
                except Exception:  # this build of torch cannot run the sample
                    continue
            progress(f"{len(recorder.seeds)} operators after the samples of {dtype}")
        for layer, given in _layers():
            recorder.forget()
            with recorder:
                try:
                    _backward(layer(*given))
                except NotImplementedError:  # an operator without a kernel on the CPU
                    continue
    return {name: list(kept.values()) for name, kept in recorder.seeds.items() if kept}


def _samples(dtype: torch.dtype) -> Iterator[tuple[Any, Any]]:
    if "expecttest" not in sys.modules and find_spec("expecttest") is None:
        unused = ModuleType("expecttest")  # imported by the samples, and not used
        vars(unused)["TestCase"] = unittest.TestCase
        sys.modules["expecttest"] = unused
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
        if dtype not in info.dtypes:
            continue
        gradients = info.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
        try:
            samples = list(itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=gradients), SAMPLES))
        except Exception:  # samples that need a missing package or device
            continue
        for sample in samples:
            yield info, sample


def _backward(result: Any) -> None:
    leaves = [each for each in pytree.tree_leaves(result) if isinstance(each, torch.Tensor)]
    total = [each.real.sum() if each.is_complex() else each.sum() for each in leaves if each.requires_grad]
    if total:
        torch.stack([each.double() for each in total]).sum().backward()


def _layers() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    nn, x = torch.nn, torch.rand
    yield nn.LSTM(4, 3), (x(5, 2, 4),)
    yield nn.GRU(4, 3), (x(5, 2, 4),)
    yield nn.EmbeddingBag(7, 3), (torch.randint(0, 7, (2, 3)),)
    yield nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), (x(2, 3, 8),)
    yield nn.FractionalMaxPool2d(2, output_size=3), (x(1, 2, 7, 7, requires_grad=True),)
    yield nn.FractionalMaxPool3d(2, output_size=3), (x(1, 2, 7, 7, 7, requires_grad=True),)
    yield nn.Dropout(0.5), (x(4, 4, requires_grad=True),)
    yield nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), (x(2, 4),)
    yield nn.ReflectionPad2d(1), (x(1, 2, 4, 4, requires_grad=True),)
    yield nn.ReflectionPad3d(1), (x(1, 2, 4, 4, 4, requires_grad=True),)
    yield nn.ReplicationPad3d(1), (x(1, 2, 4, 4, 4, requires_grad=True),)
    for mode in ("nearest", "nearest-exact"):
        yield nn.Upsample(scale_factor=2, mode=mode), (x(1, 2, 3, 3, 3, requires_grad=True),)
    for size in ((3, 5), (7, 9)):
        yield partial(F.interpolate, size=size, mode="bicubic", antialias=True), (x(1, 2, 6, 6, requires_grad=True),)
    yield from _direct_calls()


def _direct_calls() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield operators that no sample and no layer calls, with arguments that fit."""
    aten, x, y, ones = torch.ops.aten, torch.rand(4, 6), torch.rand(1, 2, 6, 6), torch.ones(6)
    f8, scale = partial(torch.ones, dtype=torch.float8_e4m3fn), torch.ones(())
    yield partial(aten._scaled_mm, out_dtype=torch.bfloat16), (f8(16, 32), f8(16, 32).t(), scale, scale)
    yield (
        aten._scaled_mm_v2,
        (f8(16, 32), f8(16, 32).t(), [scale], [0], [0], [scale], [0], [0], None, torch.bfloat16),
    )
    yield partial(aten.randint_like.Tensor_generator, generator=None), (x, torch.tensor(5))
    yield aten._int_mm, (torch.ones(17, 8, dtype=torch.int8), torch.ones(8, 8, dtype=torch.int8))
    yield aten.conv_tbc, (torch.rand(5, 2, 3), torch.rand(3, 3, 4), torch.rand(4), 1)
    yield partial(aten.norm.ScalarOpt_dtype, dtype=torch.float32), (x, 2)
    yield partial(aten.norm.ScalarOpt_dim_dtype, dtype=torch.float32), (x, 2, [1], False)
    _, rstd = aten._fused_rms_norm(x, [6], ones, 1e-5)
    yield aten._fused_rms_norm_backward, (x, x, [6], rstd, ones, [True, True])
    resized = torch.ops.aten._upsample_lanczos2d_aa(y, [3, 4], False)
    yield aten._upsample_lanczos2d_aa_backward, (resized, [3, 4], [1, 2, 6, 6], False)
    yield partial(aten._batch_norm_with_update_functional, momentum=0.1, eps=1e-5), (y, *[torch.ones(2)] * 4)


_SHAPES = ((4, 4), (2, 3, 4, 4), (2, 3, 4), (4,), (), (1, 2, 3, 4, 4), (2, 4), (2,), (2, 2, 4, 4))
_KINDS = ("f32", "f32", "f32", "i64", "bool", "c64", "i32", "bf16", "u8")


def invented(name: str, tries: int = 400) -> list[Program]:
    """Calls with random arguments, generated from the operator's schema, that pass all checks."""
    rng = random.Random(name)
    live = overload(name)
    kept: dict[str, Program] = {}
    for attempt in range(tries):
        shape, kind = rng.choice(_SHAPES), rng.choice(_KINDS)
        sources: list[Source] = []
        args = []
        kwargs = {}
        arguments: Any = live._schema.arguments  # torch's stub lacks N
        for argument in arguments:
            if argument.has_default_value() and rng.random() < 0.5 and not argument.kwarg_only:
                args.append(_literal(argument.default_value, lambda v: v) if _spelled(argument.default_value) else None)
            elif not argument.kwarg_only:
                args.append(_invented(str(argument.type), rng, sources, shape, kind, attempt % 2 == 0, argument.N))
            elif not argument.has_default_value():
                kwargs[argument.name] = _invented(str(argument.type), rng, sources, shape, kind, True)
        program = Program(tuple(sources), (Call(name, tuple(args), kwargs),))
        try:
            check(graph_of(program))
        except Exception:
            continue
        kept.setdefault(repr(program), program)
        if len(kept) >= PER_OPERATOR:
            break
    return list(kept.values())


def _spelled(value: Any) -> bool:
    try:
        _literal(value, lambda v: v)
    except NoFileError:
        return False
    return True


def _invented(
    type_: str, rng: random.Random, sources: list[Source], shape: Any, kind: str, alike: bool, length: int | None = None
) -> Any:
    if type_.startswith("Optional["):
        return None if rng.random() < 0.4 else _invented(type_[9:-1], rng, sources, shape, kind, alike, length)
    if type_.startswith("List["):
        count = length or rng.choice((1, 2, 2, 3, 4, 6))
        return tuple(_invented(type_[5:-1], rng, sources, shape, kind, alike) for _ in range(count))
    if type_ == "Tensor":
        other = TensorType(rng.choice(_KINDS), rng.choice(_SHAPES))
        sources.append(Source(TensorType(kind, shape) if alike or rng.random() < 0.5 else other))
        return Ref(len(sources) - 1)
    if type_ in ("int", "SymInt", "number"):
        return rng.choice((0, 1, 1, 2, 2, 3, 4))
    choices: dict[str, tuple[Any, ...]] = {
        "float": (0.5, 1.0, 2.0),
        "bool": (True, False),
        "str": ("none", "mean", "sum", "linear", "tanh", "floor", "add"),
        "ScalarType": ({"dtype": "f32"},),
    }
    return rng.choice(choices.get(type_, (None,)))


def seeds(progress: Callable[[str], None] = lambda _: None) -> dict[str, list[Program]]:
    """For every listed operator, calls that pass all checks; an empty list if there are none."""
    from_samples = recorded(progress)
    return {name: from_samples.get(name) or invented(name) for name in listed()}
