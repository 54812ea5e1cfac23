"""A model that ranks may divide, for `remate fit --mesh`."""

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))


def build(layout):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    if 2 % layout.pp:
        raise ValueError("2 layers do not divide into these stages")
    with torch.device("meta"):
        stages = [nn.Sequential(*(Layer() for _ in range(2 // layout.pp))) for _ in range(layout.pp)]
        x = torch.zeros(layout.microbatch, 64, 64)
    for layer in (layer for stage in stages for layer in stage if layout.tp > 1):
        parallelize_module(layer, layout.mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return (stages[0], (x,)) if layout.pp == 1 else ([(stage, (x,)) for stage in stages], nn.functional.mse_loss, x)


def raises(layout):
    raise TypeError(f"{layout} is not what was expected")
