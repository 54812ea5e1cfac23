"""Layers and functions of torch beyond the zoo: captured steps compute what eager computes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.planner.interpreter import compare

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


class Fn(nn.Module):
    """Members, and a forward that uses them."""

    def __init__(self, function: Callable[..., Any], **members: Any) -> None:
        super().__init__()
        self.function = function
        for name, member in members.items():
            setattr(self, name, member)

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def torch_transformer() -> Built:
    model = nn.Transformer(16, 4, 1, 1, 32, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(6)
    return model, (torch.randn(2, 5, 16), torch.randn(2, 6, 16)), {"tgt_mask": mask, "tgt_is_causal": True}


def torch_encoder() -> Built:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, norm_first=True, activation="gelu"), 2)
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[0, 3:] = True
    return model, (torch.randn(5, 3, 16),), {"src_key_padding_mask": padding}


def attention() -> Built:
    model = Fn(lambda m, q, k: m.a(q, k, k), a=nn.MultiheadAttention(16, 4, 0.1, kdim=8, vdim=8, batch_first=True))
    return model, (torch.randn(2, 5, 16), torch.randn(2, 7, 8)), {}


def scaled_dot_product() -> Built:
    def forward(m: Any, a: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = m.qkv(a).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        causal = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        masked = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return causal + masked + F.scaled_dot_product_attention(q, k, v, dropout_p=0.2)

    return Fn(forward, qkv=nn.Linear(16, 48)), (torch.randn(2, 6, 16), torch.rand(6, 6) > 0.3), {}


class ConformerBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.feed = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.SiLU(), nn.Dropout(0.1))
        self.back = nn.Linear(2 * width, width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.glu = nn.Sequential(nn.Conv1d(width, 2 * width, 1), nn.GLU(1))
        self.depthwise = nn.Conv1d(width, width, 3, padding=1, groups=width)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        a = a + 0.5 * self.back(self.feed(a))
        a = a + self.attention(a, a, a, need_weights=False)[0]
        return a + F.silu(self.norm(self.depthwise(self.glu(a.transpose(1, 2))))).transpose(1, 2)


def conformer() -> Built:
    return nn.Sequential(ConformerBlock(16), ConformerBlock(16)), (torch.randn(2, 7, 16),), {}


def bidirectional_lstm() -> Built:
    model = Fn(lambda m, a: m.r(a)[0], r=nn.LSTM(8, 8, 2, bidirectional=True, dropout=0.2))
    return model, (torch.randn(5, 3, 8),), {}


def lstm_with_projection() -> Built:
    model = Fn(lambda m, a, h, c: m.r(a, (h, c)), r=nn.LSTM(8, 8, proj_size=4, batch_first=True))
    return model, (torch.randn(3, 5, 8), torch.randn(1, 3, 4), torch.randn(1, 3, 8)), {}


def rnn_cells() -> Built:
    def forward(m: Any, a: torch.Tensor) -> torch.Tensor:
        h = c = g = torch.zeros(a.shape[0], 32)
        for step in a.unbind(1):
            h, c = m.lstm(step, (h, c))
            g = m.gru(h, g)
        return m.rnn(a)[0].sum(1) + g

    # Rows of 32: eager computes gates in place, in a part of a tensor, and torch's kernels round otherwise in what is
    # left of a row behind full vectors.
    cells = {"lstm": nn.LSTMCell(32, 32), "gru": nn.GRUCell(32, 32), "rnn": nn.RNN(32, 32, 2, batch_first=True)}
    return Fn(forward, **cells), (torch.randn(3, 4, 32),), {}


def embedding_bag() -> Built:
    def forward(m: Any, bags: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return m.mean(bags, offsets) + m.sum(bags, offsets) + m.max(bags, offsets)

    bags = {mode: nn.EmbeddingBag(10, 4, mode=mode) for mode in ("mean", "sum", "max")}
    return Fn(forward, **bags), (torch.randint(0, 10, (9,)), torch.tensor([0, 3, 5])), {}


def losses() -> Built:
    def forward(m: Any, a: torch.Tensor, b: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        y = m.linear(a)
        parts = (
            F.mse_loss(y, b), F.l1_loss(y, b), F.smooth_l1_loss(y, b), F.huber_loss(y, b), F.cosine_embedding_loss(y, b, torch.ones(4)),
            F.binary_cross_entropy_with_logits(y, b.sigmoid()), F.binary_cross_entropy(y.sigmoid(), b.sigmoid()),
            F.cross_entropy(y, classes, label_smoothing=0.1, ignore_index=1), F.kl_div(y.log_softmax(-1), b.softmax(-1)),
            F.triplet_margin_loss(y, b, a), F.margin_ranking_loss(y[:, 0], y[:, 1], torch.ones(4)), F.multi_margin_loss(y, classes),
            F.poisson_nll_loss(y, b.abs()), F.hinge_embedding_loss(y, b.sign()),
        )  # fmt: skip
        return torch.stack(parts).sum()

    return Fn(forward, linear=nn.Linear(6, 6)), (torch.randn(4, 6), torch.randn(4, 6), torch.tensor([0, 1, 2, 5])), {}


def activations() -> Built:
    kinds = (
        nn.ReLU(inplace=True), nn.ReLU6(), nn.LeakyReLU(inplace=True), nn.ELU(inplace=True), nn.SELU(), nn.CELU(), nn.GELU(),
        nn.GELU("tanh"), nn.SiLU(inplace=True), nn.Mish(), nn.Hardswish(), nn.Hardsigmoid(), nn.Hardtanh(), nn.Softplus(),
        nn.Softshrink(), nn.Hardshrink(), nn.Tanhshrink(), nn.Softsign(), nn.LogSigmoid(), nn.PReLU(), nn.RReLU(), nn.Threshold(0.1, 0),
        nn.Softmin(-1), nn.LogSoftmax(-1),
    )  # fmt: skip
    layers = [layer for kind in kinds for layer in (nn.Linear(6, 6), kind)]
    return nn.Sequential(*layers), (torch.randn(4, 6),), {}


def norms() -> Built:
    kinds = (
        nn.BatchNorm2d(8), nn.BatchNorm2d(8, affine=False), nn.BatchNorm2d(8, track_running_stats=False), nn.GroupNorm(2, 8),
        nn.InstanceNorm2d(8, affine=True, track_running_stats=True), nn.LayerNorm([8, 6, 6]), nn.LocalResponseNorm(2),
        nn.BatchNorm2d(8, momentum=0.3), nn.RMSNorm([8, 6, 6]), nn.GroupNorm(8, 8, affine=False),
    )  # fmt: skip
    return nn.Sequential(*kinds), (torch.randn(3, 8, 6, 6, requires_grad=True),), {}


def convolutions() -> Built:
    layers = (
        nn.Conv2d(4, 8, 3, stride=2, padding=1, bias=False), nn.ReLU(True), nn.ConvTranspose2d(8, 8, 4, 2, 1, groups=2),
        nn.MaxPool2d(2, return_indices=False), nn.Conv2d(8, 8, 3, padding="same", dilation=2, padding_mode="reflect"),
        nn.AvgPool2d(3, 1, 1), nn.PixelShuffle(2), nn.ReplicationPad2d(1), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(32, 3), nn.Unflatten(1, (1, 3)),
    )  # fmt: skip
    return nn.Sequential(*layers), (torch.randn(2, 4, 12, 12),), {}


def volumes() -> Built:
    layers = (
        nn.Conv3d(2, 4, 3),
        nn.BatchNorm3d(4),
        nn.ELU(),
        nn.MaxPool3d(2),
        nn.AdaptiveMaxPool3d(1),
        nn.Dropout3d(0.3),
    )
    return nn.Sequential(*layers), (torch.randn(2, 2, 8, 8, 8),), {}


def sampling() -> Built:
    def forward(m: Any, a: torch.Tensor) -> torch.Tensor:
        theta = m.locate(a.flatten(1)).view(-1, 2, 3)
        warped = F.grid_sample(a, F.affine_grid(theta, list(a.shape), False), align_corners=False)
        modes = [F.interpolate(warped, scale_factor=2.0, mode=mode) for mode in ("bilinear", "nearest", "bicubic")]
        small = F.interpolate(warped, (12, 12), mode="bilinear", antialias=True)
        return F.fold(F.unfold(sum(modes) + small, 3, padding=1), (12, 12), 3, padding=1)

    return Fn(forward, locate=nn.Linear(72, 6)), (torch.randn(2, 2, 6, 6),), {}


def spectral() -> Built:
    def forward(m: Any, a: torch.Tensor) -> torch.Tensor:
        waves = torch.fft.rfft2(a) * torch.view_as_complex(m.filter)
        stft = torch.stft(a.flatten(1), 8, window=m.window, return_complex=True)
        return torch.fft.irfft2(waves, s=(6, 6)).sum() + stft.abs().square().mean() + waves.angle().cos().mean()

    members = {"filter": nn.Parameter(torch.randn(2, 6, 4, 2)), "window": torch.hann_window(8)}
    return Fn(forward, **members), (torch.randn(2, 2, 6, 6),), {}


def indexing() -> Built:
    def forward(m: Any, a: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        y = m.linear(a).clone()
        y[:, 0] = 0.0
        y[at] += 1
        y[:, 1:3].mul_(2)
        z = torch.zeros_like(y).index_add(0, at, y[:2]).scatter_add(1, at.repeat(2)[:, None].expand(4, 4), y)
        top = y.topk(2, -1)
        ordered = y.sort(-1).values.cumsum(0).flip(0).roll(1, 0)
        gathered = y.gather(1, top.indices).logsumexp(-1)
        return torch.einsum("ij,kj->ik", z, ordered).tril().amax(-1) + gathered + torch.where(y > 0, y, y * 2).prod(-1)

    return Fn(forward, linear=nn.Linear(4, 4)), (torch.randn(4, 4), torch.tensor([0, 2])), {}


def linear_algebra() -> Built:
    def forward(m: Any, a: torch.Tensor) -> torch.Tensor:
        spd = a @ a.mT + m.shift * torch.eye(4)
        factor = torch.linalg.cholesky(spd)
        solved = torch.linalg.solve(spd, a) + torch.cholesky_solve(a, factor)
        return (
            solved.sum()
            + torch.linalg.slogdet(spd)[1].sum()
            + torch.linalg.inv(spd).diagonal(0, -2, -1).sum()
            + torch.linalg.matrix_exp(a).mean()
        )

    return Fn(forward, shift=nn.Parameter(torch.tensor(4.0))), (torch.randn(3, 4, 4),), {}


def functional_derivative() -> Built:
    def forward(m: Any, a: torch.Tensor) -> torch.Tensor:
        return torch.func.vmap(torch.func.grad(lambda row: m.linear(row).tanh().sum()))(a).square().sum()

    return Fn(forward, linear=nn.Linear(4, 4)), (torch.randn(3, 4),), {}


def variational() -> Built:
    def forward(m: Any, a: torch.Tensor) -> torch.Tensor:
        mean, deviation = m.encode(a).chunk(2, -1)
        posterior = torch.distributions.Normal(mean, deviation.exp())
        kl = torch.distributions.kl_divergence(posterior, torch.distributions.Normal(0.0, 1.0))
        hard = F.gumbel_softmax(m.decode(posterior.rsample()), hard=True)
        return (hard - a).square().sum() + kl.sum()

    return Fn(forward, encode=nn.Linear(6, 8), decode=nn.Linear(4, 6)), (torch.randn(3, 6),), {}


def bilinear_and_containers() -> Built:
    def forward(m: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
        y = m.bilinear(a, b)
        for weight in m.weights:
            y = y * weight
        return {"y": y * m.named["scale"], "norm": torch.cdist(a, b).mean(0), "similar": F.cosine_similarity(a, b)}

    members = {
        "bilinear": nn.Bilinear(4, 4, 3),
        "weights": nn.ParameterList([torch.randn(3), torch.randn(3)]),
        "named": nn.ParameterDict({"scale": torch.randn(3)}),
    }
    return Fn(forward, **members), (torch.randn(5, 4), torch.randn(5, 4)), {}


def u_net_with_attention() -> Built:
    def forward(m: Any, a: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        waves = time[:, None] * torch.exp(-math.log(100.0) * torch.arange(4) / 4)
        down = F.silu(m.norm(m.down(a))) + m.time(torch.cat([waves.sin(), waves.cos()], -1))[:, :, None, None]
        low = F.avg_pool2d(down, 2)
        tokens = low.flatten(2).transpose(1, 2)
        low = low + m.attention(tokens, tokens, tokens)[0].transpose(1, 2).view_as(low)
        return m.out(torch.cat([F.interpolate(low, scale_factor=2), down], 1))

    members = {
        "down": nn.Conv2d(3, 8, 3, padding=1), "norm": nn.GroupNorm(2, 8), "time": nn.Linear(8, 8),
        "attention": nn.MultiheadAttention(8, 2, batch_first=True), "out": nn.Conv2d(16, 3, 1),
    }  # fmt: skip
    return Fn(forward, **members), (torch.randn(2, 3, 8, 8), torch.rand(2)), {}


# a tolerance stands where eager runs another kernel, or sums gradients in another order
MODELS: dict[Callable[[], Built], float] = {
    **dict.fromkeys(
        (
            torch_transformer,
            torch_encoder,
            attention,
            scaled_dot_product,
            conformer,
            rnn_cells,
            embedding_bag,
            activations,
            norms,
            convolutions,
            volumes,
            sampling,
            spectral,
            indexing,
            linear_algebra,
            functional_derivative,
            variational,
            bilinear_and_containers,
            u_net_with_attention,
        ),
        0.0,
    ),
    **dict.fromkeys((lstm_with_projection, losses), 2e-5),
    bidirectional_lstm: 0.0,
}


@pytest.mark.quick("spectral")
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_model(make: Callable[[], Built]) -> None:
    torch.manual_seed(0)
    model, args, kwargs = make()
    compare(model, args, kwargs, MODELS[make])


@pytest.mark.quick("True-0.2-False-LSTM")
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(("both", "drop", "first"), list(itertools.product([False, True], [0.0, 0.2], [False, True])))
def test_recurrent(kind: Any, both: bool, drop: float, first: bool) -> None:
    model = kind(4, 4, 2, bidirectional=both, dropout=drop, batch_first=first)
    compare(model, (torch.randn(3, 2, 4, requires_grad=True),), {}, 0.0 if kind is nn.LSTM else 2e-5)
