"""Write `schema/operators-1.json`: what a reader must know of operators, taken from the schemas of the installed torch.

    python -m tools.operator_tables [--check]

What torch does not say, or says of what no file holds, is listed here, each with its reason, and the file repeats it.
With --check nothing is written, and the exit status is 1 if the file would change.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch._ops import OpOverload

from remate_runtime.support.files import write_atomically
from tools.operator_list import COMPOSITE_TOO, STATIC, left_out
from tools.operator_pairs import LITERALS, PAIRS, PERMISSION

FILE = Path(__file__).parents[1] / "schema" / "operators-1.json"
NAMESPACES = ("aten",)

_DETACHED = "its result shares the argument's storage; the schema keeps silent, so that autograd counts no view"
VIEWS_TOO = {
    "aten._unsafe_view": _DETACHED,
    "aten.unsafe_split.Tensor": _DETACHED,
    "aten.unsafe_split_with_sizes": _DETACHED,
}
_SPARSE = "of sparse or nested tensors, which no file holds"
_FORWARD = "of forward-mode differentiation, which no file holds"
_SOMETIMES = "a view or a copy, as the argument is; files name what it comes to, a view or `aten.clone`"
_TWO = "reads a second tensor for its shape alone; files name `aten.expand`, `aten.view`"
_DATA = "what it shows depends on data"
_INTERNAL = "for torch's own use"
NO_VIEWS = {
    **dict.fromkeys(
        """aten._indices aten._nested_get_values aten._nested_view_from_buffer aten._nested_view_from_jagged
        aten._sparse_broadcast_to aten._values aten.ccol_indices aten.coalesce aten.col_indices aten.crow_indices
        aten.indices aten.row_indices aten.values""".split(),
        _SPARSE,
    ),
    **dict.fromkeys("aten._fw_primal aten._make_dual aten._unpack_dual".split(), _FORWARD),
    **dict.fromkeys(
        """aten._autocast_to_full_precision aten._autocast_to_reduced_precision aten.contiguous aten.pin_memory aten.reshape
        aten.resolve_conj aten.resolve_neg aten.to.device aten.to.dtype aten.to.dtype_layout aten.to.other""".split(),
        _SOMETIMES,
    ),
    **dict.fromkeys("aten.expand_as aten.reshape_as aten.view_as".split(), _TWO),
    **dict.fromkeys("aten.narrow.Tensor aten.tensor_split.tensor_indices_or_sections".split(), _DATA),
    **dict.fromkeys("aten._test_autograd_multiple_dispatch_view aten.slice_inverse".split(), _INTERNAL),
}
_STATE = "gets the random state of the forward as an argument"
_DRY = "draws nothing: it has no dropout of its own"
NOT_RANDOM = {
    "aten._cudnn_attention_backward": _STATE,
    "aten._scaled_dot_product_cudnn_attention_backward": _STATE,
    "aten._scaled_dot_product_efficient_attention_backward": _STATE,
    "aten._fused_sdp_choice": "chooses a kernel",
    "aten._nested_tensor_softmax_with_shape": _DRY,
    "aten._scaled_dot_product_flash_attention_for_cpu": _DRY,
}
# Operators of one pass over elements, where the in-place form has the same kernel. Two positions: commutative.
IN_PLACE: dict[str, tuple[int, ...]] = {
    "aten.add.Tensor": (0, 1),
    "aten.mul.Tensor": (0, 1),
    **dict.fromkeys(
        """aten.add.Scalar aten.sub.Tensor aten.sub.Scalar aten.mul.Scalar aten.div.Tensor aten.div.Scalar aten.relu
        aten.silu aten.gelu aten.tanh aten.sigmoid aten.exp aten.neg aten.sqrt aten.rsqrt aten.reciprocal aten.hardtanh
        aten.hardswish aten.hardsigmoid aten.leaky_relu aten.elu aten.clamp aten.masked_fill.Scalar
        aten.pow.Tensor_Scalar aten.addcmul aten.addcdiv aten.addmm aten.lerp.Scalar aten.lerp.Tensor""".split(),
        (0,),
    ),
    # These copy their first argument and write into the copy.
    **dict.fromkeys(
        """aten.index_put aten.index_add aten.index_copy aten.masked_scatter aten.scatter.src aten.scatter.value
        aten.scatter_add aten.slice_scatter aten.select_scatter aten.diagonal_scatter""".split(),
        (0,),
    ),
}
# Operators without an in-place form of their own: the second argument is copied into this view of the first.
THROUGH = {
    "aten.slice_scatter": "aten.slice.Tensor",
    "aten.select_scatter": "aten.select.int",
    "aten.diagonal_scatter": "aten.diagonal",
}
# `mul_.Scalar` rounds its number to low precision, `mul.Scalar` and `mul_.Tensor` of a number do not.
_OTHER_NAMES = {"aten.pow.Tensor_Scalar": "aten.pow_.Scalar", "aten.mul.Scalar": "aten.mul_.Tensor"}
REFUSED = {
    **dict.fromkeys("aten.from_file aten.save".split(), "files"),
    **dict.fromkeys("aten.manual_seed aten.seed aten.initial_seed".split(), "the generator"),
    **dict.fromkeys(
        "aten.set_grad_enabled aten.set_data aten.retain_grad aten.record_stream aten.backward aten._backward".split(),
        "the state of autograd, or of the allocator",
    ),
    **dict.fromkeys("aten.dist_backward aten.wait aten.to_here".split(), "other processes"),
    **dict.fromkeys("aten.warn aten._print".split(), "what the program prints"),
    **dict.fromkeys("aten.item aten._local_scalar_dense".split(), "Python: a number that is no tensor"),
    "aten._cufft_set_plan_cache_max_size": "a cache of the process",
}
COPIED = "aten.mse_loss aten.smooth_l1_loss aten.soft_margin_loss aten.binary_cross_entropy aten.col2im".split()
# Bytes. allocation: requests are rounded up to a multiple of it. generator_state: of the tensor that holds one, on the
# host.
DEVICES = {"cpu": {"allocation": 1, "generator_state": 5056}, "cuda": {"allocation": 512, "generator_state": 16}}


def functional() -> Iterator[OpOverload]:
    """All operators of torch that do not overwrite an argument."""
    for full in torch._C._dispatch_get_all_op_names():
        space, _, rest = full.partition("::")
        name, _, overload = rest.partition(".")
        if space in ("aten", "prims"):
            operator = getattr(getattr(getattr(torch.ops, space), name, None), overload or "default", None)
            if operator is not None and not operator._schema.is_mutable:
                yield operator


def name(operator: OpOverload) -> str:
    full = operator._schema.name.replace("::", ".")
    return full if operator._overloadname == "default" else f"{full}.{operator._overloadname}"


def says_view(operator: OpOverload) -> bool:
    """Whether torch's schema says that a result shares the storage of an argument."""
    shared = any(a.alias_info is not None and not a.alias_info.is_write for a in operator._schema.arguments)
    return shared and any(r.alias_info is not None for r in operator._schema.returns)


def says_random(operator: OpOverload) -> bool:
    """Whether torch tags an operator as drawing from a generator, or it takes one."""
    tagged = torch.Tag.nondeterministic_seeded in operator.tags
    return tagged or any("Generator" in str(a.type) for a in operator._schema.arguments)


def tables() -> dict[str, Any]:
    """The contents of the file."""
    known = {name(operator): operator for operator in functional() if "inductor" not in name(operator)}
    views = {n for n, o in known.items() if says_view(o)}
    random = {n for n, o in known.items() if says_random(o)}
    listed = sorted(views - NO_VIEWS.keys() | VIEWS_TOO.keys())
    named = {n for n, o in known.items() if n not in REFUSED and not left_out(o, listed, n in views, n)}
    return {
        "format": "remate.operators",
        "version": 1,
        "torch": torch.__version__.partition("+")[0],
        "devices": DEVICES,
        "namespaces": list(NAMESPACES),
        "operators": sorted(named - PERMISSION.keys()),
        "permission": {n: why for n, why in sorted(PERMISSION.items()) if n in named},
        "paired": dict(sorted(PAIRS.items())),
        "literals": LITERALS,
        "views": listed,
        "random": sorted(random - NOT_RANDOM.keys()),
        "in_place": {n: _in_place(n) | {"positions": list(at)} for n, at in sorted(IN_PLACE.items())},
        "copied": sorted(COPIED),
        "refused": dict(sorted(REFUSED.items())),
        "exceptions": {
            "views_too": dict(sorted(VIEWS_TOO.items())),
            "no_views": {n: why for n, why in sorted(NO_VIEWS.items()) if n in views},
            "composite_too": dict(sorted(COMPOSITE_TOO.items())),
            "static": dict(sorted(STATIC.items())),
            "not_random": {n: why for n, why in sorted(NOT_RANDOM.items()) if n in random},
        },
    }


def _in_place(operator: str) -> dict[str, Any]:
    if operator in THROUGH:
        return {"op": "aten.copy_", "through": THROUGH[operator]}
    space, packet, *overload = operator.split(".")
    return {"op": _OTHER_NAMES.get(operator) or ".".join([space, packet + "_", *overload])}


def text(tables: Mapping[str, Any]) -> bytes:
    """One entry per line."""
    lines = [f"  {json.dumps(key)}: {_entries(value)}" for key, value in tables.items()]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _entries(value: Any, indent: str = "  ") -> str:
    if isinstance(value, dict):
        nested = any(isinstance(item, dict) and indent == "  " for item in value.values()) and "cpu" not in value
        deeper = indent + "  "
        entries = [
            f"{deeper}{json.dumps(k)}: {_entries(v, deeper) if nested and 'op' not in v else json.dumps(v)}"
            for k, v in value.items()
        ]
        return "{\n" + ",\n".join(entries) + f"\n{indent}}}" if entries else "{}"
    if isinstance(value, list) and len(value) > 8:
        return "[\n" + ",\n".join(f"{indent}  {json.dumps(item)}" for item in value) + f"\n{indent}]"
    return json.dumps(value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args()
    fresh = text(tables())
    if FILE.exists() and FILE.read_bytes() == fresh:
        return 0
    print(FILE)
    if not args.check:
        write_atomically(FILE, fresh)
    return 1 if args.check else 0


if __name__ == "__main__":
    sys.exit(main())
