"""Digest and guard compare values of Python's own library and arrays, what classes hold, and what backward alone
reads."""

from __future__ import annotations

import pytest
import torch

from remate_runtime import BindError, Schedule, StaleModelError, apply
from remate_runtime.format import decode, encode
from tests.runtime.stepping import schedule_of, step

from .sources import Sources, sources

__all__ = ["sources"]
X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
TEXT = """
import array
import collections
import contextvars
import datetime
import decimal
import enum
import fractions
import functools
import operator
import threading

import numpy as np
import torch
from torch import nn

HALF, PART, SPAN = decimal.Decimal("0.5"), fractions.Fraction(1, 4), datetime.timedelta(seconds=2)
NUMBERS, BYTES, LIST = array.array("d", [1.5]), bytearray(b"a"), collections.UserList([1.5])
MASKED, OBJECTS, LARGE = np.ma.masked_array([0.5, 1.5]), np.array([None, [1.5]], dtype=object), np.ones(300_000)
VIEW, CHOSEN, LOCAL = memoryview(bytearray(b"a")), contextvars.ContextVar("CHOSEN", default=1.5), threading.local()
LOCAL.k = 1.5
BACKWARD = 1.5


class Kind(enum.Enum):
    PLAIN = 1
    TABLE = {"k": 1.5}


Kind.PLAIN.gain = 1.5


class Gain:
    def __init__(self):
        self.gain = 1.5


HOOKED = Gain()


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * BACKWARD


def hook(grad):
    return grad * HOOKED.gain


def kept():
    return float(kept.array[0])


kept.array = np.array([1.5, 2.5])


class Net(nn.Module):
    times = functools.partial(operator.mul, 1.5)
    apart = staticmethod(lambda k=1.5: k)

    def __init__(self):
        super().__init__()
        self.lin, self.lam, self.kind = nn.Linear(4, 4), 1.5, Kind.PLAIN

    def forward(self, x):
        y = self.lin(x) * self.kind.gain * Kind.TABLE.value["k"]
        z = (y * float(HALF)).sin() + (y * float(PART)).sin() + (y * SPAN.total_seconds()).sin()
        z = z + (y * NUMBERS[0]).sin() + (y * (BYTES[0] / 64)).sin() + (y * LIST[0]).sin() + (y * float(MASKED.sum())).sin()
        z = z + (y * OBJECTS[1][0]).sin() + (y * float(LARGE[7])).sin() + (y * (VIEW[0] / 64)).sin()
        z = z + (y * CHOSEN.get()).sin() + (y * LOCAL.k).sin() + (y * self.times(1.0)).sin() + (y * type(self).apart()).sin()
        w = Scaled.apply(y)
        w.register_hook(hook)
        w.register_hook(lambda grad: grad * self.lam)
        return (z + w * kept()).mean()


def build():
    torch.manual_seed(0)
    return Net()
"""
CHANGES: dict[str, str] = {
    "Decimal": "m.HALF = m.decimal.Decimal(2)",
    "Fraction": "m.PART = m.fractions.Fraction(3, 4)",
    "timedelta": "m.SPAN = m.datetime.timedelta(seconds=3)",
    "array.array": "m.NUMBERS[0] = 2.5",
    "bytearray": "m.BYTES[0] = 3",
    "UserList": "m.LIST[0] = 2.5",
    "masked array": "m.MASKED.mask = [True, False]",
    "array of objects": "m.OBJECTS[1][0] = 2.5",
    "large array": "m.LARGE[7] = 2.5",
    "memory view": "m.VIEW[0] = 3",
    "context variable": "m.CHOSEN.set(2.5)",
    "thread local": "m.LOCAL.k = 2.5",
    "attribute of a member of an enumeration": "n.kind.gain = 2.5",
    "value of a member of an enumeration": "m.Kind.TABLE.value['k'] = 2.5",
    "partial of a class": "m.Net.times = m.functools.partial(m.operator.mul, 2.5)",
    "default of a function of type(self)": "m.Net.apart.__defaults__ = (2.5,)",
    "array of a function": "m.kept.array[0] = 2.5",
    "global that backward reads": "m.BACKWARD = 2.5",
    "object that a tensor's hook reads": "m.HOOKED.gain = 2.5",
    "attribute of a module that a tensor's hook reads": "n.lam = 2.5",
    "code of a Function's backward": "m.Scaled.backward = staticmethod(lambda ctx, grad: grad * 3)",
}


@pytest.fixture(scope="module")
def schedule(sources: Sources) -> Schedule:
    return decode(encode(schedule_of(sources.load(TEXT).build(), (X,))))


def test_the_same_values_in_another_process_are_accepted(sources: Sources, schedule: Schedule) -> None:
    planned = apply(sources.load(TEXT).build(), schedule, verify="never")
    for _ in range(2):
        step(planned, (X,))


@pytest.mark.quick("Decimal-early", "context variable-early", "global that backward reads-early")
@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_refused(sources: Sources, schedule: Schedule, change: str, late: bool) -> None:
    module = sources.load(TEXT)
    model = module.build()
    planned = apply(model, schedule, verify="never") if late else None
    if planned is not None:
        step(planned, (X,))
    exec(change, {"m": module, "n": model})
    with pytest.raises(BindError):
        step(planned or apply(model, schedule, verify="never"), (X,))


QUESTIONS = {
    "torch.get_num_threads() == 1": "torch.set_num_threads({})",
    "torch.are_deterministic_algorithms_enabled()": "torch.use_deterministic_algorithms({} == 2)",
    "torch.get_float32_matmul_precision() == "
    "'highest'": "torch.set_float32_matmul_precision(['highest', 'high'][{} - 1])",
    "torch.backends.cudnn.benchmark": "torch.backends.cudnn.benchmark = {} == 2",
    "torch.backends.cuda.flash_sdp_enabled()": "torch.backends.cuda.enable_flash_sdp({} == 1)",
}
ASKING = (
    "import torch\nfrom torch import nn\n\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
)
ASKING += "        self.lin = nn.Linear(4, 4)\n\n    def forward(self, x):\n        y = self.lin(x)\n"
ASKING += "        return (y * (1.5 if {} else 0.5)).mean()\n"


@pytest.mark.quick("torch.get_num_threads() == 1")
@pytest.mark.parametrize("question", QUESTIONS)
def test_an_answer_of_the_process_that_changes_later_is_refused(sources: Sources, question: str) -> None:
    """At the first call another answer than when planned is the self-check's matter: it may not change the step."""
    threads = torch.get_num_threads()
    model = sources.load(ASKING.format(question)).Net()
    exec(QUESTIONS[question].format(1))
    planned = apply(model, schedule_of(model, (X,)))
    try:
        planned(X)
        exec(QUESTIONS[question].format(2))
        with pytest.raises(StaleModelError, match="settings of the process"):
            planned(X)
        exec(QUESTIONS[question].format(1))
        planned(X)
    finally:
        exec(QUESTIONS[question].format(1))
        torch.set_num_threads(threads)


CACHING = """
import torch
from torch import nn

TABLES = {}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        if 4 not in TABLES:
            TABLES[4] = torch.arange(4.0)
        return (self.lin(x) * TABLES[4]).mean()
"""


def test_a_global_that_the_first_call_fills_may_be_empty_or_filled(sources: Sources) -> None:
    schedule = decode(encode(schedule_of(sources.load(CACHING).Net(), (X,))))
    module = sources.load(CACHING)
    model = module.Net()
    planned = apply(model, schedule, verify="never")
    planned(X)
    model(X)
    planned(X)
    module.TABLES[4] = torch.arange(4.0) + 1
    with pytest.raises(StaleModelError, match="TABLES"):
        planned(X)
