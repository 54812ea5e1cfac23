"""The model of `live`."""

import array
import bisect
import copy
import decimal
import fractions
import functools
import json
import math
import operator
import pickle
import random
import statistics
import struct
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


@functools.lru_cache(None)
def doubled(number):
    return number * 2 - 1


def helper(value, factor=2.0):
    return value * factor + 0.5


def pick(value):
    return 0.2 if value > 0.6 else value


def numbers_of(model):
    return [model.alpha, model.cfg.beta]


@dataclass
class Settings:
    beta: float = 0.5

    def half(self):
        return self.beta * 0.5


class Sub(nn.Module):
    def __init__(self):
        super().__init__()
        self.gamma = 0.5
        self.linear = nn.Linear(16, 16)

    def forward(self, h):
        return self.linear(h) * self.gamma


class M(nn.Module):
    gain = 1.5

    def __init__(self):
        super().__init__()
        self.a, self.b, self.sub = nn.Linear(16, 16), nn.Linear(16, 16), Sub()
        self.alpha, self.cfg, self.table = 0.5, Settings(), [0.2, 0.8]

    @property
    def prop(self):
        return self.alpha * 2

    def method(self, value):
        return value * self.alpha

    def forward(self, x, delta, opts):
        return x  # the generated statements
