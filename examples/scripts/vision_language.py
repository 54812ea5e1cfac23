"""A vision-language model: a vision transformer, a projection, and a decoder whose image tokens are replaced; two
learning rates."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

IMAGE, PAD = 1, 0


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.gate, self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x, mask=None):
        B, T, C = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class ViT(nn.Module):
    def __init__(self, dim=32, depth=2, heads=4, patch=8, size=32):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, patch, patch)
        self.position = nn.Parameter(torch.randn(1, (size // patch) ** 2, dim) * 0.02)
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(depth)])

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            x = block(x)
        return x


class ModalityProjector(nn.Module):
    """Pixel shuffle: four tokens of the image become one of the language model."""

    def __init__(self, dim, out, factor=2):
        super().__init__()
        self.factor, self.proj = factor, nn.Linear(dim * factor**2, out, bias=False)

    def forward(self, x):
        B, N, C = x.shape
        side, f = int(N**0.5), self.factor
        x = x.view(B, side // f, f, side // f, f, C).permute(0, 1, 3, 2, 4, 5).reshape(B, N // f**2, C * f**2)
        return self.proj(x)


class VisionLanguageModel(nn.Module):
    def __init__(self, vocab=160, dim=48, depth=2, heads=4):
        super().__init__()
        self.vision_encoder, self.MP = ViT(), ModalityProjector(32, dim)
        self.token_embedding = nn.Embedding(vocab, dim)
        self.decoder = nn.ModuleList([Block(dim, heads) for _ in range(depth)])
        self.norm = nn.RMSNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, input_ids, images, attention_mask=None, targets=None):
        image_embd = self.MP(self.vision_encoder(images))
        token_embd = self.token_embedding(input_ids)
        where = (input_ids == IMAGE).unsqueeze(-1).expand_as(token_embd)
        x = token_embd.masked_scatter(where, image_embd.to(token_embd.dtype))
        T = x.size(1)
        mask = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()[None, None]
        if attention_mask is not None:
            mask = mask & attention_mask[:, None, None, :].bool()
        for block in self.decoder:
            x = block(x, mask)
        logits = self.head(self.norm(x))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.reshape(-1, logits.size(-1)), targets.reshape(-1), ignore_index=-100)
        return logits, loss


def get_batch(size=6):
    images = torch.rand(size, 3, 32, 32)
    text = torch.randint(2, 160, (size, 20))
    lengths = torch.randint(10, 21, (size,))
    text[torch.arange(20)[None] >= lengths[:, None]] = PAD
    ids = torch.cat([torch.full((size, 4), IMAGE), text], dim=1)
    targets = ids.roll(-1, 1).masked_fill(ids.roll(-1, 1) <= IMAGE, -100)
    targets[:, -1] = -100
    return ids, images, (ids != PAD).long(), targets


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--save", default="")
    args = parser.parse_args()
    torch.manual_seed(0)
    model = VisionLanguageModel()
    # model = remate.auto(model)
    backbone = [p for name, p in model.named_parameters() if not name.startswith("MP.")]
    groups = [{"params": model.MP.parameters(), "lr": 5e-3}, {"params": backbone, "lr": 5e-4}]
    optimizer = torch.optim.AdamW(groups)
    for step in range(args.steps):
        input_ids, images, attention_mask, targets = get_batch()
        optimizer.zero_grad()
        _, loss = model(input_ids, images, attention_mask=attention_mask, targets=targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"step {step}: loss {loss.item():.6f}")
    model.eval()
    with torch.inference_mode():
        logits, _ = model(*get_batch(2)[:3])
    print(f"answer: {logits[:, -1].argmax(-1).tolist()}")
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
