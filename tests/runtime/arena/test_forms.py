"""Operators that write into given memory: the bits of their functional forms, whatever was in the memory and however
tensors lie."""

from __future__ import annotations

import itertools
import re
import sys
import unittest
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from remate_runtime.engine.experimental.arena.forms import MADE_OF, STRUCTURED, form_of
from remate_runtime.operators import OPERATORS

NAMES = sorted([*(f"aten.{name}" for name in STRUCTURED), *MADE_OF])
SAMPLES = {torch.float32: 6, torch.bfloat16: 1, torch.int64: 1}  # of each of torch's examples
AROUND = 256  # elements before and after a result


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


class Beside(TorchDispatchMode):
    """Runs each operator that has a form a second time, into memory full of other things, and so with its arguments
    transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.wrong: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = f"aten.{func._overloadpacket.__name__}" + (
            "" if func._overloadname == "default" else f".{func._overloadname}"
        )
        if name not in NAMES or func.namespace != "aten":
            return func(*args, **kwargs)
        self.compare(name, func, args, kwargs)
        turned = [transposed(a) if isinstance(a, torch.Tensor) else a for a in args]
        if any(a is not b for a, b in zip(args, turned, strict=True)):
            self.compare(name, func, turned, kwargs)
        return func(*args, **kwargs)

    def compare(self, name: str, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        outputs = func(*args, **kwargs)
        outs = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
        if any(
            t.is_conj() or t.is_neg() for t in pytree.tree_leaves((args, kwargs, outs)) if isinstance(t, torch.Tensor)
        ):
            return  # layouts that a schedule has no types for
        form = form_of(name)
        assert form is not None
        given = {key: elsewhere(out) for key, out in zip(form.names, outs, strict=True)}
        around = {key: bits_around(tensor) for key, tensor in given.items()}
        if form.argument_count is None:
            form.call(*args, **kwargs, **given)
        else:
            form.call(*args[: form.argument_count], **given)
        self.seen.add(name)
        for out, into in zip(outs, given.values(), strict=True):
            if out.stride() != into.stride() or not torch.equal(bits(out), bits(into)):
                self.wrong.append(f"{name} of {described(args)}")
        for key, into in given.items():
            if not torch.equal(bits_around(into), around[key]):
                self.wrong.append(f"{name} of {described(args)} wrote beyond its result")


def elsewhere(out: torch.Tensor) -> torch.Tensor:
    """Return memory with the layout of a result and different contents, with guard bytes around it."""
    span = 1 + sum((n - 1) * step for n, step in zip(out.shape, out.stride(), strict=True)) if out.numel() else 0
    room = torch.full(((2 * AROUND + span) * out.itemsize,), 0xFF if out.is_floating_point() else 1, dtype=torch.uint8)
    tensor = torch.empty(0, dtype=out.dtype)
    return tensor.set_(room.untyped_storage(), AROUND, out.shape, out.stride())


def bits_around(tensor: torch.Tensor) -> torch.Tensor:
    everything = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    beside = AROUND * tensor.itemsize
    return torch.cat([everything[:beside], everything[-beside:]])


def described(args: Sequence[Any]) -> list[Any]:
    return [(t.dtype, t.shape, t.stride()) for t in args if isinstance(t, torch.Tensor)]


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements, the last of two axes first in memory."""
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2) if tensor.dim() > 1 else tensor


def examples(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    """Torch's own calls of its operators. Their module asks for a package that it does not use here."""
    if "expecttest" not in sys.modules and find_spec("expecttest") is None:
        unused = ModuleType("expecttest")
        vars(unused)["TestCase"] = unittest.TestCase
        monkeypatch.setitem(sys.modules, "expecttest", unused)
    monkeypatch.setattr(torch.backends, "disable_global_flags", lambda: None)  # other tests of the process set flags
    from torch.testing._internal.common_methods_invocations import op_db

    for module in ("common_utils", "opinfo.core"):  # each example looks for its test in the sources of the whole stack
        monkeypatch.setattr(f"torch.testing._internal.{module}.extract_test_fn", lambda: None, raising=False)
    for info in op_db:
        if dtype in info.dtypes and not info.is_factory_function:
            gradients = info.supports_autograd and dtype.is_floating_point
            try:
                results = list(
                    itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=gradients), SAMPLES[dtype])
                )
            except (RuntimeError, ModuleNotFoundError):  # of libraries that are not here
                continue
            yield from ((info, sample) for sample in results)


def run(info: Any, sample: Any) -> None:
    """Forward and backward of one of torch's examples; those that torch refuses are none."""
    try:
        result = info(sample.input, *sample.args, **sample.kwargs)
        tensors = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
        if tensors:
            torch.autograd.backward(tensors, [torch.ones_like(t) for t in tensors])
    except (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError, AssertionError):
        pass


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_form_gives_the_bits_of_the_operator_and_writes_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    mode = Beside()
    with mode:
        for dtype in SAMPLES:
            for info, sample in examples(dtype, monkeypatch):
                run(info, sample)
    assert mode.wrong == []
    assert set(NAMES) == mode.seen


def test_what_is_listed_has_a_form_and_may_stand_in_a_file() -> None:
    assert [name for name in NAMES if form_of(name) is None] == []
    assert set(NAMES) <= OPERATORS


def test_functional_and_out_forms_share_a_kernel_by_torchs_own_word() -> None:
    torchgen = pytest.importorskip("torchgen")
    path = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native" / "native_functions.yaml"
    functions = re.findall(r"^- func: ([\w.]+)\((.*?)(?=^- func|\Z)", path.read_text(encoding="utf-8"), re.M | re.S)
    structured = {name for name, about in functions if "structured_delegate:" in about}
    assert structured >= STRUCTURED
