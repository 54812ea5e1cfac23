"""The networks of the table of splits: small enough to train on a CPU, with the operations that hold their floors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec
import torch
import torch.nn.functional as F
from torch import nn

from tests.models import ZOO
from tests.models.case import Built

from .models import resnet


class LossOnly(nn.Module):
    """A model that returns its loss, so that nobody holds its other outputs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> torch.Tensor:
        outputs = self.model(*args, **kwargs)
        loss = getattr(outputs, "loss", outputs)
        return loss if loss.numel() == 1 else loss.float().square().mean()


class Classified(nn.Module):
    """A classifier with its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.model(images), labels)


class Residual(nn.Module):
    """Group norm, SiLU, convolution, twice."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)
        self.conv_1, self.conv_2 = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv_1(F.silu(self.norm_1(x)))
        return self.shortcut(x) + self.conv_2(F.silu(self.norm_2(y)))


class Autoencoder(nn.Module):
    """A variational autoencoder of images, as of latent diffusion (Rombach et al. 2022): residual blocks at three sizes."""

    def __init__(self, width: int = 16, code: int = 4) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        down: list[nn.Module] = []
        up: list[nn.Module] = []
        for k in (1, 2):
            down += [Residual(k * width, 2 * k * width), nn.Conv2d(2 * k * width, 2 * k * width, 3, 2, 1)]
            up = [nn.Upsample(scale_factor=2), Residual(2 * k * width, k * width), *up]
        self.down, self.up = nn.Sequential(*down), nn.Sequential(*up)
        self.moments, self.widen = nn.Conv2d(4 * width, 2 * code, 1), nn.Conv2d(code, 4 * width, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        mean, log_variance = self.moments(self.down(self.enter(images))).chunk(2, 1)
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        decoded = self.leave(self.up(self.widen(code)))
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).mean()
        return F.mse_loss(decoded, images) + divergence


class Adversary(nn.Module):
    """DCGAN's discriminator on real and generated images of 64×64 (Radford, Metz, Chintala 2016)."""

    def __init__(self, code: int = 64, width: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.ConvTranspose2d(code, 8 * width, 4, 1, 0, bias=False)]
        for times in (8, 4, 2):
            layers += [nn.BatchNorm2d(times * width), nn.ReLU(True)]
            layers += [nn.ConvTranspose2d(times * width, times * width // 2, 4, 2, 1, bias=False)]
        layers += [nn.BatchNorm2d(width), nn.ReLU(True), nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh()]
        self.generator = nn.Sequential(*layers)
        layers = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True)]
        for times in (1, 2, 4):
            layers += [nn.Conv2d(times * width, 2 * times * width, 4, 2, 1, bias=False)]
            layers += [nn.BatchNorm2d(2 * times * width), nn.LeakyReLU(0.2, True)]
        self.discriminator = nn.Sequential(*layers, nn.Conv2d(8 * width, 1, 4, 1, 0, bias=False), nn.Flatten(0))

    def forward(self, code: torch.Tensor) -> torch.Tensor:
        judged = self.discriminator(self.generator(code))
        return F.binary_cross_entropy_with_logits(judged, torch.ones_like(judged))


def _zoo(name: str, **size: Any) -> Built:
    model, args, kwargs = ZOO[name].build(**size)
    return LossOnly(model), args, kwargs


def _resnet50() -> Built:
    return Classified(resnet((3, 4, 6, 3))), (torch.randn(16, 3, 112, 112), torch.randint(1000, (16,))), {}


class SplitModel(msgspec.Struct, frozen=True):
    """A network of the table.

    Attributes:
        describe: Its size in words.
        build: Returns the model and its inputs.
        permitted: The splits that plans may have.
        cost: Costs of operations. Convolutions are measured: their estimated workspaces are too large.
    """

    describe: str
    build: Callable[[], Built]
    permitted: Literal["head", "all"]
    cost: Literal["cpu", "measured"]


SPLIT_MODELS: dict[str, SplitModel] = {
    "gpt2": SplitModel(
        "GPT-2, 2 layers, 2,048 words", lambda: _zoo("gpt2", layers=2, batch=4, vocab=2048), "head", "cpu"
    ),
    "llama": SplitModel(
        "Llama, 2 layers, 2,048 words", lambda: _zoo("llama", layers=2, batch=4, vocab=2048), "head", "cpu"
    ),
    "bert": SplitModel(
        "BERT, 2 layers, 2,048 words", lambda: _zoo("bert", layers=2, batch=4, vocab=2048), "head", "cpu"
    ),
    "t5": SplitModel("T5, 1+1 layers, 2,048 words", lambda: _zoo("t5", layers=1, batch=4, vocab=2048), "head", "cpu"),
    "vit": SplitModel("ViT, 4 layers", lambda: _zoo("vit"), "all", "cpu"),
    "unet": SplitModel("U-Net", lambda: _zoo("unet"), "all", "measured"),
    "resnet50": SplitModel("ResNet-50, 16 images of 112×112", _resnet50, "all", "measured"),
    "vae": SplitModel(
        "VAE, 8 images of 64×64", lambda: (Autoencoder(), (torch.rand(8, 3, 64, 64),), {}), "all", "measured"
    ),
    "dcgan": SplitModel(
        "DCGAN, 64 images of 64×64", lambda: (Adversary(), (torch.randn(64, 64, 1, 1),), {}), "all", "measured"
    ),
}
