"""A ResNet with batch norm for small images. Its running statistics are updated once a step, whatever is recomputed."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import remate_runtime

SCHEDULE = Path(__file__).with_name("resnet.json")


class ResidualBlock(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        same = stride == 1 and inside == outside
        self.shortcut = nn.Identity() if same else nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        return functional.relu(self.bn2(self.conv2(y)) + self.shortcut(x), inplace=True)


class ResNet(nn.Module):
    def __init__(self, widths: tuple[int, ...] = (16, 32, 64), depth: int = 3, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU(True)
        )
        blocks, inside = [], widths[0]
        for stage, width in enumerate(widths):
            for index in range(depth):
                blocks.append(ResidualBlock(inside, width, 2 if stage and index == 0 else 1))
                inside = width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inside, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))


def batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """32 images and their classes."""
    return torch.randn(32, 3, 32, 32, generator=generator), torch.randint(10, (32,), generator=generator)


def build() -> tuple[nn.Module, tuple[torch.Tensor]]:
    torch.manual_seed(0)
    images, _ = batch(torch.Generator().manual_seed(0))
    return ResNet().train(), (images,)


def main(steps: int = 5) -> None:
    model, args = build()
    if not SCHEDULE.exists():  # planned once, then kept with the code
        import remate

        remate.plan(model, args, budget="50%", cost="cpu").save(str(SCHEDULE))
    planned = remate_runtime.apply(model, str(SCHEDULE))  # shares the parameters and buffers of `model`
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        images, classes = batch(generator)
        loss = functional.cross_entropy(planned(images), classes)  # the loss may be outside of the model
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
