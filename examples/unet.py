"""A U-Net for segmentation: large activations pass from its down path to its up path."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import remate_runtime

SCHEDULE = Path(__file__).with_name("unet.json")


class DoubleConv(nn.Sequential):
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__(
            nn.Conv2d(inside, outside, 3, padding=1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(inplace=True),
            nn.Conv2d(outside, outside, 3, padding=1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    def __init__(self, widths: tuple[int, ...] = (16, 32, 64, 128), classes: int = 4) -> None:
        super().__init__()
        inside = (3, *widths[:-1])
        self.down = nn.ModuleList(DoubleConv(a, b) for a, b in zip(inside, widths, strict=True))
        pairs = list(zip(widths[1:], widths[:-1], strict=True))[::-1]
        self.widen = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in pairs)
        self.up = nn.ModuleList(DoubleConv(2 * b, b) for _, b in pairs)
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        skips, x = [], images
        for index, down in enumerate(self.down):
            x = down(functional.max_pool2d(x, 2) if index else x)
            skips.append(x)
        for widen, up, skip in zip(self.widen, self.up, skips[-2::-1], strict=True):
            x = up(torch.cat([skip, widen(x)], dim=1))
        return self.head(x)


def batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """4 images of 128 by 128, and the class of each pixel."""
    return torch.randn(4, 3, 128, 128, generator=generator), torch.randint(4, (4, 128, 128), generator=generator)


def build() -> tuple[nn.Module, tuple[torch.Tensor]]:
    torch.manual_seed(0)
    images, _ = batch(torch.Generator().manual_seed(0))
    return UNet().train(), (images,)


def main(steps: int = 5) -> None:
    model, args = build()
    if not SCHEDULE.exists():  # planned once, then kept with the code
        import remate

        remate.plan(model, args, budget="60%", cost="cpu").save(str(SCHEDULE))
    planned = remate_runtime.apply(model, str(SCHEDULE))  # shares the parameters and buffers of `model`
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        images, classes = batch(generator)
        loss = functional.cross_entropy(planned(images), classes)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
