"""Models for the tests of the commands, and functions that fail in all possible ways."""

import torch
from torch import nn


def build():
    torch.manual_seed(0)
    layers = [part for _ in range(6) for part in (nn.Linear(64, 64), nn.GELU())]
    return nn.Sequential(*layers), (torch.randn(512, 64),)


def with_keywords():
    model, (x,) = build()
    return model, (), {"input": x}


def other_batch():
    model, _ = build()
    return model, (torch.randn(256, 64),)


def other_activation():
    layers = [part for _ in range(6) for part in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(*layers), (torch.randn(512, 64),)


def other_precision():
    model, (x,) = build()
    return model.double(), (x.double(),)


def one_layer_more():
    model, (x,) = build()
    return nn.Sequential(*model, nn.Linear(64, 8)), (x,)


def one_layer_frozen():
    model, args = build()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    return model, args


def in_evaluation():
    model, args = build()
    return model.eval(), args


def data_dependent():
    class Fickle(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            y = self.layer(x)
            return y if y.sum().item() > 0 else -y

    return Fickle(), (torch.randn(2, 4),)


def raises():
    raise ValueError("the data is not there")


def exits():
    raise SystemExit(3)


def returns_a_model():
    return build()[0]


def returns_four():
    return 1, 2, 3, 4


def returns_no_model():
    return "model", (1,)


def returns_a_tensor_as_args():
    return build()[0], torch.randn(512, 64)


def returns_a_list_as_kwargs():
    return build()[0], (), [1]


not_a_function = 3


def recorded() -> object:
    """A loop with autocast that changes the mode after the call."""
    import remate

    model, args = build()
    with remate.record(model.train(), stop=True) as call, torch.autocast("cpu", torch.bfloat16):
        model(*args)
    model.eval()
    return call


def wide_or_narrow():
    class WideOrNarrow(nn.Module):
        """A model whose step differs for small batches."""

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x):
            return (self.layer(x).relu() if x.shape[0] > 100 else self.layer(x)).pow(2).mean()

    return WideOrNarrow(), (torch.randn(512, 64),)


class Language(nn.Module):
    """A layer and a head of many words, with the loss inside."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layer, self.head = nn.Embedding(512, 32), nn.Linear(32, 32), nn.Linear(32, 512)

    def forward(self, words: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.head(torch.tanh(self.layer(self.embedding(words)))), target)


def language() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return Language(), (torch.arange(256), torch.arange(256))
