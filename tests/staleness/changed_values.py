"""A small model that reads settings of every kind, as a file of a user."""

HEAD = """
import collections
import dataclasses
import enum
import functools
import itertools
import math
import operator
import types

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
"""

FOOT = """

def build():
    torch.manual_seed(0)
    return Net()
"""

VALUES = (
    HEAD
    + '''

class Gain:
    """A plain object: what it is seen to be read for belongs to the step."""

    offset = 0.25

    def __init__(self, gain, inner=None):
        self.gain, self.inner, self.unread, self.table = gain, inner, 0, {"k": [1.0, 2.0]}

    def scale(self, x):
        return x * self.gain + self.shift() * self.offset

    def shift(self):
        return self.table["k"][1]


class Slots:
    __slots__ = ("gain", "table")

    def __init__(self, gain):
        self.gain, self.table = gain, [gain]


@dataclasses.dataclass
class Data:
    gain: float = 1.5
    items: list = dataclasses.field(default_factory=lambda: [0.5, [0.25]])


@dataclasses.dataclass(frozen=True)
class Frozen:
    gain: float = 1.5
    table: dict = dataclasses.field(default_factory=lambda: {"a": 1.0})


@dataclasses.dataclass(slots=True)
class SlotData:
    gain: float = 0.75
    items: list = dataclasses.field(default_factory=lambda: [0.5])


class Pair(collections.namedtuple("Pair", "low high")):
    pass


class Bag(collections.UserDict):
    pass


class Settings(dict):
    __getattr__ = dict.__getitem__


class Lookup:
    def __getattr__(self, name):
        return {"alpha": self.__dict__["kept"]}[name]

    def __init__(self):
        self.kept = 1.25


class Mode(enum.Enum):
    TWICE = 2.0
    THRICE = 3.0


NESTED = {"a": [{"b": [1.0, 2.0]}, (3.0, [0.5])]}
GAIN = Gain(1.5, Gain(0.5))
SLOTS, SLOT_DATA, DATA, FROZEN = Slots(1.5), SlotData(), Data(), Frozen()
GAINS = [Gain(1.0), {"inner": Gain(2.0)}]
QUEUE = collections.deque([0.5, 1.5], maxlen=4)
ORDERED = collections.OrderedDict(double=2.0, add=1.0)
BAG = Bag(gain=1.25)
SETTINGS = Settings(gain=1.5, more=Settings(k=0.5))
LOOKUP = Lookup()
SPACE = types.SimpleNamespace(k=1.5, deep=types.SimpleNamespace(k=[0.5]))
ARRAY, SCALAR, ARRAYS = np.array([1.5, 2.5]), np.float64(1.5), {"w": [np.ones(2)]}
PARTIAL = functools.partial(torch.mul, other=2.0)
LEAKY = functools.partial(F.leaky_relu, negative_slope=0.25)
CHAINED = functools.partial(functools.partial(torch.add, alpha=0.5), other=1.0)
CHOICES = {Mode.TWICE: 2.0, ("a", 1): 0.5, 3: 1.5}
MODE = Mode.TWICE
STEPS = {"relu", "tanh"}
PAIR = Pair(0.5, [1.5])
GETTER = operator.attrgetter("gain")
COUNT = itertools.count(3)


def ordered(x):
    for name, k in ORDERED.items():
        x = x * k if name == "double" else x + k
    return x


def through(x, gain=GAIN, *, table=NESTED):
    return x * gain.gain * table["a"][1][1][0]


def make(gain, steps):
    def inner(x):
        return x * gain.gain + steps["k"][0]

    return inner


CLOSED = make(Gain(2.0), {"k": [1.0]})


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.gain, self.nested, self.queue = Gain(1.25, Gain(0.5)), {"a": [[1.5], (2.0, [0.5])]}, collections.deque([1.5])
        self.slots, self.data, self.bag, self.array = Slots(0.75), Data(), Bag(k=1.5), np.array([0.5, 1.0])
        self.partial = functools.partial(F.softplus, beta=2.0)
        self.helpers = [Gain(1.5), (Gain(0.75), 1.0)]
        self.steps = collections.OrderedDict(double=2.0, add=1.0)
        self.method = Gain(1.75).scale
        self.closed = make(Gain(1.5), {"k": [0.5]})
        self.pair, self.settings = Pair(0.5, [1.5]), Settings(k=1.5)

    def forward(self, x):
        y = self.lin(x)
        y = y * NESTED["a"][0]["b"][1] + NESTED["a"][1][1][0]
        y = y.sin()
        y = GAIN.scale(y) * GAIN.inner.gain + GETTER(SLOTS) * SLOTS.table[0]
        y = y.sin()
        y = y * SLOT_DATA.gain + SLOT_DATA.items[0] * DATA.items[1][0] + FROZEN.table["a"] * DATA.gain
        y = y.sin()
        y = GAINS[0].scale(y) + GAINS[1]["inner"].gain + QUEUE[1] * sum(QUEUE)
        y = y.sin()
        y = ordered(y) * BAG["gain"] + SETTINGS.gain * SETTINGS.more.k + LOOKUP.alpha * SPACE.k + SPACE.deep.k[0]
        y = y.sin()
        y = y * float(ARRAY[1]) + float(SCALAR) * float(ARRAYS["w"][0][1])
        y = y.sin()
        y = CHAINED(LEAKY(PARTIAL(y))) * CHOICES[MODE] + CHOICES["a", 1] * CHOICES[3] + PAIR.high[0] * PAIR.low
        y = y.sin()
        y = y * 0.5 if "relu" in STEPS else y
        y = CLOSED(through(y)) * MODE.value * 0.01
        y = y.sin()
        y = self.gain.scale(y) * self.gain.inner.gain + self.nested["a"][1][1][0] * self.nested["a"][0][0] + self.queue[0]
        y = y.sin()
        y = y * self.slots.gain + self.slots.table[0] + self.data.items[1][0] * self.data.gain + self.bag["k"]
        y = y.sin()
        y = self.partial(y) * float(self.array[1]) + self.helpers[0].gain * self.helpers[1][0].scale(y)
        y = y.sin()
        for name, k in self.steps.items():
            y = y * k if name == "double" else y + k
        y = self.closed(self.method(y)) * self.pair.high[0] + self.settings.k
        y = y.sin()
        return y.mean()
'''
    + FOOT
)
