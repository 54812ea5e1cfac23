"""The model of `changes`, with what changes between steps."""

import torch
import torch.nn.functional as F
from torch import nn

G = 1.5
FLAG = False
CONF = {"c": 0.8}


def helper(v):
    return v * G + 0.1


def helper_of(number):
    return lambda v: v * number


def scale_of(model):
    return model.alpha * 2


def scale_by(number):
    return lambda model: model.alpha * number


def scaling(number):
    return lambda v: v * number


def linear():
    return nn.Linear(16, 16)


def louder(module, arguments, output):
    return output * 1.1 if isinstance(output, torch.Tensor) else output


def louder_input(module, arguments):
    return (arguments[0] * 1.2,)


def quieter_gradient(module, inputs, outputs):
    return tuple(gradient * 0.5 if gradient is not None else None for gradient in inputs)


def halved(gradient):
    return gradient * 0.5


class Settings:
    def __init__(self):
        self.scale = 0.9


class Sub(nn.Module):
    def __init__(self):
        super().__init__()
        self.l, self.gain = nn.Linear(16, 16), 1.1

    def forward(self, v):
        return self.l(v) * self.gain + (v if self.training else 0)

    def other_forward(self, v):
        return self.l(v) * 0.9


class M(nn.Module):
    C = 1.2

    def __init__(self):
        super().__init__()
        self.lin, self.w = nn.Linear(16, 16), nn.Parameter(torch.randn(16, 16) * 0.2)
        self.bn, self.drop, self.sub = nn.BatchNorm1d(16), nn.Dropout(0.2), Sub()
        self.block = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 16))
        self.layers, self.act, self.fn = nn.ModuleList([nn.Linear(16, 16) for _ in range(3)]), nn.ReLU(), torch.sin
        self.alpha, self.p, self.flag, self.which, self.table = 0.7, 0.1, False, 0, [0.5, 1.5]
        self.depth, self.steps, self.rep, self.dt = 2, 2, 1, torch.float32
        self.cfg, self.opts = Settings(), {"k": 1.3}
        self.register_buffer("buf", torch.zeros(16))

    def forward(self, x, m=None):
        return x  # the generated statements
