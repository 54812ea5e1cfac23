"""Write `schema/rows-1.json`: what operators do with rows, for the statement `split`. `schema/README.md` says what it
means.

    python -m tools.row_rules [--check]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from remate_runtime.support.files import write_atomically

FILE = Path(__file__).parents[1] / "schema" / "rows-1.json"
ELEMENTWISE = """
abs add.Scalar add.Tensor bitwise_and.Tensor bitwise_not bitwise_or.Tensor clamp clamp_max clamp_min clone cos
div.Scalar div.Tensor elu elu_backward eq.Scalar eq.Tensor erf exp ge.Scalar ge.Tensor gelu gelu_backward gt.Scalar
gt.Tensor hardsigmoid hardsigmoid_backward hardswish hardswish_backward hardtanh hardtanh_backward le.Scalar le.Tensor
leaky_relu leaky_relu_backward log log1p logical_and logical_not logical_or lt.Scalar lt.Tensor masked_fill.Scalar
maximum minimum mish mish_backward mul.Scalar mul.Tensor native_dropout_backward ne.Scalar ne.Tensor neg
pow.Tensor_Scalar reciprocal relu rsqrt rsub.Scalar rsub.Tensor sigmoid sigmoid_backward silu silu_backward sin softplus
softplus_backward sqrt sub.Scalar sub.Tensor tanh tanh_backward threshold_backward where.self xlogy.Tensor
_to_copy
""".split()
# Whose kernels may round a few elements, or a few rows, otherwise than many: what does not fill a vector, blocks of
# products. `tests/runtime/test_row_rules.py` compares the others bit for bit.
ROUNDS = """
addmm binary_cross_entropy_with_logits bmm convolution convolution_backward elu elu_backward gelu gelu_backward logsumexp mean.dim mish mish_backward mm
native_group_norm native_group_norm_backward native_layer_norm native_layer_norm_backward pow.Tensor_Scalar rsqrt sigmoid silu silu_backward softplus softplus_backward sum.dim_IntList
xlogy.Tensor
""".split()
OTHERS: dict[str, dict[str, Any]] = {
    "_log_softmax": {"rule": "along", "cut": [0], "over": 1, "out": ["rows"]},
    "_log_softmax_backward_data": {"rule": "along", "cut": [0, 1], "over": 2, "out": ["rows"]},
    "_softmax": {"rule": "along", "cut": [0], "over": 1, "out": ["rows"]},
    "_softmax_backward_data": {"rule": "along", "cut": [0, 1], "over": 2, "out": ["rows"]},
    "embedding": {"rule": "along", "cut": [1], "out": ["rows"]},
    "bmm": {"rule": "along", "cut": [0, 1], "leading": 1, "out": ["rows"]},
    "convolution": {"rule": "along", "cut": [0], "leading": 1, "out": ["rows"]},
    "convolution_backward": {"rule": "along", "cut": [0, 1], "leading": 1, "out": ["rows", "sum", "sum"]},
    "cat": {"rule": "along", "cut": [0], "over": 1, "out": ["rows"]},
    "native_layer_norm": {"rule": "along", "cut": [0], "trailing": 1, "out": ["rows", "rows", "rows"]},
    "native_layer_norm_backward": {
        "rule": "along",
        "cut": [0, 1, 3, 4],
        "trailing": 2,
        "out": ["rows", "sum", "sum"],
    },
    "native_group_norm": {"rule": "along", "cut": [0], "leading": 1, "count": 3, "out": ["rows", "rows", "rows"]},
    "native_group_norm_backward": {
        "rule": "along",
        "cut": [0, 1, 2, 3],
        "leading": 1,
        "count": 5,
        "out": ["rows", "sum", "sum"],
    },
    "avg_pool2d": {"rule": "along", "cut": [0], "leading": 1, "out": ["rows"]},
    "avg_pool2d_backward": {"rule": "along", "cut": [0, 1], "leading": 1, "out": ["rows"]},
    "upsample_nearest2d": {"rule": "along", "cut": [0], "leading": 1, "out": ["rows"]},
    "upsample_nearest2d_backward": {"rule": "along", "cut": [0], "leading": 1, "size": 2, "out": ["rows"]},
    "upsample_bilinear2d": {"rule": "along", "cut": [0], "leading": 1, "out": ["rows"]},
    "upsample_bilinear2d_backward": {"rule": "along", "cut": [0], "leading": 1, "size": 2, "out": ["rows"]},
    "slice_backward": {"rule": "along", "cut": [0], "over": 2, "size": 1, "out": ["rows"]},
    "mm": {"rule": "product", "cut": [0, 1]},
    "addmm": {"rule": "product", "cut": [1, 2]},
    "sum.dim_IntList": {"rule": "reduce"},
    "mean.dim": {"rule": "reduce"},
    "amax": {"rule": "reduce"},
    "argmax": {"rule": "reduce"},
    "logsumexp": {"rule": "reduce"},
    "full": {"rule": "sized", "size": 0},
    "new_full": {"rule": "sized", "size": 1},
    "new_zeros": {"rule": "sized", "size": 1},
    "ones": {"rule": "sized", "size": 0},
    "zeros": {"rule": "sized", "size": 0},
    "gather": {"rule": "along", "cut": [0, 2], "over": 1, "out": ["rows"]},
    "scatter.src": {"rule": "along", "cut": [0, 2, 3], "over": 1, "out": ["rows"]},
    "scatter.value": {"rule": "along", "cut": [0, 2], "over": 1, "out": ["rows"]},
    "scatter_add": {"rule": "along", "cut": [0, 2, 3], "over": 1, "out": ["rows"]},
    "binary_cross_entropy_with_logits": {"rule": "elementwise", "reduces": 4},
    "huber_loss": {"rule": "elementwise", "reduces": 2},
    "huber_loss_backward": {"rule": "elementwise", "reduces": 3},
    "mse_loss": {"rule": "elementwise", "reduces": 2},
    "mse_loss_backward": {"rule": "elementwise", "reduces": 3},
    "smooth_l1_loss": {"rule": "elementwise", "reduces": 2},
    "smooth_l1_loss_backward": {"rule": "elementwise", "reduces": 3},
    "nll_loss_forward": {"rule": "loss"},
    "nll_loss_backward": {"rule": "loss_backward"},
    "nll_loss2d_forward": {"rule": "loss"},
    "nll_loss2d_backward": {"rule": "loss_backward"},
    "native_dropout": {"rule": "drawn"},
    "bernoulli.p": {"rule": "drawn"},
}
VIEWS = {
    "view": "reshape",
    "_unsafe_view": "reshape",
    "t": "transpose",
    "transpose.int": "transpose",
    "permute": "permute",
    "squeeze.dim": "squeeze",
    "unsqueeze": "unsqueeze",
    "expand": "expand",
    "detach": "same",
    "alias": "same",
    "slice.Tensor": "slice",
}
_STATISTICS = "it takes statistics of all rows"
BARRIERS = {
    "_native_batch_norm_legit_functional": _STATISTICS,
    "_native_batch_norm_legit.no_stats": _STATISTICS,
    "_batch_norm_with_update_functional": _STATISTICS,
    "native_batch_norm_backward": _STATISTICS,
    "_scaled_dot_product_flash_attention_for_cpu": "its rows are queries, and each reads all keys",
    "_scaled_dot_product_flash_attention": "its rows are queries, and each reads all keys",
    "_scaled_dot_product_efficient_attention": "its rows are queries, and each reads all keys",
    "_scaled_dot_product_cudnn_attention": "its rows are queries, and each reads all keys",
    "max_pool2d_with_indices": "its indices must be read as it returned them",
    "max_pool2d_with_indices_backward": "its indices must be read as they were returned",
    "cumsum": "a row reads those before it",
    "sort": "it orders rows",
}


def table() -> dict[str, Any]:
    """The contents of the file."""
    rules = {f"aten.{name}": {"rule": "elementwise"} for name in ELEMENTWISE}
    rules |= {f"aten.{name}": rule for name, rule in OTHERS.items()}
    rules |= {f"aten.{name}": rules[f"aten.{name}"] | {"rounds": True} for name in ROUNDS}
    return {
        "format": "remate.rows",
        "version": 1,
        "operators": dict(sorted(rules.items())),
        "views": {f"aten.{name}": kind for name, kind in sorted(VIEWS.items())},
        "barriers": {f"aten.{name}": why for name, why in sorted(BARRIERS.items())},
    }


def text() -> bytes:
    """One operator per line."""
    lines = []
    for key, value in table().items():
        if isinstance(value, dict):
            inside = ",\n".join(f"    {json.dumps(name)}: {json.dumps(about)}" for name, about in value.items())
            lines.append(f"  {json.dumps(key)}: {{\n{inside}\n  }}")
        else:
            lines.append(f"  {json.dumps(key)}: {json.dumps(value)}")
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    stale = not FILE.exists() or FILE.read_bytes() != text()
    if parser.parse_args().check:
        return int(stale)
    if stale:
        write_atomically(FILE, text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
