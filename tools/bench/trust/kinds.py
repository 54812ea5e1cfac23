"""Kinds of values that a forward may read, each with one change, as text, so that any place of a model can have
them."""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of value.

    Attributes:
        make: Python that makes one.
        read: Python that computes a number from it; `{h}` is replaced by it.
        change: Python that changes it in place, of the name `h`; "" where it is replaced.
        other: Python that makes the one that replaces it.
    """

    make: str
    read: str
    change: str = ""
    other: str = ""


HEAD = """
import array
import collections
import contextvars
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import math
import operator
import pathlib
import re
import threading
import types
import weakref

import numpy as np
import torch
from torch import nn


@dataclasses.dataclass
class Data:
    k: float = 1.5
    items: list = dataclasses.field(default_factory=lambda: [0.5, [1.5]])


@dataclasses.dataclass(slots=True)
class SlotData:
    k: float = 1.5
    items: list = dataclasses.field(default_factory=lambda: [1.5])


@dataclasses.dataclass(frozen=True)
class Frozen:
    k: float = 1.5


class Plain:
    base = 0.5

    def __init__(self, k=1.5):
        self.k = k

    def number(self):
        return self.k + self.shift()

    def shift(self):
        return self.base

    @property
    def twice(self):
        return self.k * 2


class Double(Plain):
    def shift(self):
        return self.base * 2


class Slots:
    __slots__ = ("k", "table")

    def __init__(self, k=1.5):
        self.k, self.table = k, [k]


class Answers:
    def __init__(self):
        self.kept = {"k": 1.5}

    def __getattr__(self, name):
        if name.startswith("__") or name == "kept":
            raise AttributeError(name)
        return self.kept[name]


class Indexed:
    def __init__(self):
        self.kept = [1.5, 2.0]

    def __getitem__(self, at):
        return self.kept[at]

    def __len__(self):
        return len(self.kept)


class Settings(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class Numbers(list):
    pass


class Mode(enum.Enum):
    LOW = 1.5
    HIGH = 2.5


class Flags(enum.IntFlag):
    A = 1
    B = 2


class Pair(collections.namedtuple("Pair", "low high")):
    pass


class Computed:
    @functools.cached_property
    def k(self):
        return self.raw * 2

    raw = 0.75


TARGET = Plain()


def in_order(mapping):
    y = 1.0
    for name, k in mapping.items():
        y = y * k if name == "double" else y + k
    return y


def plain_function(k=1.5):
    return k
"""

KINDS: dict[str, Kind] = {
    "number": Kind("1.5", "{h}", other="2.5"),
    "whole number": Kind("3", "{h}", other="4"),
    "truth value": Kind("True", "(1.5 if {h} else 0.5)", other="False"),
    "None or a number": Kind("None", "(1.5 if {h} is None else {h})", other="2.5"),
    "text": Kind("'low'", "{{'low': 1.5, 'high': 2.5}}[{h}]", other="'high'"),
    "long text": Kind("'a' * 400 + 'b'", "float({h}.index('b')) / 400", other="'a' * 300 + 'b' + 'a' * 100"),
    "complex number": Kind("1.5 + 1j", "{h}.real", other="2.5 + 1j"),
    "fraction": Kind("fractions.Fraction(3, 2)", "float({h})", other="fractions.Fraction(5, 2)"),
    "decimal": Kind("decimal.Decimal('1.5')", "float({h})", other="decimal.Decimal('2.5')"),
    "duration": Kind("datetime.timedelta(seconds=1.5)", "{h}.total_seconds()", other="datetime.timedelta(seconds=2.5)"),
    "path": Kind("pathlib.PurePosixPath('a/b')", "len({h}.parts)", other="pathlib.PurePosixPath('a/b/c')"),
    "range": Kind("range(3)", "(len({h}) + 0.5)", other="range(4)"),
    "slice": Kind("slice(0, 3)", "({h}.stop + 0.5)", other="slice(0, 2)"),
    "bytes": Kind("b'abc'", "len({h})", other="b'ab'"),
    "bytes that change": Kind("bytearray(b'abc')", "({h}[0] / 64)", "h[0] = 32"),
    "regular expression": Kind("re.compile('a+')", "len({h}.match('aab').group())", other="re.compile('a')"),
    "list in a list": Kind("[0.5, [1.5]]", "{h}[1][0]", "h[1][0] = 2.5"),
    "list, five deep": Kind("[[[[[1.5]]]]]", "{h}[0][0][0][0][0]", "h[0][0][0][0][0] = 2.5"),
    "long list": Kind("[[float(i)] for i in range(200)]", "({h}[77][0] / 50)", "h[77][0] = 99.0"),
    "tuple with a list": Kind("(0.5, [1.5])", "{h}[1][0]", "h[1][0] = 2.5"),
    "dict in a dict": Kind("{{'a': {{'k': 1.5}}}}", "{h}['a']['k']", "h['a']['k'] = 2.5"),
    "dict by tuples": Kind("{{('a', 1): 1.5, 2: 0.5}}", "{h}['a', 1]", "h['a', 1] = 2.5"),
    "order of a dict": Kind("{{'double': 2.0, 'add': 1.0}}", "in_order({h})", "h['double'] = h.pop('double')"),
    "order of an OrderedDict": Kind(
        "collections.OrderedDict(double=2.0, add=1.0)", "in_order({h})", "h.move_to_end('double')"
    ),
    "set": Kind("{{1.5, 3.5}}", "min({h})", "h.discard(1.5)"),
    "frozen set": Kind("frozenset({{1.5, 3.5}})", "min({h})", other="frozenset({3.5})"),
    "deque": Kind("collections.deque([0.5, 1.5])", "{h}[1]", "h[1] = 2.5"),
    "defaultdict": Kind("collections.defaultdict(list, a=[1.5])", "{h}['a'][0]", "h['a'][0] = 2.5"),
    "Counter": Kind("collections.Counter('aab')", "{h}['a']", "h.update('a')"),
    "ChainMap": Kind("collections.ChainMap({{'a': 1.5}}, {{'b': 0.5}})", "{h}['a']", "h['a'] = 2.5"),
    "UserDict": Kind("collections.UserDict(k=1.5)", "{h}['k']", "h['k'] = 2.5"),
    "UserList": Kind("collections.UserList([1.5])", "{h}[0]", "h[0] = 2.5"),
    "mapping proxy": Kind("types.MappingProxyType({{'k': [1.5]}})", "{h}['k'][0]", "h['k'][0] = 2.5"),
    "dict with attributes": Kind("Settings(k=1.5, more=Settings(k=0.5))", "{h}.more.k", "h.more.k = 2.5"),
    "list of a class": Kind("Numbers([0.5, 1.5])", "{h}[1]", "h[1] = 2.5"),
    "namedtuple with a list": Kind("Pair(0.5, [1.5])", "{h}.high[0]", "h.high[0] = 2.5"),
    "namespace": Kind(
        "types.SimpleNamespace(k=1.5, deep=types.SimpleNamespace(k=[0.5]))", "{h}.deep.k[0]", "h.deep.k[0] = 2.5"
    ),
    "dataclass": Kind("Data()", "({h}.k + {h}.items[1][0])", "h.items[1][0] = 2.5"),
    "dataclass with slots": Kind("SlotData()", "{h}.items[0]", "h.items[0] = 2.5"),
    "frozen dataclass": Kind("Frozen()", "{h}.k", "object.__setattr__(h, 'k', 2.5)"),
    "object": Kind("Plain()", "{h}.k", "h.k = 2.5"),
    "object that a method reads": Kind("Plain()", "{h}.number()", "h.k = 2.5"),
    "property of an object": Kind("Plain()", "{h}.twice", "h.k = 2.5"),
    "method hidden": Kind("Plain()", "{h}.number()", "h.number = lambda: 3.5"),
    "method of a method hidden": Kind("Plain()", "{h}.number()", "h.shift = lambda: 3.5"),
    "class of an object": Kind("Plain()", "{h}.number()", "h.__class__ = type(h).__subclasses__()[0]"),
    "class attribute hidden": Kind("Plain()", "{h}.number()", "h.base = 2.5"),
    "slots": Kind("Slots()", "{h}.k", "h.k = 2.5"),
    "list in a slot": Kind("Slots()", "{h}.table[0]", "h.table[0] = 2.5"),
    "object in an object": Kind("Plain(Plain())", "{h}.k.k", "h.k.k = 2.5"),
    "object that answers": Kind("Answers()", "{h}.k", "h.kept['k'] = 2.5"),
    "object that is indexed": Kind("Indexed()", "{h}[0]", "h.kept[0] = 2.5"),
    "cached property": Kind("Computed()", "{h}.k", "h.raw = 2.5; h.__dict__.pop('k', None)"),
    "weak reference": Kind("weakref.ref(TARGET)", "{h}().k", "h().k = 2.5"),
    "enum": Kind("Mode.LOW", "{h}.value", other="type(h).HIGH"),
    "flags": Kind("Flags.A", "(1.5 if {h} & 1 else 0.5)", other="type(h).B"),
    "array of NumPy": Kind("np.array([0.5, 1.5])", "float({h}[1])", "h[1] = 2.5"),
    "view of an array": Kind("np.arange(6.0).reshape(2, 3)[:, 1:]", "float({h}[1, 0])", "h[1, 0] = 2.5"),
    "large array of NumPy": Kind("np.ones(300_000)", "float({h}[7])", "h[7] = 2.5"),
    "array of objects": Kind("np.array([None, [1.5]], dtype=object)", "{h}[1][0]", "h[1][0] = 2.5"),
    "masked array": Kind("np.ma.masked_array([0.5, 1.5])", "float({h}.sum())", "h.mask = [True, False]"),
    "scalar of NumPy": Kind("np.float64(1.5)", "float({h})", other="np.float64(2.5)"),
    "array.array": Kind("array.array('d', [0.5, 1.5])", "{h}[1]", "h[1] = 2.5"),
    "memory view": Kind("memoryview(bytearray(b'abc'))", "({h}[0] / 64)", "h[0] = 32"),
    "partial": Kind("functools.partial(operator.mul, 1.5)", "{h}(1.0)", other="functools.partial(operator.mul, 2.5)"),
    "keywords of a partial": Kind("functools.partial(plain_function, k=1.5)", "{h}()", "h.keywords['k'] = 2.5"),
    "function": Kind("plain_function", "{h}()", other="lambda: 2.5"),
    "lambda": Kind("(lambda: 1.5)", "{h}()", other="lambda: 2.5"),
    "default of a lambda": Kind("(lambda k=1.5: k)", "{h}()", "h.__defaults__ = (2.5,)"),
    "list in a default": Kind("(lambda k=[1.5]: k[0])", "{h}()", "h.__defaults__[0][0] = 2.5"),
    "code of a lambda": Kind("(lambda: 1.5)", "{h}()", "h.__code__ = (lambda: 2.5).__code__"),
    "bound method": Kind("Plain().number", "{h}()", "h.__self__.k = 2.5"),
    "getter": Kind("operator.attrgetter('k')", "{h}(TARGET)", other="operator.attrgetter('twice')"),
    "class": Kind("Plain", "{h}().number()", other="h.__subclasses__()[0]"),
    "shape": Kind("torch.Size([3, 4])", "({h}[0] / 2)", other="torch.Size([5, 4])"),
    "dtype": Kind("torch.float32", "{h}.itemsize", other="torch.float64"),
    "device": Kind("torch.device('cpu')", "(1.5 if {h}.type == 'cpu' else 2.5)", other="torch.device('meta')"),
    "limits of a dtype": Kind("torch.finfo(torch.float32)", "({h}.bits / 16)", other="torch.finfo(torch.float64)"),
    "tensor in a list": Kind("[torch.tensor([1.5])]", "{h}[0]", "h[0].mul_(2)"),
    "tensor in a list replaced": Kind("[torch.tensor([1.5])]", "{h}[0]", "h[0] = torch.tensor([2.5])"),
    "tensor of an object": Kind("Plain(torch.tensor([1.5]))", "{h}.k", "h.k.mul_(2)"),
}
FEW = (
    "number",
    "list in a list",
    "dict in a dict",
    "order of a dict",
    "object",
    "method hidden",
    "dataclass with slots",
    "array of NumPy",
    "keywords of a partial",
    "default of a lambda",
)
