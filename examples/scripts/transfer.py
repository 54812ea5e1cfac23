"""Transfer learning: the head first, on a frozen backbone in evaluation mode, then all layers. A temperature falls from
step to step."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class Classifier(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, stride=2, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(8, classes))
        self.temperature = 2.0

    def forward(self, x):
        return self.head(self.backbone(x)) / self.temperature


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--save", default="")
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Classifier(5)
    # model = remate.auto(model)
    model.backbone.requires_grad_(False)
    optimizer = torch.optim.Adam(model.head.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        model.train()
        if epoch == 0:
            model.backbone.eval()
        elif epoch == 1:
            model.backbone.requires_grad_(True)
            optimizer.add_param_group({"params": model.backbone.parameters(), "lr": 1e-4})
        for step in range(args.steps):
            model.temperature = max(1.0, 0.95 * model.temperature)
            images, labels = torch.rand(6, 3, 12, 12), torch.randint(0, 5, (6,))
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"epoch {epoch}, step {step}: loss {loss.item():.6f}")
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
