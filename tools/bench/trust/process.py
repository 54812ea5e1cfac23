"""Models that ask the process something, count, keep what they make, or ask which of their inputs are one: as text."""

from __future__ import annotations

from typing import NamedTuple


class Question(NamedTuple):
    """A model that reads something beyond its attributes and globals.

    Attributes:
        forward: Lines of forward; `y` is what it has, `z` becomes the result, `self.calls` nothing.
        change: Python that changes the answer, of the model `n` and its module `m`.
        undo: Python that changes it back.
        above: Lines of the file.
        init: Lines of `__init__`.
    """

    forward: str
    change: str
    undo: str = ""
    above: str = ""
    init: str = ""


_HEAD = """
import gc
import itertools
import logging
import os
import sys
import tempfile
import time
import warnings

import torch
import torch.distributed as dist
from torch import nn

"""
_NET = """

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
{init}

    def forward(self, x, *rest):
        y = self.lin(x)
{forward}
        return z.mean()


def build():
    torch.manual_seed(0)
    return Net()
"""


def source_of(question: Question) -> str:
    """The file of the model."""
    lines = ["\n".join(" " * 8 + line for line in text.splitlines()) for text in (question.init, question.forward)]
    return f"{_HEAD}\n{question.above}\n{_NET.format(init=lines[0], forward=lines[1])}"


def _asked(answer: str, change: str, undo: str, above: str = "") -> Question:
    return Question(f"z = (y * (1.5 if {answer} else 0.5)).sin()", change, undo, above)


_GROUP = "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)"
PROCESS: dict[str, Question] = {
    "default dtype": _asked(
        "torch.get_default_dtype() is torch.float32",
        "torch.set_default_dtype(torch.float64)",
        "torch.set_default_dtype(torch.float32)",
    ),
    "number of threads": _asked("torch.get_num_threads() == 1", "torch.set_num_threads(2)", "torch.set_num_threads(1)"),
    "deterministic algorithms": _asked(
        "torch.are_deterministic_algorithms_enabled()",
        "torch.use_deterministic_algorithms(True)",
        "torch.use_deterministic_algorithms(False)",
    ),
    "precision of products": _asked(
        "torch.get_float32_matmul_precision() == 'highest'",
        "torch.set_float32_matmul_precision('high')",
        "torch.set_float32_matmul_precision('highest')",
    ),
    "cuDNN's benchmark": _asked(
        "torch.backends.cudnn.benchmark",
        "torch.backends.cudnn.benchmark = True",
        "torch.backends.cudnn.benchmark = False",
    ),
    "kernels of attention": _asked(
        "torch.backends.cuda.flash_sdp_enabled()",
        "torch.backends.cuda.enable_flash_sdp(False)",
        "torch.backends.cuda.enable_flash_sdp(True)",
    ),
    "oneDNN": _asked(
        "torch.backends.mkldnn.enabled",
        "torch.backends.mkldnn.set_flags(False)",
        "torch.backends.mkldnn.set_flags(True)",
    ),
    "anomaly detection": _asked(
        "torch.is_anomaly_enabled()",
        "torch.autograd.set_detect_anomaly(True)",
        "torch.autograd.set_detect_anomaly(False)",
    ),
    "process group": _asked("dist.is_initialized()", _GROUP, "dist.destroy_process_group()"),
    "default device": _asked(
        "torch.get_default_device().type == 'cpu'", "torch.set_default_device('meta')", "torch.set_default_device(None)"
    ),
    "level of logging": _asked(
        "logging.getLogger('net').isEnabledFor(10)",
        "logging.getLogger('net').setLevel(10)",
        "logging.getLogger('net').setLevel(30)",
    ),
    "limit of recursion": _asked(
        "sys.getrecursionlimit() > 4000", "sys.setrecursionlimit(5000)", "sys.setrecursionlimit(1000)"
    ),
    "environment": _asked("'TRUST' in os.environ", "os.environ['TRUST'] = '1'", "os.environ.pop('TRUST', None)"),
    "os.getenv": _asked("os.getenv('TRUST')", "os.environ['TRUST'] = '1'", "os.environ.pop('TRUST', None)"),
    "file": _asked(
        "open(FILE).read() == 'a'",
        "open(m.FILE, 'w').write('b')",
        "",
        "FILE = os.path.join(tempfile.gettempdir(), 'file_of_trust')\nopen(FILE, 'w').write('a')",
    ),
    "whether a file is there": _asked(
        "os.path.exists(FILE)",
        "open(m.FILE, 'w').write('b')",
        "os.remove(m.FILE)",
        "FILE = os.path.join(tempfile.gettempdir(), 'none_of_trust')",
    ),
    "modules that are loaded": _asked(
        "'trust_loaded' in sys.modules", "sys.modules['trust_loaded'] = m", "sys.modules.pop('trust_loaded', None)"
    ),
    "filters of warnings": _asked(
        "len(warnings.filters) > 90",
        "[warnings.filterwarnings('ignore', str(i)) for i in range(99)]",
        "warnings.filters[:99] = []",
    ),
}
_STEPS = "z = (y * (1.5 if {count} < 5 else 0.5)).sin()"
COUNTERS: dict[str, Question] = {
    "global": Question("global COUNT\nCOUNT += 1\n" + _STEPS.format(count="COUNT"), "m.COUNT = 9", "", "COUNT = 0"),
    "attribute": Question(
        "self.count += 1\n" + _STEPS.format(count="self.count"), "n.count = 9", "", "", "self.count = 0"
    ),
    "object": Question(
        "STATE.count += 1\n" + _STEPS.format(count="STATE.count"),
        "m.STATE.count = 9",
        "",
        "class State:\n    count = 0\n\n\nSTATE = State()",
    ),
    "list": Question("SEEN.append(1)\n" + _STEPS.format(count="len(SEEN)"), "m.SEEN.extend([1] * 9)", "", "SEEN = []"),
    "dict": Question(
        "STATE['n'] += 1\n" + _STEPS.format(count="STATE['n']"), "m.STATE['n'] = 9", "", "STATE = {'n': 0}"
    ),
    "class attribute": Question(
        "type(self).count = getattr(type(self), 'count', 0) + 1\n" + _STEPS.format(count="type(self).count"),
        "m.Net.count = 9",
    ),
    "itertools.count": Question(
        _STEPS.format(count="next(COUNT)"), "[next(m.COUNT) for i in range(9)]", "", "COUNT = itertools.count()"
    ),
    "itertools.cycle": Question(
        _STEPS.format(count="next(COUNT)"),
        "[next(m.COUNT) for i in range(9)]",
        "",
        "COUNT = itertools.cycle([1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 9])",
    ),
    "list that is emptied": Question(
        _STEPS.format(count="(LEFT.pop() if LEFT else 9)"), "m.LEFT.clear()", "", "LEFT = [1] * 40"
    ),
    "generator": Question(
        _STEPS.format(count="next(COUNT)"),
        "[next(m.COUNT) for i in range(9)]",
        "",
        "COUNT = (each for each in range(100))",
    ),
    "clock": Question(_STEPS.format(count="time.monotonic() - START"), "m.START -= 99", "", "START = time.monotonic()"),
    "nonlocal": Question(
        _STEPS.format(count="step()"),
        "[m.step() for i in range(9)]",
        "",
        "def make():\n    count = 0\n\n    def step():\n        nonlocal count\n        count += 1\n        return "
        "count\n\n    return step\n\n\nstep = make()",
    ),
    "attribute of the function": Question(
        "step.count += 1\n" + _STEPS.format(count="step.count"),
        "m.step.count = 9",
        "",
        "def step():\n    pass\n\n\nstep.count = 0",
    ),
    "buffer": Question(
        "self.count += 1\nz = (y * torch.where(self.count < 5, 1.5, 0.5)).sin()",
        "n.count.fill_(9)",
        "",
        "",
        "self.register_buffer('count', torch.zeros(()))",
    ),
}
KEPT: dict[str, Question] = {
    "mask made once": Question(
        "if self.mask is None:\n    self.mask = torch.full((2, 4), 1.5)\nz = (y * self.mask).sin()",
        "n.mask = torch.full((2, 4), 2.5)",
        "",
        "",
        "self.mask = None",
    ),
    "mask, written": Question(
        "if self.mask is None:\n    self.mask = torch.full((2, 4), 1.5)\nz = (y * self.mask).sin()",
        "n.mask = torch.full((2, 4), 1.5); n.mask.mul_(2)",
        "",
        "",
        "self.mask = None",
    ),
    "table by hasattr": Question(
        "if not hasattr(self, 'table'):\n    self.table = torch.arange(4.0)\nz = (y * self.table).sin()",
        "n.table = torch.arange(4.0) + 1",
    ),
    "table in a dict": Question(
        "if 4 not in self.tables:\n    self.tables[4] = torch.arange(4.0)\nz = (y * self.tables[4]).sin()",
        "n.tables[4] = torch.arange(4.0) + 1",
        "",
        "",
        "self.tables = {}",
    ),
    "number made once": Question(
        "if self.scale is None:\n    self.scale = 1.5\nz = (y * self.scale).sin()",
        "n.scale = 2.5",
        "",
        "",
        "self.scale = None",
    ),
    "buffer registered at the first call": Question(
        "if not hasattr(self, 'table'):\n    self.register_buffer('table', torch.arange(4.0))\nz = (y * "
        "self.table).sin()",
        "n.register_buffer('table', torch.arange(4.0) + 1)",
    ),
    "global cache": Question(
        "if 4 not in TABLES:\n    TABLES[4] = torch.arange(4.0)\nz = (y * TABLES[4]).sin()",
        "m.TABLES[4] = torch.arange(4.0) + 1",
        "",
        "TABLES = {}",
    ),
    "cached function": Question(
        "z = (y * table(4)).sin()",
        "m.table.cache_clear(); m.START = 1.0",
        "",
        "import functools\n\nSTART = 0.0\n\n\n@functools.lru_cache\ndef table(n):\n    return "
        "torch.arange(float(n)) + START",
    ),
}
KEPT["cached property of an object"] = Question(
    "z = (y * self.thing.table).sin()",
    "n.thing.__dict__['table'] = torch.arange(4.0) + 1",
    "",
    "import functools\n\n\nclass Thing:\n    @functools.cached_property\n    def table(self):\n        return "
    "torch.arange(4.0)",
    "self.thing = Thing()",
)
COUNTERS |= {
    "namespace": Question(
        "STATE.n += 1\n" + _STEPS.format(count="STATE.n"),
        "m.STATE.n = 9",
        "",
        "import types\n\nSTATE = types.SimpleNamespace(n=0)",
    ),
    "slots": Question(
        "STATE.n += 1\n" + _STEPS.format(count="STATE.n"),
        "m.STATE.n = 9",
        "",
        "class State:\n    __slots__ = ('n',)\n\n\nSTATE = State()\nSTATE.n = 0",
    ),
    "array": Question(
        "STATE[0] += 1\n" + _STEPS.format(count="STATE[0]"),
        "m.STATE[0] = 9",
        "",
        "import numpy as np\n\nSTATE = np.zeros(1)",
    ),
    "UserList": Question(
        "STATE[0] += 1\n" + _STEPS.format(count="STATE[0]"),
        "m.STATE[0] = 9",
        "",
        "import collections\n\nSTATE = collections.UserList([0])",
    ),
    "context variable": Question(
        "STATE.set(STATE.get() + 1)\n" + _STEPS.format(count="STATE.get()"),
        "m.STATE.set(9)",
        "",
        "import contextvars\n\nSTATE = contextvars.ContextVar('STATE', default=0)",
    ),
    "thread local": Question(
        "STATE.n += 1\n" + _STEPS.format(count="STATE.n"),
        "m.STATE.n = 9",
        "",
        "import threading\n\nSTATE = threading.local()\nSTATE.n = 0",
    ),
    "module of Python": Question(
        "settings_of_trust.n += 1\n" + _STEPS.format(count="settings_of_trust.n"),
        "m.settings_of_trust.n = 9",
        "",
        "import settings_of_trust\n\nsettings_of_trust.n = 0",
    ),
    "global that is new": Question(
        "global COUNT\nCOUNT = globals().get('COUNT', 0) + 1\n" + _STEPS.format(count="COUNT"), "m.COUNT = 9"
    ),
    "iterator of a list": Question(
        _STEPS.format(count="next(LEFT)"), "[next(m.LEFT) for i in range(9)]", "", "LEFT = iter([1] * 6 + [9] * 60)"
    ),
    "tensor": Question(
        "STATE.add_(1)\nz = (y * torch.where(STATE < 5, 1.5, 0.5)).sin()",
        "m.STATE.fill_(9)",
        "",
        "STATE = torch.zeros(())",
    ),
    "counted, never used": Question(
        "type(self).calls = getattr(type(self), 'calls', 0) + 1\nz = y.sin()", "m.Net.calls = 9"
    ),
}
COUNTERS |= {
    "counted in a global, never used": Question(
        "global CALLS\nCALLS += 1\nz = y.sin()", "m.CALLS = 9", "", "CALLS = 0"
    ),
    "counted in a dict, never used": Question(
        "STATE['n'] += 1\nz = y.sin()", "m.STATE['n'] = 9", "", "STATE = {'n': 0}"
    ),
    "counted in an object, never used": Question(
        "STATE.n += 1\nz = y.sin()", "m.STATE.n = 9", "", "class State:\n    n = 0\n\n\nSTATE = State()"
    ),
}

_SAME, _APART = "args[1] = args[0]", "args[1] = args[0].clone()"
ARGUMENTS: dict[str, Question] = {
    "forward asks": Question("z = (y * (1.5 if x is rest[0] else 0.5) + rest[0]).sin()", _SAME, _APART),
    "forward asks for their storage": Question(
        "z = (y * (1.5 if x.data_ptr() == rest[0].data_ptr() else 0.5)).sin()", _SAME, _APART
    ),
    "forward writes into one": Question("w = x * 1\nw.add_(1)\nz = (y * w + rest[0]).sin()", _SAME, _APART),
    "forward does not care": Question("z = (y * rest[0]).sin()", _SAME, _APART),
}
