"""What remate must know of operators without loading torch: which are views, which draw random numbers, which may
write over an argument. `bind` checks these tables against the live operators' schemas, so that they cannot drift.
Names are as in a schedule file: `namespace.name` or `namespace.name.overload`, `.default` left out.
"""

from __future__ import annotations

# Namespaces that a file may name. An operator of another namespace is refused by the reader of untrusted files;
# `remate_runtime.load(..., namespaces=(...))` lets a user add that of a library registered with torch.library.
NAMESPACES = frozenset({"aten", "prims", "torchvision"})

# Operators of the allowed namespaces that reach beyond their arguments: files, processes, the generator, autograd's state.
REFUSED = frozenset(
    """aten.from_file aten.save aten.manual_seed aten.seed aten.initial_seed aten.set_grad_enabled aten.set_data
    aten.retain_grad aten.record_stream aten.backward aten._backward aten.dist_backward aten.warn aten._print aten.wait
    aten.to_here aten.item aten._local_scalar_dense aten._cufft_set_plan_cache_max_size""".split()
)

VIEWS = frozenset(
    """aten.view aten._unsafe_view aten.t aten.transpose.int aten.permute aten.expand aten.slice.Tensor
    aten.select.int aten.unsqueeze aten.squeeze aten.squeeze.dim aten.squeeze.dims aten.split.Tensor
    aten.split_with_sizes aten.unbind.int aten.diagonal aten.as_strided aten.alias aten.detach aten.unfold
    aten.view_as_real aten.view_as_complex aten.view.dtype aten.real aten.imag aten._reshape_alias aten.chunk
    aten.narrow aten.movedim.int aten.swapaxes aten.flatten.using_ints aten.unflatten.int
    aten._conj aten._neg_view aten.lift_fresh aten.mT aten.mH aten.numpy_T aten.matrix_H aten.adjoint
    aten.tensor_split.sections aten.tensor_split.indices aten.hsplit.int aten.vsplit.int aten.dsplit.int
    aten.split.sizes aten.ravel prims.broadcast_in_dim prims.split_dim prims.transpose prims.view_of""".split()
)

RANDOM = frozenset(
    """aten.native_dropout aten.dropout aten.bernoulli aten.bernoulli.p aten.rand aten.rand_like aten.randn
    aten.randn_like aten.randint aten.randint.low aten.randint_like aten.randint_like.low_dtype aten.randperm
    aten.normal.Tensor_Tensor aten.normal.Tensor_float aten.normal.float_Tensor aten.normal.float_float
    aten.normal_functional aten.uniform aten.exponential aten.cauchy aten.geometric aten.log_normal
    aten.random aten.random.from aten.random.to aten.multinomial aten.poisson aten.binomial
    aten._standard_gamma aten._sample_dirichlet aten.rrelu_with_noise aten.rrelu_with_noise_functional
    aten._scaled_dot_product_flash_attention aten._scaled_dot_product_efficient_attention
    aten._scaled_dot_product_cudnn_attention aten._fused_dropout aten.alpha_dropout aten.feature_dropout
    aten._efficient_attention_forward aten._flash_attention_forward aten._cudnn_rnn""".split()
)

# operator -> (its in-place overload, argument positions that may be overwritten). Two positions: commutative.
IN_PLACE: dict[str, tuple[str, tuple[int, ...]]] = {
    "aten.add.Tensor": ("aten.add_.Tensor", (0, 1)),
    "aten.mul.Tensor": ("aten.mul_.Tensor", (0, 1)),
    "aten.add.Scalar": ("aten.add_.Scalar", (0,)),
    "aten.sub.Tensor": ("aten.sub_.Tensor", (0,)),
    "aten.sub.Scalar": ("aten.sub_.Scalar", (0,)),
    "aten.mul.Scalar": ("aten.mul_.Scalar", (0,)),
    "aten.div.Tensor": ("aten.div_.Tensor", (0,)),
    "aten.div.Scalar": ("aten.div_.Scalar", (0,)),
    "aten.relu": ("aten.relu_", (0,)),
    "aten.silu": ("aten.silu_", (0,)),
    "aten.gelu": ("aten.gelu_", (0,)),
    "aten.tanh": ("aten.tanh_", (0,)),
    "aten.sigmoid": ("aten.sigmoid_", (0,)),
    "aten.exp": ("aten.exp_", (0,)),
    "aten.neg": ("aten.neg_", (0,)),
    "aten.sqrt": ("aten.sqrt_", (0,)),
    "aten.rsqrt": ("aten.rsqrt_", (0,)),
    "aten.reciprocal": ("aten.reciprocal_", (0,)),
    "aten.hardtanh": ("aten.hardtanh_", (0,)),
    "aten.hardswish": ("aten.hardswish_", (0,)),
    "aten.hardsigmoid": ("aten.hardsigmoid_", (0,)),
    "aten.leaky_relu": ("aten.leaky_relu_", (0,)),
    "aten.elu": ("aten.elu_", (0,)),
    "aten.clamp": ("aten.clamp_", (0,)),
    "aten.masked_fill.Scalar": ("aten.masked_fill_.Scalar", (0,)),
    "aten.pow.Tensor_Scalar": ("aten.pow_.Scalar", (0,)),
}


def namespace(op: str) -> str:
    return op.partition(".")[0]
