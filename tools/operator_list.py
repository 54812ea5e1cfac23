"""The positive list: which operators of torch a schedule file may name, and why the others are left out.

Capture decomposes composite operators. A file therefore names operators that have kernels, whose results are new or
views of an argument, and whose arguments a file can contain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch
from torch._ops import OpOverload

_ARGUMENTS = re.compile(
    r"(Optional\[|List\[)*(Tensor|int|SymInt|float|number|bool|str|"
    r"ScalarType|Layout|Device|MemoryFormat)\]*"
)
_RESULTS = re.compile(r"Tensor|List\[Tensor\]|int|SymInt")
_SPARSE = "of sparse, nested, quantised or packed tensors, which no file holds"
_DEVICE = "of a device or library that capture does not trace for"
_OPTIMIZER = "of optimizers, which are no part of a step"
_INTERNAL = "for torch's own use or its tests"
_STORAGE = "changes or shares storages in a way that the schema does not declare"
_STATISTICS = "writes running statistics though its schema does not say so; capture uses the functional form"
_DATA = "its results have shapes that depend on data"
_STEPS = "takes as many steps as a number among its arguments says"
_INFERENCE = "has no gradient: of inference alone"
# Beginnings of names, after `aten.`.
PREFIXES = {
    **dict.fromkeys(
        """_sparse sparse_ _nested _mkldnn mkldnn_ to_mkldnn quantized_ quantize_per q_ _make_per _to_sparse _cslt
        _convert_indices _convert_weight _dyn_quant _weight_int _empty_per _empty_affine empty_quantized _validate_compressed
        _fused_moving copy_sparse hspmm _spsolve _spdiags dequantize int_repr
        _jagged_to _padded_dense to_padded _pack_padded indices_copy values_copy _indices _values ccol_ col_indices
        crow_indices row_indices indices values _coalesce coalesce _nnz sparse dense_dim _dim _mixed_dtypes _to_dense
        resize_as_sparse""".split(),
        _SPARSE,
    ),
    **dict.fromkeys(
        """miopen_ mps_ _mps _lstm_mps lstm_mps _triton _use_ _cudnn_ctc _cudnn_init _cudnn_rnn_flatten cudnn_affine
        cudnn_grid _nnpack _scaled_dot_product_attention_math_for_mps _scaled_dot_product_fused_attention_overrideable
        convolution_overrideable convolution_backward_overrideable cudnn_convolution _histogramdd slow_conv""".split(),
        _DEVICE,
    ),
    **dict.fromkeys("_foreach _fused_ada _fused_sgd _amp_".split(), _OPTIMIZER),
    **dict.fromkeys(
        """_test _foobar _fw_primal _make_dual _make_dep _has_same _assert _functional_assert _functional_sym sym_constrain
        _linalg_check _new_zeros_with _print _fused_sdp _slow_conv _grid_sampler_2d_cpu slice_inverse is_
        _chunk_cat _compute_linear _reshape_copy""".split(),
        _INTERNAL,
    ),
    **dict.fromkeys(
        "resize set _resize lift _lazy_clone _copy_from _pin_memory _efficientzero from_file _reshape_alias".split(),
        _STORAGE,
    ),
    **dict.fromkeys(
        "native_batch_norm cudnn_batch_norm batch_norm_update batch_norm_gather batch_norm_elemt "
        "batch_norm_stats".split(),
        _STATISTICS,
    ),
    **dict.fromkeys("special_laguerre special_legendre".split(), _STEPS),
    **dict.fromkeys("_transformer_encoder _native_multi_head _embedding_bag_forward_only".split(), _INFERENCE),
}
# Tagged as having results of unknown shape, which is true for some arguments only.
STATIC = {
    **dict.fromkeys(["aten.index.Tensor"], "unknown where an index is a mask"),
    **dict.fromkeys(
        ["aten._ctc_loss", "aten._ctc_loss.Tensor"], "known where lengths are literals, or fill their tensors"
    ),
    "aten.linalg_lstsq": "the shape of the rank alone depends on the driver",
}
# Composite, but with kernels of their own that capture emits.
COMPOSITE_TOO = {
    **dict.fromkeys(["aten.silu_backward", "aten.mish_backward"], "autograd calls it, and the CPU has a kernel"),
    "aten._fused_rms_norm": "autograd calls it, and CUDA has a kernel",
}
# Listed although their names begin like one of those above.
BUT = (
    *("native_batch_norm_backward", "cudnn_batch_norm_backward", "lift_fresh", "lift_fresh_copy"),
    *("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"),
)


def left_out(operator: OpOverload, views: Iterable[str], says_view: bool, name: str) -> str:
    """Why a functional operator is not on the list; "" if it is. name: as in a file. views: operators in the table of
    views."""
    if operator.namespace != "aten":
        return "of torch's reference implementations in Python, which capture does not trace into"
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd")
    if composite and name not in COMPOSITE_TOO:
        return "composite: files name the operators that it is made of"
    bare = name.split(".")[1]
    if bare not in BUT:
        for prefix, why in PREFIXES.items():
            if bare.startswith(prefix):
                return why
    tags = operator.tags
    dynamic = torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags
    if dynamic and name not in STATIC:
        return _DATA
    schema = operator._schema
    arguments = [str(a.type) for a in schema.arguments if str(a.type) != "Optional[Generator]"]
    if not all(_ARGUMENTS.fullmatch(kind) for kind in arguments):
        return "takes what a file cannot spell"
    returns = [str(r.type) for r in schema.returns]
    if not returns or not _RESULTS.fullmatch(returns[0]) or returns[0] in ("int", "SymInt"):
        return "does not return tensors"
    if says_view and name not in views:
        return "a view only sometimes, or of what no file holds"
    return ""
