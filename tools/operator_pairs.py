"""Operators whose kernels trust their arguments: they crash, or write out of bounds, on what no forward operator made.

Found by calling every listed operator with indices out of range and shapes that do not fit, and watching the process.
"""

from __future__ import annotations

from typing import Any

_INDICES = "its kernel follows indices, or lengths, from its arguments without checking them"
_SHAPES = "its kernel trusts the shapes of its arguments"
# Listed, but run only if the caller of `apply` permits the operator by name.
PERMISSION = {
    **dict.fromkeys(
        """aten._embedding_bag_backward aten._embedding_bag_dense_backward aten._embedding_bag_per_sample_weights_backward
        aten._ctc_loss aten._ctc_loss.Tensor aten._ctc_loss_backward aten._ctc_loss_backward.Tensor aten.segment_reduce
        aten._segment_reduce_backward aten.linalg_ldl_solve aten.multi_margin_loss_backward
        aten.multilabel_margin_loss_backward aten._index_put_impl aten._embedding_bag""".split(),
        _INDICES,
    ),
    **dict.fromkeys(
        """aten.cudnn_batch_norm_backward aten._flash_attention_forward
        aten._flash_attention_forward.quantized aten._flash_attention_backward aten._efficient_attention_forward
        aten._efficient_attention_backward aten._cudnn_attention_forward aten._cudnn_attention_backward
        aten._scaled_dot_product_flash_attention.quantized aten._cudnn_rnn aten._cudnn_rnn_backward
        aten._thnn_fused_gru_cell aten._thnn_fused_gru_cell_backward aten._thnn_fused_lstm_cell
        aten._thnn_fused_lstm_cell_backward_impl aten._scaled_grouped_mm aten._scaled_grouped_mm_v2
        aten._cholesky_solve_helper aten._masked_softmax_backward aten.batch_norm_backward_elemt aten.batch_norm_backward_reduce""".split(),
        _SHAPES,
    ),
    "aten._linalg_eigvals": "its kernel ends the process where there are infinities or NaNs",
}


def _pair(by: str, outputs: str = "", same: str = "", like: str = "", **more: Any) -> dict[str, Any]:
    """`outputs` and `like`: `argument:number` of an output of the forward operator."""
    numbered = {key: dict(_numbered(text)) for key, text in (("outputs", outputs), ("like", like)) if text}
    forward = {f"aten.{name}": {} for name in by.split()} | more.pop("also", {})
    return {"by": forward, **numbered, "same": same.split(), **more}


def _numbered(text: str) -> list[tuple[str, int]]:
    return [(name, int(number)) for name, number in (entry.split(":") for entry in text.split())]


_POOL = "self kernel_size stride padding dilation ceil_mode"
_ATTENTION = "query key value dropout_p is_causal scale"
_SIZES = {"max_q": ["query", 2], "max_k": ["key", 2]}
_NORMED = {"aten._native_batch_norm_legit_no_training": {"train": False}}
# by: the forward operators, each with further literals (of the backward operator where outputs are named, else its
# own). outputs: arguments that are this output of one of them. same: arguments that it has too, as they were there.
# like: arguments of the shape of its output. renamed: names of the forward operator. sizes: a literal that is the size
# of an argument. last: a list of the last sizes of an argument. empty: safe without elements. `grad` is the first argument, by whatever name. Where
# no argument is an output, the forward operator need not be in the file: what it would make counts.
PAIRS: dict[str, dict[str, Any]] = {
    "aten.max_pool2d_with_indices_backward": _pair("max_pool2d_with_indices", "indices:1", _POOL, "grad:0"),
    "aten.max_pool3d_with_indices_backward": _pair("max_pool3d_with_indices", "indices:1", _POOL, "grad:0"),
    "aten.adaptive_max_pool2d_backward": _pair("adaptive_max_pool2d", "indices:1", "self", "grad:0"),
    "aten.adaptive_max_pool3d_backward": _pair("adaptive_max_pool3d", "indices:1", "self", "grad:0"),
    "aten.fractional_max_pool2d_backward": _pair(
        "fractional_max_pool2d", "indices:1", "self kernel_size output_size", "grad:0"
    ),
    "aten.fractional_max_pool3d_backward": _pair(
        "fractional_max_pool3d", "indices:1", "self kernel_size output_size", "grad:0"
    ),
    "aten.native_layer_norm_backward": _pair(
        "",
        "",
        "input normalized_shape weight bias",
        "grad:0 mean:1 rstd:2",
        also={"aten.native_layer_norm": {"eps": 1.0}},
    ),
    "aten.native_group_norm_backward": _pair(
        "",
        "",
        "input weight N C HxW group",
        "grad:0 mean:1 rstd:2",
        also={"aten.native_group_norm": {"bias": None, "eps": 1.0}},
    ),
    "aten._fused_rms_norm_backward": _pair(
        "", "", "input normalized_shape weight", "grad:0 rstd:1", also={"aten._fused_rms_norm": {"eps": None}}
    ),
    "aten.native_batch_norm_backward": _pair(
        "_native_batch_norm_legit_functional _native_batch_norm_legit.no_stats",
        "save_mean:1 save_invstd:2",
        "input weight running_mean running_var train",
        "grad:0",
        also=_NORMED,
        renamed={"train": "training"},
    ),
    "aten.batch_norm_backward": _pair(
        "",
        "save_mean:1 save_var:2 reserve:3",
        "input weight running_mean running_var eps",
        "grad:0",
        also={"aten._batch_norm_with_update_functional": {"update": True}},
    ),
    "aten.mkldnn_rnn_layer_backward": _pair(
        "mkldnn_rnn_layer",
        "output:0 hy_:1 cy_:2 workspace:3",
        "input weight1 weight2 weight3 weight4 hx_ cx_tmp reverse mode hidden_size has_biases train batch_sizes "
        "batch_first",
        "grad_output:0 grad_hy:1 grad_cy:2",
        renamed={**{f"weight{n}": f"weight{n - 1}" for n in range(1, 5)}, "cx_tmp": "cx_"},
    ),
    "aten._cdist_backward": _pair(
        "", "", "x1 x2 p", "grad:0 cdist:0", also={"aten._cdist_forward": {"compute_mode": None}}
    ),
    "aten._pdist_backward": _pair("_pdist_forward", "", "self p", "grad:0 pdist:0"),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _pair(
        "_scaled_dot_product_flash_attention_for_cpu", "", "query key value", "grad:0 out:0 logsumexp:1"
    ),
    "aten._scaled_dot_product_flash_attention_backward": _pair(
        "_scaled_dot_product_flash_attention",
        "out:0 logsumexp:1 cum_seq_q:2 cum_seq_k:3 philox_seed:6 philox_offset:7",
        _ATTENTION,
        "grad:0",
        sizes=_SIZES,
    ),
    "aten._scaled_dot_product_cudnn_attention_backward": _pair(
        "_scaled_dot_product_cudnn_attention",
        "out:0 logsumexp:1 cum_seq_q:2 cum_seq_k:3 philox_seed:6 philox_offset:7",
        f"{_ATTENTION} attn_bias",
        "grad:0",
        sizes=_SIZES,
    ),
    "aten._scaled_dot_product_efficient_attention_backward": _pair(
        "_scaled_dot_product_efficient_attention",
        "out:0 logsumexp:1 philox_seed:2 philox_offset:3",
        f"{_ATTENTION} attn_bias",
        "grad:0",
    ),
    "aten.lu_unpack": _pair("linalg_lu_factor_ex", "LU_data:0 LU_pivots:1"),
    **{
        f"aten.avg_pool{n}d_backward": _pair(
            f"avg_pool{n}d",
            "",
            "self kernel_size stride padding ceil_mode count_include_pad divisor_override",
            "grad:0",
        )
        for n in (2, 3)
    },
    **{
        f"aten.{name}_backward_data": _pair(
            "",
            "",
            "output dim",
            "grad:0 output:0",
            also={f"aten.{name}": {"half_to_float": False}},
            renamed={"output": "self"},
            empty=True,
        )
        for name in ("_softmax", "_log_softmax")
    },
    "aten.gelu_backward": _pair("gelu", "", "self", "grad:0"),
    "aten._adaptive_avg_pool2d_backward": _pair(
        "_adaptive_avg_pool2d", "", "self", "grad:0", last={"output_size": ["grad", 2]}
    ),
    "aten._adaptive_avg_pool3d_backward": _pair(
        "_adaptive_avg_pool3d", "", "self", "grad:0", last={"output_size": ["grad", 3]}
    ),
    **{
        f"aten.{name}_backward": _pair(name, "", "input grid interpolation_mode padding_mode align_corners", "grad:0")
        for name in ("grid_sampler_2d", "grid_sampler_3d")
    },
    **{
        f"aten.{kind}_pad{n}d_backward": _pair(f"{kind}_pad{n}d", "", "self padding", "grad:0")
        for kind in ("reflection", "replication")
        for n in (1, 2, 3)
    },
}
# Literals that an operator may have, because with others its kernel follows indices without checking them.
LITERALS: dict[str, dict[str, Any]] = {"aten.embedding_dense_backward": {"scale_grad_by_freq": False}}
