"""Python's bindings of operators. They take arguments in half the time of a call by schema.

A binding selects an overload by the kinds of its arguments. Each is listed with the kinds for which it selects the
named operator, and receives the same arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..flat_step.graph import Ref
from ..format.json_values import is_tuple
from ..torch_private.operators import python_binding

# Kinds of arguments: t tensor, T list of tensors, i integer, I list of integers, f float, b boolean.
FUNCTIONS: dict[str, str] = {
    **dict.fromkeys(("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "maximum", "minimum", "mm", "bmm"), "tt"),
    **dict.fromkeys(("addmm", "baddbmm", "where.self"), "ttt"),
    **dict.fromkeys("abs clone cos erf exp log mean neg reciprocal relu rsqrt sigmoid sin sqrt sum tanh".split(), "t"),
    **dict.fromkeys(("add_.Tensor", "sub_.Tensor", "mul_.Tensor", "div_.Tensor"), "tt"),
    **dict.fromkeys(("exp_", "neg_", "relu_", "rsqrt_", "sigmoid_", "sqrt_", "tanh_"), "t"),
    **dict.fromkeys(("pow.Tensor_Scalar",), "ti tf"),
    **dict.fromkeys(("mean.dim", "sum.dim_IntList"), "tI tIb"),
    **dict.fromkeys(("cat", "stack"), "T Ti"),
    **dict.fromkeys(("expand", "permute", "view"), "tI"),
    **dict.fromkeys(("select.int", "transpose.int"), "tii"),
    **dict.fromkeys(("split.Tensor", "unsafe_split.Tensor"), "ti tii"),
    **dict.fromkeys(("_log_softmax", "_softmax"), "tib"),
    "t": "t",
    "unsqueeze": "ti",
    "unbind.int": "t ti",
    "split_with_sizes": "tI tIi",
    "index_select": "tit",
    "embedding": "tt tti",
    "native_dropout": "tfb",
    "native_layer_norm": "tIttf",
    "convolution": "tttIIIbIi",
}

_KINDS: dict[type, str] = {Ref: "t", bool: "b", int: "i", float: "f"}


def binding(name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> Callable[..., Any] | None:
    """Return what runs an operator for arguments as in `Op`; None if nothing is faster than the call by schema.

    Args:
        name: The operator (`aten.add.Tensor`), also one that writes over its first argument.
        args: Positional arguments.
        kwargs: Keyword arguments.
    """
    space, _, short = name.partition(".")
    if kwargs or space != "aten" or "".join(map(kind, args)) not in FUNCTIONS.get(short, "").split():
        return None
    return python_binding(short.split(".")[0])


def kind(argument: object) -> str:
    """Return the kind of an argument, as in `FUNCTIONS`; "?" for any other."""
    of = _KINDS.get(type(argument))
    if of is not None:
        return of
    if is_tuple(argument):
        kinds = {*map(type, argument)}
        return "T" if kinds == {Ref} else "I" if kinds == {int} else "?"
    return "?"
