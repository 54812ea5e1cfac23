"""Convolutional nets: ResNet, RegNet, a depthwise-separable net and a U-Net, all with running statistics or norms."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .case import Built


def conv_bn(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv_1, self.conv_2 = conv_bn(inputs, outputs, 3, stride), conv_bn(outputs, outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = conv_bn(inputs, outputs, 1, stride) if inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv_2(self.relu(self.conv_1(x)))
        return self.relu(y + self.shortcut(x))


class SqueezeExcite(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1)))).sigmoid()


class GroupedBottleneck(nn.Module):
    """RegNetY's block: grouped 3×3 convolution between 1×1 ones, squeeze and excitation."""

    def __init__(self, inputs: int, outputs: int, stride: int, group: int) -> None:
        super().__init__()
        self.reduce = conv_bn(inputs, outputs, 1)
        self.spatial = conv_bn(outputs, outputs, 3, stride, outputs // group)
        self.excite = SqueezeExcite(outputs)
        self.expand = conv_bn(outputs, outputs, 1)
        self.shortcut = conv_bn(inputs, outputs, 1, stride) if inputs != outputs or stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.spatial(F.relu(self.reduce(x))))
        return F.relu(self.expand(self.excite(y)) + self.shortcut(x))


class InvertedResidual(nn.Module):
    """MobileNet V2's block: expand, depthwise convolution, project; ReLU6."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.residual = stride == 1 and inputs == outputs
        self.layers = nn.Sequential(
            conv_bn(inputs, hidden, 1),
            nn.ReLU6(inplace=True),
            conv_bn(hidden, hidden, 3, stride, hidden),
            nn.ReLU6(inplace=True),
            conv_bn(hidden, outputs, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x) if self.residual else self.layers(x)


class ConvNet(nn.Module):
    """Stem, blocks, pooled classifier. Returns class scores; the loss is outside."""

    def __init__(self, stem: nn.Module, blocks: list[nn.Module], width: int, classes: int = 10) -> None:
        super().__init__()
        self.stem, self.blocks = stem, nn.Sequential(*blocks)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1).flatten(1))


def resnet(width: int = 16, blocks: int = 2, batch: int = 16, image: int = 32) -> Built:
    """ResNet with batch norm and in-place ReLU."""
    layers: list[nn.Module] = []
    inputs = width
    for stage in range(3):
        for index in range(blocks):
            outputs = width << stage
            layers.append(BasicBlock(inputs, outputs, 2 if stage and not index else 1))
            inputs = outputs
    stem = nn.Sequential(conv_bn(3, width), nn.ReLU(inplace=True), nn.MaxPool2d(3, 1, 1))
    return ConvNet(stem, layers, inputs), (torch.randn(batch, 3, image, image),), {}


def regnet(width: int = 24, blocks: int = 2, batch: int = 16, image: int = 32) -> Built:
    """RegNetY-like: grouped convolutions, squeeze and excitation."""
    layers: list[nn.Module] = []
    inputs = 16
    for stage in range(2):
        for index in range(blocks):
            outputs = width * (stage + 1)
            layers.append(GroupedBottleneck(inputs, outputs, 1 if index or not stage else 2, 8))
            inputs = outputs
    stem = nn.Sequential(conv_bn(3, 16), nn.ReLU())
    return ConvNet(stem, layers, inputs), (torch.randn(batch, 3, image, image),), {}


def depthwise(width: int = 16, blocks: int = 4, batch: int = 8, image: int = 32) -> Built:
    """MobileNet-like: depthwise convolutions and ReLU6."""
    layers: list[nn.Module] = [InvertedResidual(width, width, 2 if i == blocks // 2 else 1, 4) for i in range(blocks)]
    stem = nn.Sequential(conv_bn(3, width), nn.ReLU6(inplace=True))
    return ConvNet(stem, layers, width), (torch.randn(batch, 3, image, image),), {}


class DoubleConv(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            conv_bn(inputs, outputs), nn.ReLU(inplace=True), conv_bn(outputs, outputs), nn.ReLU(inplace=True)
        )


class UNet(nn.Module):
    """Skips from every level down to the same level up. Returns per-pixel scores; the loss is outside."""

    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.down = nn.ModuleList(DoubleConv(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(w, w // 2, 2, 2) for w in widths[:0:-1])
        self.merge = nn.ModuleList(DoubleConv(w, w // 2) for w in widths[:0:-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for level, down in enumerate(self.down):
            x = down(x if level == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([skips.pop(), up(x)], 1))
        return self.head(x)


def unet(width: int = 8, depth: int = 3, batch: int = 4, image: int = 64) -> Built:
    """U-Net with batch norm and transposed convolutions."""
    return UNet(width, depth, 4), (torch.randn(batch, 3, image, image),), {}
