"""Small randomly initialised models of many architectures, for tests, benchmarks and examples.

`ZOO[name]` is a `Case`; `ZOO[name].build()` gives `(model, args, kwargs)`, the same on every call. A training step of
any of them takes well under a second on one core, and activations outweigh parameters.
"""

from typing import Any

from .case import Case
from .convolutional import depthwise, regnet, resnet, unet
from .decoders import gpt2, llama, mixture_of_experts, tiny_gpt
from .encoders import bert, t5, two_tower, vit
from .mixers import fourier, mlp_mixer
from .recurrent import gated_convolution, gru, lstm, state_space

# tolerance: largest difference of a gradient, relative to the largest element of eager's gradient. 0.0 means bitwise
# equal with one thread on CPU: every operator runs the same kernel, and sums are taken in eager's order.
ZOO: dict[str, Case] = {
    case.name: case
    for case in (
        Case("gpt2", gpt2, random=True),
        Case("tiny_gpt", tiny_gpt, random=True),
        Case("llama", llama, tolerance=1e-5),  # autograd sums the three uses of a normalised input in another order
        Case("moe", mixture_of_experts, random=True),
        Case("bert", bert, random=True),
        Case("t5", t5, random=True),
        Case("vit", vit),
        Case("two_tower", two_tower),
        Case("resnet", resnet),
        Case("regnet", regnet),
        Case("depthwise", depthwise),
        Case("unet", unet),
        Case("mlp_mixer", mlp_mixer),
        Case("fourier", fourier),
        Case("lstm", lstm),
        Case("gru", gru),
        Case("gated_convolution", gated_convolution),
        Case("state_space", state_space),
    )
}

# Sizes with every operator of a model, in as few copies as repeat: most of the time of a test goes into tracing.
SMALLEST: dict[str, dict[str, Any]] = {
    **{name: {"layers": 2} for name in ("gpt2", "tiny_gpt", "llama", "moe", "bert", "vit", "mlp_mixer")},
    **{name: {"layers": 1} for name in ("t5", "two_tower")},
    **{name: {"blocks": 1} for name in ("resnet", "regnet")},
    **{name: {"length": 4} for name in ("lstm", "gru")},
    "depthwise": {"blocks": 2},
    "fourier": {},
    "gated_convolution": {"layers": 2},
    "unet": {"depth": 2},
    "state_space": {"length": 6},
}

__all__ = ["SMALLEST", "ZOO", "Case"]
