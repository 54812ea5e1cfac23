"""Plans steps of models for an H100 that is absent, beside full and selective checkpointing.

    python -m tools.bench.gpu_steps                         # all models, ten minutes of CPU time
    python -m tools.bench.gpu_steps vit-l resnet50
    python -m tools.bench.gpu_steps -o tools/bench/results/gpu_steps.txt

`tests/docs/test_gpu_steps.py` fails if peaks, times or overheads in that file are not what the code gives. The step is
that of CUDA, captured without a GPU; costs are those of the roofline models of H100 and H200. No GPU ran it.

Beside: parameters and buffers. Peak: beside them, with gradients. The same simulator judges every row. Full:
each repeated block runs again as a whole. Selective: all of it but attention and every other matrix product, as
torchtitan does. Overhead: of the time without recomputation on an H100. Budgets are shares of the peak without
recomputation; "at full" and "at selective" are the peaks of these two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import torch
from torch import nn

from remate.api.options import PlanOptions
from remate.budget import parse_budget
from remate.errors import InfeasibleError
from remate.schedule_tools.addresses import reserved
from remate.strategy import Candidate, Context, Deadline, Request, StepInstance, candidates, solve
from remate.strategy.registry import strategy
from remate_runtime.flat_step import Graph
from remate_runtime.link import link
from tests.models.case import Built

from .absent_gpu import step_on, time_on
from .diffusion_unet import DiffusionUnet
from .models import on_meta, resnet
from .published import Cast, llama_8b
from .text import environment, selection, table

BUDGETS = ("70%", "50%", "30%")
HEAD = ["", "peak", "time", "overhead", "bound"]


class GpuStep(msgspec.Struct, frozen=True):
    """A step. build: returns the model and its inputs. shards: ranks that FSDP2 divides each parameter of the modules
    `sharded` over; 0 for one GPU. measured: GiB that others measured as reserved, with selective checkpointing."""

    name: str
    describe: str
    build: Callable[[], Built]
    sharded: str = ""
    shards: int = 0
    measured: float = 0.0
    source: str = ""


def _decoder(kind: str, tokens: int, **size: int | None) -> Built:
    import transformers

    config: Any = getattr(transformers, f"{kind}Config")(**size, use_cache=False, max_position_embeddings=8192)
    model: Any = getattr(transformers, f"{kind}ForCausalLM")(config)
    ids = torch.zeros(1, tokens, dtype=torch.long)
    return model.bfloat16(), (), {"input_ids": ids, "labels": ids}


def _llama(layers: int, width: int, inner: int, heads: int, tokens: int = 8192) -> Callable[[], Built]:
    size = {"num_hidden_layers": layers, "hidden_size": width, "intermediate_size": inner, "vocab_size": 128256}
    return lambda: _decoder("Llama", tokens, **size, num_attention_heads=heads, num_key_value_heads=8)


def _mixtral() -> Built:
    size = {"num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 32000}
    return _decoder("Mixtral", 4096, **size, num_attention_heads=32, num_key_value_heads=8)


def _deepseek() -> Built:
    """DeepSeek-V2-Lite (arXiv:2405.04434, appendix B): latent attention with heads of 192 for queries and keys and of 128
    for values, one dense layer, and 26 with 6 of 64 experts and two that are shared."""
    attention = {
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    }
    experts = {"moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6}
    size = {"num_hidden_layers": 27, "hidden_size": 2048, "intermediate_size": 10944, "vocab_size": 102400}
    groups = {"first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
    return _decoder("DeepseekV2", 4096, **size, **attention, **experts, **groups, num_attention_heads=16)


class _Vit(nn.Module):
    """ViT-L/16, which returns its loss."""

    def __init__(self) -> None:
        from transformers import ViTConfig, ViTForImageClassification

        super().__init__()
        size: dict[str, Any] = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
        size |= {"intermediate_size": 4096, "num_labels": 1000}
        self.vit = ViTForImageClassification(ViTConfig(**size))

    def forward(self, images: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.vit(pixel_values=images).logits.float(), classes)


def _vit() -> Built:
    return _Vit().bfloat16(), (torch.zeros(64, 3, 224, 224, dtype=torch.bfloat16), torch.zeros(64).long()), {}


def _resnet50() -> Built:
    last, model = torch.channels_last, resnet((3, 4, 6, 3))
    images = torch.zeros(256, 3, 224, 224).to(memory_format=last)
    loss = nn.functional.cross_entropy
    return Cast(model.to(memory_format=last), loss), (images, torch.zeros(256).long()), {}  # pyright: ignore


def _unet() -> Built:
    images, words = torch.zeros(8, 4, 64, 64, dtype=torch.bfloat16), torch.zeros(8, 77, 768, dtype=torch.bfloat16)
    return DiffusionUnet().bfloat16(), (images, torch.zeros(8), words, torch.zeros_like(images)), {}


_LAYERS = "model.layers.*"
_TORCHTITAN = "torchtitan b5bcd76c, benchmarks/llama3_h100_202412_torchtitan.md, table 1"
STEPS: dict[str, GpuStep] = {
    step.name: msgspec.structs.replace(step, build=on_meta(step.build))
    for step in (
        GpuStep("vit-l", "ViT-L/16, 64 images, bf16", _vit),
        GpuStep("resnet50", "ResNet-50, 256 images, channels last, float16 autocast", _resnet50),
        GpuStep("diffusion-unet", "U-Net as of Stable Diffusion 1, 8 latents of 64×64, bf16", _unet),
        GpuStep(
            "llama3-8b", "Llama 3 8B, 2×8192 tokens, bf16, 8 ranks", lambda: llama_8b(32), _LAYERS, 8, 82.4, _TORCHTITAN
        ),
        GpuStep("mixtral-8x7b", "Mixtral 8x7B, 4096 tokens, bf16, 8 ranks", _mixtral, _LAYERS, 8),
        GpuStep("deepseek-v2-lite", "DeepSeek-V2-Lite 16B, 4096 tokens, bf16, 8 ranks", _deepseek, _LAYERS, 8),
        GpuStep("llama3-70b", "Llama 3 70B, 8192 tokens, bf16, 64 ranks", _llama(80, 8192, 28672, 64), _LAYERS, 64),
        GpuStep(
            "llama3-405b", "Llama 3 405B, 8192 tokens, bf16, 512 ranks", _llama(126, 16384, 53248, 128), _LAYERS, 512
        ),
    )
}


class Prepared(msgspec.Struct, frozen=True):
    """A captured step. about: two lines of text."""

    about: str
    instance: StepInstance


def prepared(step: GpuStep) -> Prepared:
    """Capture a step for an H100, with the time on an H200."""
    options = PlanOptions(fsdp=step.sharded, shards=step.shards) if step.shards else PlanOptions()
    hierarchy = step_on("h100", step.build(), options)
    graph, instance = hierarchy.captured.graph, StepInstance(hierarchy.captured.graph, hierarchy.parts)
    elsewhere = time_on("h200", graph)
    base, count = instance.baseline, sum(not op.view for op in graph.operations)
    beside = sum(graph.nbytes(at) for at, value in enumerate(graph.values) if value.kind in ("parameter", "buffer"))
    about = (
        f"{step.name}: {step.describe}; {count:,} operations; {beside / (step.shards or 1) / 2**30:.1f} GiB beside; without recomputation "
        f"{base.peak / 2**30:.1f} GiB, {base.time / 1e6:.1f} ms on an H100, {elsewhere / 1e6:.1f} ms on an H200"
    )
    return Prepared(about, instance)


def checkpointed(instance: StepInstance) -> dict[str, Candidate]:
    """Return the step with full and with selective checkpointing."""
    blocks = strategy("checkpoint-blocks")
    with Deadline() as deadline:
        context = Context(deadline, instance.baseline.time)
        full = min(candidates(blocks, instance, Request(instance.floor), context), key=lambda c: c.peak)
    saved = set(_saved(instance.graph, [run.op for run in full.recomputes]))
    kept = tuple(run for run in full.recomputes if run.op not in saved)
    return {"full": full, "selective": instance.judged(kept, "selective")}


def _saved(graph: Graph, runs: Sequence[int]) -> Iterator[int]:
    """Yield the attention and every other product among operations."""
    products: Counter[str] = Counter()
    for at in sorted(runs):
        name = graph.operations[at].op
        products["mm"] += (product := name in ("aten.mm", "aten.addmm"))
        if "attention" in name or (product and products["mm"] % 2):
            yield at


def rows(instance: StepInstance, budgets: Sequence[str] = BUDGETS) -> Iterator[list[str]]:
    """Yield the rows of a step."""
    base, others = instance.baseline, checkpointed(instance)
    limits = [(text, parse_budget(text).resolve(base.peak)) for text in budgets]
    for name, other in others.items():
        yield [f"{name} checkpointing", *_cells(other, base), ""]
        limits.append((f"remate, at {name}", other.peak))
    for text, limit in limits:
        label = text if text.startswith("remate") else f"remate, {text}"
        try:
            ours = solve(instance, Request(limit), time_limit=60)
        except InfeasibleError:
            yield [label, "-", "-", "does not fit", ""]
            continue
        yield [label, *_cells(ours, base), f"{ours.lower_bound / base.time - 1:+.1%}"]


def measured(step: GpuStep, instance: StepInstance) -> str:
    """Return the memory that others measured beside the prediction, as a line; "" if there is none."""
    if not step.measured:
        return ""
    plan, graph = checkpointed(instance)["selective"], instance.judge
    used = reserved(link(graph, plan.recomputes))
    assert used is not None
    numbers = sum(value.type.numel for value in graph.values if value.kind == "parameter")
    state = 3 * 4 * numbers / step.shards
    predicted = (used.plain.reserved + state) / 2**30
    return (
        f"Reserved with selective checkpointing: measured {step.measured} GiB; predicted {predicted:.1f} GiB "
        f"({predicted / step.measured - 1:+.0%}), of which {state / 2**30:.1f} GiB parameters and Adam's state in f32; "
        f"{step.source}\n"
    )


def _cells(plan: Any, base: Candidate) -> list[str]:
    share = f"{plan.peak / 2**30:.1f} GiB ({plan.peak / base.peak:.0%})"
    return [share, f"{plan.time / 1e6:.1f} ms", f"{plan.time / base.time - 1:+.1%}"]


def main() -> None:
    chosen, output = selection(__doc__, STEPS, "step")
    torch.set_num_threads(1)
    text = [
        f"python -m tools.bench.gpu_steps {' '.join(chosen)}; {environment()}",
        (__doc__ or "").split("\n\n")[-1],
    ]
    for name in chosen:
        step = prepared(STEPS[name])
        lines = table([HEAD, *rows(step.instance)])
        text.append(f"{step.about}\n{lines}\n{measured(STEPS[name], step.instance)}")
        print(text[-1], flush=True)
        if output:
            output.write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
