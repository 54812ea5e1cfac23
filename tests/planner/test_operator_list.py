"""The list of operators that a file may name: wide enough for models that nobody has tried, and none of them aliases
unseen."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from remate_runtime.operators import OPERATORS, PAIRED, PERMISSION, VIEWS
from tools import operator_tables

# Overloads that models of transformers, timm and torchvision come to: by hand, so that no rule of the tool is its own
# judge.
FAMILIES = """
add.Tensor add.Scalar sub.Tensor rsub.Scalar mul.Tensor mul.Scalar div.Tensor div.Scalar div.Tensor_mode pow.Tensor_Scalar pow.Tensor_Tensor
neg exp log log2 log1p expm1 sqrt rsqrt reciprocal abs sign sin cos tan tanh sigmoid relu gelu silu silu_backward elu leaky_relu hardtanh
hardswish hardsigmoid softplus mish mish_backward erf erfinv floor ceil round trunc clamp clamp.Tensor maximum minimum where.self
eq.Tensor eq.Scalar ne.Scalar lt.Tensor le.Scalar gt.Scalar ge.Tensor logical_and logical_or logical_not bitwise_and.Tensor bitwise_not
isnan isinf any all any.dim sum sum.dim_IntList mean mean.dim amax amin max.dim min.dim argmax argmin prod prod.dim_int cumsum cumprod logcumsumexp
var.correction var_mean.correction std.correction linalg_vector_norm logsumexp topk sort sort.stable
mm bmm addmm baddbmm mv dot addmv convolution convolution_backward _to_copy clone copy fill.Scalar zeros ones full arange arange.start_step
zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty scalar_tensor linspace eye tril triu
view _unsafe_view expand permute transpose.int t unsqueeze squeeze.dim squeeze.dims select.int slice.Tensor split.Tensor split_with_sizes unbind.int
as_strided diagonal unfold view_as_real view_as_complex real imag cat stack repeat flip roll constant_pad_nd index.Tensor index_put index_select
gather scatter.src scatter.value scatter_add scatter_reduce.two masked_fill.Scalar masked_fill.Tensor index_add index_copy embedding
embedding_dense_backward native_dropout native_dropout_backward bernoulli bernoulli.p rand rand_like randn randn_like randint multinomial
native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward _native_batch_norm_legit_functional
native_batch_norm_backward _native_batch_norm_legit_no_training _batch_norm_with_update_functional batch_norm_backward _fused_rms_norm _fused_rms_norm_backward
_softmax _softmax_backward_data _log_softmax _log_softmax_backward_data _safe_softmax nll_loss_forward nll_loss_backward nll_loss2d_forward
mse_loss mse_loss_backward smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits
max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward
adaptive_max_pool2d avg_pool3d max_pool3d_with_indices reflection_pad2d replication_pad2d upsample_nearest2d upsample_bilinear2d
upsample_bicubic2d upsample_trilinear3d upsample_linear1d grid_sampler_2d grid_sampler_3d pixel_shuffle im2col col2im
_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward
_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention
_fft_r2c _fft_c2r _fft_c2c complex polar _conj _cdist_forward _weight_norm_interface _grouped_mm _scaled_mm _int_mm
linalg_qr _linalg_svd _linalg_eigh _linalg_solve_ex linalg_lu_factor_ex linalg_cholesky_ex linalg_inv_ex linalg_solve_triangular
_prelu_kernel glu rrelu_with_noise_functional threshold_backward tanh_backward sigmoid_backward gelu_backward select_backward slice_backward
""".split()  # fmt: skip
COMPOSITE = {"real", "imag"}  # views of views, which capture names


def test_it_is_wide() -> None:
    missing = {f"aten.{name}" for name in FAMILIES} - OPERATORS - PERMISSION.keys()
    assert missing == {f"aten.{name}" for name in COMPOSITE}


def test_it_is_not_wider_than_what_is_functional() -> None:
    operators = {operator_tables.name(operator): operator for operator in operator_tables.functional()}
    for name in OPERATORS | PERMISSION.keys():
        if name in operators:  # another version of torch may lack one
            returns = [str(r.type) for r in operators[name]._schema.returns]
            assert returns[0] in ("Tensor", "List[Tensor]"), name
            assert not operator_tables.says_view(operators[name]) or name in VIEWS, name
    assert len(OPERATORS & operators.keys()) > 600


def test_pairs_are_of_listed_operators() -> None:
    for name, pair in PAIRED.items():
        assert name in OPERATORS
        live = overload(name)
        arguments = {a.name for a in live._schema.arguments}
        named = {*pair.outputs, *pair.like, *pair.sizes, *(of for of, _ in pair.last.values())} | set(pair.same)
        if "grad" in named:
            assert live._schema.arguments[0].name.startswith("grad")
            named.add(live._schema.arguments[0].name)
            arguments.add("grad")
        tensors = {a.name for a in live._schema.arguments if "Tensor" in str(a.type)}
        assert named <= arguments, name
        assert tensors <= named | {"bias", "attn_mask"}, f"{name} takes on trust what its pair does not name"
        for forward in pair.by:
            assert forward in OPERATORS
            returns = overload(forward)._schema.returns
            assert all(at < len(returns) for at in (*pair.outputs.values(), *pair.like.values()))


def overload(name: str) -> Any:
    space, packet, *rest = name.split(".")
    return getattr(getattr(getattr(torch.ops, space), packet), rest[0] if rest else "default")


def _callable_alone() -> list[str]:
    """Listed operators that can be called with a single tensor."""
    names = []
    for operator in operator_tables.functional():
        first, rest = operator._schema.arguments[:1], operator._schema.arguments[1:]
        alone = [str(a.type) for a in first] == ["Tensor"] and all(a.has_default_value() for a in rest)
        if alone and operator_tables.name(operator) in OPERATORS:
            names.append(operator_tables.name(operator))
    return sorted(names)


@pytest.mark.parametrize("kind", [torch.float32, torch.int64, torch.complex64, torch.bool])
@pytest.mark.parametrize("shape", [(3, 3), (0,), ()], ids=str)
def test_results_are_new_or_listed_views(kind: torch.dtype, shape: tuple[int, ...]) -> None:
    """What a schema keeps silent of: whether the argument itself comes back, for any dtype and for empty tensors."""
    ran = 0
    for name in _callable_alone():
        given = torch.ones(shape).to(kind)
        before = given.clone()
        try:
            returned = overload(name)(given)
        except (RuntimeError, IndexError, NotImplementedError, ValueError, TypeError):
            continue
        ran += 1
        results = [
            r for r in (returned if isinstance(returned, tuple | list) else [returned]) if isinstance(r, torch.Tensor)
        ]
        if not results:  # of nothing, `unbind` gives nothing
            continue
        shares = any(r.untyped_storage()._cdata == given.untyped_storage()._cdata for r in results)
        assert shares == (name in VIEWS), name
        assert torch.equal(given, before), name
    assert ran > 30
