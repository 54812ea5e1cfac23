"""A denoising diffusion model: a U-Net with time embeddings, noise drawn in the loop, and an average of its weights."""

import argparse
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def timestep_embedding(timesteps, dim):
    freqs = torch.exp(-math.log(10_000) * torch.arange(dim // 2, dtype=torch.float32) / (dim // 2))
    angles = timesteps[:, None].float() * freqs[None].to(timesteps.device)
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class ResBlock(nn.Module):
    def __init__(self, channels_in, channels_out, emb):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, channels_in), nn.GroupNorm(8, channels_out)
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, padding=1)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1)
        self.emb = nn.Linear(emb, 2 * channels_out)
        self.skip = nn.Identity() if channels_in == channels_out else nn.Conv2d(channels_in, channels_out, 1)

    def forward(self, x, emb):
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.emb(F.silu(emb))[:, :, None, None].chunk(2, dim=1)
        h = self.norm2(h) * (1 + scale) + shift
        return self.skip(x) + self.conv2(F.silu(h))


class UNet(nn.Module):
    def __init__(self, channels=16, mults=(1, 2, 2)):
        super().__init__()
        self.channels = channels
        self.time = nn.Sequential(nn.Linear(channels, 4 * channels), nn.SiLU(), nn.Linear(4 * channels, 4 * channels))
        self.stem = nn.Conv2d(1, channels, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        widths, now = [], channels
        for mult in mults:
            self.down.append(ResBlock(now, channels * mult, 4 * channels))
            now = channels * mult
            widths.append(now)
        self.mid = ResBlock(now, now, 4 * channels)
        for width in reversed(widths):
            self.up.append(ResBlock(now + width, width, 4 * channels))
            now = width
        self.out = nn.Sequential(nn.GroupNorm(8, now), nn.SiLU(), nn.Conv2d(now, 1, 3, padding=1))

    def forward(self, x, t):
        emb = self.time(timestep_embedding(t, self.channels))
        h, skips = self.stem(x), []
        for i, block in enumerate(self.down):
            h = block(h, emb)
            skips.append(h)
            if i < len(self.down) - 1:
                h = F.avg_pool2d(h, 2)
        h = self.mid(h, emb)
        for i, block in enumerate(self.up):
            h = block(torch.cat([h, skips.pop()], dim=1), emb)
            if i < len(self.up) - 1:
                h = F.interpolate(h, scale_factor=2, mode="nearest")
        return self.out(h)


class Diffusion:
    def __init__(self, steps=100):
        self.steps = steps
        self.betas = torch.linspace(1e-4, 0.02, steps)
        self.alphas_bar = torch.cumprod(1 - self.betas, 0)

    def loss(self, model, x):
        t = torch.randint(0, self.steps, (x.shape[0],))
        noise = torch.randn_like(x)
        a = self.alphas_bar[t][:, None, None, None]
        return F.mse_loss(model(a.sqrt() * x + (1 - a).sqrt() * noise, t), noise)

    @torch.no_grad()
    def sample(self, model, shape):
        x = torch.randn(shape)
        for i in reversed(range(0, self.steps, 25)):
            eps = model(x, torch.full((shape[0],), i))
            x = (x - self.betas[i] / (1 - self.alphas_bar[i]).sqrt() * eps) / (1 - self.betas[i]).sqrt()
        return x


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--save", default="")
    args = parser.parse_args()
    torch.manual_seed(0)
    images = torch.rand(64, 1, 16, 16) * 2 - 1
    diffusion, model = Diffusion(), UNet()
    # model = remate.auto(model)
    ema = copy.deepcopy(model).requires_grad_(False).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    for step in range(args.steps):
        loss = diffusion.loss(model, images[torch.randint(0, 64, (8,))])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for average, parameter in zip(ema.parameters(), model.parameters(), strict=True):
                average.lerp_(parameter, 0.01)
        print(f"step {step}: loss {loss.item():.6f}")
    sampled = diffusion.sample(ema, (2, 1, 16, 16))
    print(f"samples: mean {sampled.mean().item():.6f}")
    if args.save:
        torch.save({"model": model.state_dict(), "ema": ema.state_dict()}, args.save)


if __name__ == "__main__":
    main()
