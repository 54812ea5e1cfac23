"""What remate must know of operators without loading torch: which are views, which draw random numbers, which may
write over an argument. `bind` checks these tables against the live operators' schemas, so that they cannot drift.
Names are as in a schedule file: `namespace.name` or `namespace.name.overload`, `.default` left out.
"""

from __future__ import annotations

# Namespaces whose operators run without being asked for. A file lists every other one in `namespaces`, and
# `remate_runtime.apply(..., namespaces=(...))` permits it.
NAMESPACES = frozenset({"aten", "prims", "torchvision"})

# Operators of the allowed namespaces that reach beyond their arguments: files, processes, the generator, autograd's state.
REFUSED = frozenset(
    """aten.from_file aten.save aten.manual_seed aten.seed aten.initial_seed aten.set_grad_enabled aten.set_data
    aten.retain_grad aten.record_stream aten.backward aten._backward aten.dist_backward aten.warn aten._print aten.wait
    aten.to_here aten.item aten._local_scalar_dense aten._cufft_set_plan_cache_max_size""".split()
)

VIEWS = frozenset(
    """aten._conj aten._neg_view aten._reshape_alias aten._unsafe_view aten.adjoint aten.alias aten.as_strided
    aten.broadcast_to aten.chunk aten.conj aten.detach aten.diagonal aten.dsplit.array aten.dsplit.int
    aten.expand aten.flatten.using_ints aten.hsplit.array aten.hsplit.int aten.imag
    aten.lift_fresh aten.linalg_diagonal aten.mH aten.mT aten.matrix_H aten.moveaxis.int aten.moveaxis.intlist
    aten.movedim.int aten.movedim.intlist aten.narrow aten.numpy_T aten.permute aten.positive
    aten.ravel aten.real aten.select.int aten.slice.Tensor aten.split.Tensor aten.split.sizes
    aten.split_with_sizes aten.squeeze aten.squeeze.dim aten.squeeze.dims aten.swapaxes aten.swapdims aten.t
    aten.tensor_split.indices aten.tensor_split.sections aten.transpose.int
    aten.unbind.int aten.unflatten.int aten.unfold aten.unsafe_split.Tensor
    aten.unsafe_split_with_sizes aten.unsqueeze aten.view aten.view.dtype
    aten.view_as_complex aten.view_as_real aten.vsplit.array aten.vsplit.int prims.broadcast_in_dim
    prims.collapse_view prims.conj prims.imag prims.real prims.split_dim prims.squeeze prims.transpose
    prims.view_of prims.view_of_dtype""".split()
)

RANDOM = frozenset(
    """aten._cudnn_attention_forward aten._cudnn_init_dropout_state aten._cudnn_rnn
    aten._efficient_attention_forward aten._flash_attention_forward aten._flash_attention_forward.quantized
    aten._fused_dropout aten._lstm_mps aten._sample_dirichlet aten._scaled_dot_product_attention_math
    aten._scaled_dot_product_attention_math_for_mps aten._scaled_dot_product_cudnn_attention
    aten._scaled_dot_product_efficient_attention aten._scaled_dot_product_flash_attention
    aten._scaled_dot_product_flash_attention.quantized aten._scaled_dot_product_fused_attention_overrideable
    aten._standard_gamma aten._triton_scaled_dot_attention aten.alpha_dropout aten.bernoulli
    aten.bernoulli.Tensor aten.bernoulli.p aten.binomial aten.cauchy aten.dropout aten.exponential
    aten.feature_alpha_dropout aten.feature_dropout aten.geometric aten.gru.data aten.gru.input aten.log_normal
    aten.lstm.data aten.lstm.input aten.miopen_rnn aten.multinomial aten.native_dropout
    aten.normal.Tensor_Tensor aten.normal.Tensor_float aten.normal.float_Tensor aten.normal.float_float
    aten.normal_functional aten.poisson aten.rand aten.rand.generator aten.rand_like aten.rand_like.generator
    aten.randint aten.randint.generator aten.randint.low aten.randint.low_generator aten.randint_like
    aten.randint_like.Tensor aten.randint_like.Tensor_generator aten.randint_like.generator
    aten.randint_like.low_dtype aten.randint_like.low_generator_dtype aten.randn aten.randn.generator
    aten.randn_like aten.randn_like.generator aten.random aten.random.from aten.random.to aten.randperm
    aten.randperm.generator aten.rnn_relu.data aten.rnn_relu.input aten.rnn_tanh.data aten.rnn_tanh.input
    aten.rrelu aten.rrelu_with_noise_functional aten.scaled_dot_product_attention aten.uniform prims.normal
    prims.uniform""".split()
)

# Tagged as random by torch, but they draw nothing: without dropout, or with the random state as an argument.
NOT_RANDOM = frozenset(
    """aten._cudnn_attention_backward aten._fused_sdp_choice aten._nested_tensor_softmax_with_shape
    aten._scaled_dot_product_cudnn_attention_backward aten._scaled_dot_product_efficient_attention_backward
    aten._scaled_dot_product_flash_attention_for_cpu""".split()
)

# The storage that these return holds more than the result: what they computed on the way to it, which would stay allocated.
OVERALLOCATING = frozenset(
    "aten.mse_loss aten.smooth_l1_loss aten.soft_margin_loss aten.binary_cross_entropy aten.col2im".split()
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
