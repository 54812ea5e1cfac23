"""The model of `operations`."""

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.lin2, self.w2 = nn.Linear(16, 16), nn.Linear(16, 16, bias=False), nn.Linear(16, 16)
        self.w, self.s = nn.Parameter(torch.randn(16, 16) * 0.2), nn.Parameter(torch.ones(16))
        self.emb, self.k = nn.Parameter(torch.randn(8, 16)), nn.Parameter(torch.randn(1, 1, 3))
        self.bn, self.drop, self.conv = nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Conv2d(1, 1, 3, padding=1)
        self.gru, self.mha = nn.GRU(16, 16, batch_first=True), nn.MultiheadAttention(16, 2, batch_first=True)
        self.plain = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))
        self.block = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 16))
        self.register_buffer("buf", torch.zeros(16))
        self.register_buffer("count", torch.zeros(()))
        self.aux = None
        self.last = None
        self.rows = ()

    def forward(self, x):
        return self.lin(x)  # the generated statements
