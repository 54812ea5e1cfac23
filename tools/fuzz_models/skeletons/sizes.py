"""The model of `sizes`."""

import array
import bisect
import collections
import decimal
import fractions
import functools
import heapq
import itertools
import json
import math
import operator
import os
import statistics
import struct

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


@functools.lru_cache(None)
def doubled(number):
    return number * 2 - 1


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        return x  # the generated statements
