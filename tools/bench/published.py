"""Compares times of training steps that others measured on GPUs with the times that the roofline model predicts.

    python -m tools.bench.published                             # about a minute on one core
    python -m tools.bench.published mpt-1b-h100 resnet50-amp
    python -m tools.bench.published -o tools/bench/results/published.txt

`tests/docs/test_published.py` fails if a prediction in that file is not what the code gives. A prediction is the step of
CUDA, captured without a GPU, with what runs again. It has no optimizer, no loading of data and no communication, so it
should be below what was measured. Communication: what FSDP would take at the rate of the link if no computation hid it.

Run again: nothing; whole layers (`torch.utils.checkpoint`); or all of a layer but attention and every other product
(torchtitan's selective checkpointing by operators).
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from remate.capture.captured import Captured
from remate.profile.devices import DEVICES
from tests.models.case import Built

from .absent_gpu import step_on
from .models import on_meta, resnet
from .text import environment, selection, table

Repeated = Literal["nothing", "layers", "selective"]
_FEW = 2  # layers
_RANKS = 8  # of sharded steps
_LAYER = re.compile(r"\b(?:layers|layer|h)\.\d+\b")


class Published(msgspec.Struct, frozen=True):
    """A measured step.

    build: returns the model with a number of layers, and its inputs. layers: of the measured model; 0 for the whole
    model, whatever the number. units: samples or tokens of a step on one GPU. rate: published, per second and GPU.
    sharded: number of parameters that FSDP shards.
    """

    name: str
    describe: str
    gpu: str
    build: Callable[[int], Built]
    layers: int
    units: int
    rate: float
    repeated: Repeated
    source: str
    sharded: int = 0

    @property
    def communication(self) -> float:
        """Milliseconds that FSDP gathers parameters twice and reduces gradients once, in bf16, at the rate of the link."""
        moved = 3 * 2 * self.sharded * (_RANKS - 1) / _RANKS
        return 1e3 * moved / DEVICES[self.gpu].link.bandwidth

    @property
    def measured(self) -> float:
        """Milliseconds of a step."""
        return 1e3 * self.units / self.rate


class Layer(nn.Module):
    """A layer of GPT. written_out: attention as products and a softmax, with dropout, as before fused kernels."""

    def __init__(self, width: int, heads: int, dropout: float, written_out: bool) -> None:
        super().__init__()
        self.heads, self.dropout, self.written_out = heads, dropout, written_out
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(self.norm_1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.written_out:
            mask = torch.full((x.shape[1], x.shape[1]), float("-inf"), dtype=x.dtype, device=x.device).triu(1)
            scores = (query @ key.transpose(-2, -1) + mask).softmax(-1)
            mixed = F.dropout(scores, self.dropout) @ value
        else:
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + F.dropout(self.out(mixed.transpose(1, 2).flatten(2)), self.dropout)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm_2(x)))), self.dropout)


class Decoder(nn.Module):
    """GPT with a tied head. Returns the loss."""

    def __init__(
        self, layers: int, width: int, heads: int, words: int, length: int, dropout: float, written_out: bool
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*(Layer(width, heads, dropout, written_out) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places.weight
        scores = F.linear(self.norm(self.layers(x)), self.words.weight)
        return F.cross_entropy(scores[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def _decoder(layers: int, width: int, heads: int, words: int, batch: int, old: bool = False) -> Built:
    model = Decoder(layers, width, heads, words, 2048, 0.1 if old else 0.0, old)
    return model.bfloat16(), (torch.zeros(batch, 2048, dtype=torch.long),), {}


def llama_8b(layers: int) -> Built:
    from transformers import LlamaConfig, LlamaForCausalLM

    size: dict[str, Any] = {"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336}
    size |= {"num_hidden_layers": layers, "num_attention_heads": 32, "num_key_value_heads": 8}
    config = LlamaConfig(**size, **{"max_position_embeddings": 8192, "use_cache": False})
    ids = torch.zeros(2, 8192, dtype=torch.long)
    model: nn.Module = LlamaForCausalLM(config)
    return model.bfloat16(), (), {"input_ids": ids, "labels": ids}


class Cast(nn.Module):
    """Runs a model under autocast to float16, and returns its loss."""

    def __init__(self, model: nn.Module, loss: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, x: torch.Tensor, *targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, torch.float16):
            return self.loss(self.model(x), *targets)


def _resnet50(cast: bool) -> Built:
    images, classes = torch.zeros(256, 3, 224, 224), torch.zeros(256, dtype=torch.long)
    model: Any = resnet((3, 4, 6, 3))
    if not cast:
        return model, (images,), {}
    channels_last = torch.channels_last
    return (
        Cast(model.to(memory_format=channels_last), F.cross_entropy),
        (images.to(memory_format=channels_last), classes),
        {},
    )


class Masked(nn.Module):
    """BERT-large with the head for 20 masked words of each sequence, the only ones whose scores are computed."""

    def __init__(self, layers: int) -> None:
        from transformers import BertConfig, BertModel

        super().__init__()
        size: dict[str, Any] = {"hidden_size": 1024, "num_hidden_layers": layers, "num_attention_heads": 16}
        config = BertConfig(**size, **{"intermediate_size": 4096, "attn_implementation": "eager"})
        self.bert = BertModel(config, add_pooling_layer=False)
        self.dense, self.norm = nn.Linear(1024, 1024), nn.LayerNorm(1024)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.bert(ids).last_hidden_state[:, :20].flatten(0, 1)
        return F.linear(self.norm(F.gelu(self.dense(x))), self.bert.embeddings.word_embeddings.weight)


def _bert(layers: int) -> Built:
    words = torch.zeros(256 * 20, dtype=torch.long)
    return Cast(Masked(layers), F.cross_entropy), (torch.zeros(256, 128, dtype=torch.long), words), {}


_FOUNDRY = "llm-foundry 8c8dd48f, scripts/train/benchmarking/README.md, 8 GPUs"
_EXAMPLES = "DeepLearningExamples 729963dd, "
# A GPT-3-like model of 24 layers of 2304: floating-point operations of a sequence with one forward more, formula 3 of
# the paper, by 137 TFLOP/s per GPU in its table 1.
_MEGATRON = 96 * 2048 * 24 * 2304**2 * (1 + 2048 / (6 * 2304) + 51200 / (16 * 24 * 2304))

PUBLISHED: dict[str, Published] = {
    row.name: row
    for row in (
        Published(
            "mpt-1b-h100",
            "MPT 1B, 14×2048 tokens, bf16, FSDP",
            "h100",
            lambda layers: _decoder(layers, 2048, 16, 50368, 14),
            24,
            14 * 2048,
            45455,
            "nothing",
            _FOUNDRY,
            sharded=1_315_950_592,
        ),
        Published(
            "mpt-7b-h100",
            "MPT 7B, 6×2048 tokens, bf16, FSDP",
            "h100",
            lambda layers: _decoder(layers, 4096, 32, 50368, 6),
            32,
            6 * 2048,
            10643,
            "nothing",
            _FOUNDRY,
            sharded=6_658_859_008,
        ),
        Published(
            "llama-8b-h100",
            "Llama 3.1 8B, 2×8192 tokens, bf16, FSDP; H100 with 2.4 TB/s and 500 W",
            "h100",
            llama_8b,
            32,
            2 * 8192,
            5762,
            "selective",
            "torchtitan b5bcd76c, benchmarks/llama3_h100_202412_torchtitan.md, table 1",
            sharded=8_030_261_248,
        ),
        Published(
            "mpt-1b-a100",
            "MPT 1B, 14×2048 tokens, bf16, FSDP",
            "a100",
            lambda layers: _decoder(layers, 2048, 16, 50368, 14),
            24,
            14 * 2048,
            20513,
            "nothing",
            _FOUNDRY,
            sharded=1_315_950_592,
        ),
        Published(
            "mpt-7b-a100",
            "MPT 7B, 6×2048 tokens, bf16, FSDP",
            "a100",
            lambda layers: _decoder(layers, 4096, 32, 50368, 6),
            32,
            6 * 2048,
            4641,
            "nothing",
            _FOUNDRY,
            sharded=6_658_859_008,
        ),
        Published(
            "gpt-1.7b-a100",
            "Megatron-LM GPT 1.7B, 8 sequences of 2048, dropout, attention not fused",
            "a100",
            lambda layers: _decoder(layers, 2304, 24, 51200, 8, old=True),
            24,
            8,
            137e12 / _MEGATRON,
            "layers",
            "D. Narayanan et al., arXiv:2104.04473, table 1; 32 GPUs",
        ),
        Published(
            "bert-large-a100",
            "BERT-large, 256×128 words, float16 autocast",
            "a100",
            _bert,
            24,
            256,
            580,
            "nothing",
            _EXAMPLES + "PyTorch/LanguageModeling/BERT, pre-training, 1 GPU",
        ),
        Published(
            "resnet50-a100",
            "ResNet-50, 256 images, TF32",
            "a100",
            lambda _: _resnet50(cast=False),
            0,
            256,
            938,
            "nothing",
            _EXAMPLES + "PyTorch/Classification/ConvNets/resnet50v1.5, 1 GPU",
        ),
        Published(
            "resnet50-amp-a100",
            "ResNet-50, 256 images, channels last, float16 autocast",
            "a100",
            lambda _: _resnet50(cast=True),
            0,
            256,
            2470,
            "nothing",
            _EXAMPLES + "PyTorch/Classification/ConvNets/resnet50v1.5, 1 GPU",
        ),
    )
}


def predicted(row: Published) -> float:
    """Return the milliseconds of a step. Equal layers take equal times, so a few are enough."""
    few = _of(row, _FEW)
    return few + (row.layers - _FEW) * (_of(row, _FEW + 1) - few) if row.layers else few


def _of(row: Published, layers: int) -> float:
    built = on_meta(lambda: row.build(layers))()
    # all of these were measured with this kernel, if with a fused one; today's torch runs cuDNN's on an H100
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        captured = step_on(row.gpu, built).captured
    ns = sum(op.ns for op in captured.graph.operations)
    return (ns + sum(_again(captured, row.repeated))) / 1e6


def _again(captured: Captured, repeated: Repeated) -> Iterator[int]:
    """Yield the times of operations of layers that run again."""
    products: Counter[str] = Counter()
    forward = captured.graph.operations[: captured.graph.backward_start]
    for op, module in zip(forward, captured.modules, strict=False):
        layer = _LAYER.search(module)
        if layer is None or repeated == "nothing":
            continue
        if repeated == "selective":
            product = op.op in ("aten.mm", "aten.addmm")
            products[layer[0]] += product
            if "attention" in op.op or (product and products[layer[0]] % 2):
                continue
        yield op.ns


def shown(row: Published, milliseconds: float) -> list[str]:
    """Return the cells of a row."""
    error = milliseconds / row.measured - 1
    return [
        row.describe,
        row.gpu,
        row.repeated,
        f"{row.measured:.0f} ms",
        f"{milliseconds:.0f} ms",
        f"{error:+.0%}",
        f"{row.communication:.0f} ms" if row.sharded else "-",
        row.source,
    ]


HEAD = ["step", "GPU", "runs again", "published", "predicted", "error", "communication", "source"]


def main() -> None:
    chosen, output = selection(__doc__, PUBLISHED, "row")
    torch.set_num_threads(1)
    rows = [HEAD]
    with contextlib.suppress(KeyboardInterrupt):
        for name in chosen:
            rows.append(shown(PUBLISHED[name], predicted(PUBLISHED[name])))
            print("  ".join(rows[-1]), flush=True)
    text = f"python -m tools.bench.published; {environment()}\n\n{table(rows)}\n"
    if output:
        output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
