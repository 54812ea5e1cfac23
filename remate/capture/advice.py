"""Advice for forward code that depends on the values of tensors, by its cause.

The cause follows from the module that ran, and from the syntax around the expression that failed.
"""

from __future__ import annotations

import ast
import linecache
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import Any

from torch import nn

from .places import failed_position

BRANCH = (
    "write the choice with tensor operations (torch.where, masking), or take it out of the module; "
    "schedules are for static graphs"
)
PADDED = (
    "pass the padded batch, and mask the positions after each length: the contents of a packed sequence at each time "
    "step depend on its lengths"
)
_CAUSAL = (
    "say is_causal=True (or False) in the call, of nn.Transformer src_is_causal= and tgt_is_causal=: without, it looks "
    "at the mask's values to find out"
)
_AVERAGE = "give it a number, momentum=0.1: with momentum=None it reads how many batches it has seen"
_FAKE_QUANTIZE = (
    "FakeQuantize reads its switches: call torch.fake_quantize_per_tensor_affine with scale and zero point as buffers, "
    "and run the observer in the training loop"
)
_LOGGED = (
    "keep the tensor: return it detached (loss.detach()), and read it in the training loop with .item(); each read "
    "in forward also makes a GPU wait"
)
_FACTOR = "compute with the tensor itself, without .item(), int() or float(): the result is the same"
_CHECKED = "leave the check out, or return the condition and check it in the training loop: it changes no result"
_SWITCH = "; transformers leaves its checks out with the environment variable TRANSFORMERS_DISABLE_TORCH_CHECK=1"
_DRAWN = (
    "forward leaves out code at random: write torch.where(torch.rand(()) < rate, x, layer(x)), which draws the same "
    "number, or switch the draw off"
)
_LENGTH = (
    "a size in forward follows from values: use a fixed size and mask the rest, or compute the number in the training "
    "loop and pass it as an argument, for a schedule for each number"
)
_ROWS = (
    "keep all rows, and mask what they contribute: labels.masked_fill(~mask, -100) for cross_entropy, or "
    "(loss * mask).sum() / mask.sum() with reduction='none'"
)
_EXPERTS = (
    "run each expert on all tokens, and multiply its output by its weight, which is zero for tokens not routed to it"
)
_PROBLEM = (
    "forward chooses the loss by the labels: set model.config.problem_type = 'single_label_classification' "
    "(or 'regression', 'multi_label_classification')"
)
_INSTEAD = {  # by operator: a way that is known to work
    "aten._ctc_loss": (
        "let the module return the log-probabilities, plan that, and call ctc_loss on what the planned model returns: "
        "it is the same step"
    ),
    "aten._pack_padded_sequence": PADDED,
    "aten.repeat_interleave": (
        "index with torch.searchsorted(repeats.cumsum(0), torch.arange(size), right=True), for a fixed size of the "
        "result"
    ),
    "aten.bincount": "count into a fixed size: one_hot(classes, num_classes).sum(0)",
}
_SELECTS = ("aten.nonzero", "aten.masked_select")
_LOGS = ("print", "log", "append", "add_scalar", "info", "debug", "update", "setdefault")
_DRAWS = ("rand", "randint", "bernoulli", "rand_like", "uniform_", "random_")
_MAKES = ("range", "zeros", "ones", "arange", "empty", "full", "view", "reshape", "expand", "split", "narrow")


def advice(error: BaseException, operator: str, module: nn.Module | None, path: str) -> str:
    """Return what to write instead of an expression that reads values of tensors, or whose size follows from them.

    Args:
        error: What tracing raised.
        operator: The operator that failed, `aten.nonzero`.
        module: The module that ran.
        path: Its path in the model.
    """
    known = next((way for start, way in _INSTEAD.items() if operator.startswith(start)), "") or _of_module(module, path)
    if known:
        return known
    if checks := [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__) if _checks(frame)]:
        return _CHECKED + (_SWITCH if "torch_compilable_check" in checks else "")
    around = _around(error)
    if operator.startswith(_SELECTS):
        routed = any(isinstance(node, ast.For) for node in around)
        return _EXPERTS if routed else _ROWS
    return _of_read(around) if "_local_scalar_dense" in operator else BRANCH


def _checks(frame: FrameType) -> bool:
    """Whether a function of torch or transformers runs that raises if a condition does not hold."""
    name, module = frame.f_code.co_name, frame.f_globals.get("__name__")
    return (module == "torch" and name.startswith("_check")) or name == "torch_compilable_check"


def logged(error: BaseException) -> str:
    """Return the advice for code that passes a tensor to numpy."""
    return (
        _LOGGED if _of_read(_around(error)) == _LOGGED else "use the functions of torch, or take it out of the module"
    )


def _of_module(module: nn.Module | None, path: str) -> str:
    if module is None:
        return ""
    if isinstance(module, nn.RNNBase):
        return PADDED
    if isinstance(module, nn.TransformerEncoder | nn.TransformerDecoder):
        return _CAUSAL
    if getattr(module, "num_batches_tracked", None) is not None and getattr(module, "momentum", 0) is None:
        return _AVERAGE
    if hasattr(module, "fake_quant_enabled"):
        return _FAKE_QUANTIZE
    classifies = any("Classif" in kind.__name__ for kind in type(module).__mro__)
    if classifies and getattr(getattr(module, "config", None), "problem_type", "") is None:  # of Hugging Face
        return _PROBLEM
    if drops := _layer_drop(module):
        attribute = ".".join(part for part in ("model", path, drops) if part)
        return f"forward leaves out layers at random; to plan and to train without: {attribute} = 0.0"
    return ""


def _layer_drop(module: nn.Module) -> str:
    """The attribute with the rate at which a module skips layers, as in Hugging Face models, or ""."""
    names = (
        name
        for name, value in vars(module).items()
        if "layerdrop" in name.lower() and isinstance(value, float) and value
    )
    return next(names, "")


def _of_read(around: Sequence[ast.AST], follow: bool = True) -> str:
    """Return the advice for an expression that reads a value.

    Args:
        around: Its node and those around it, innermost first.
        follow: Whether to look at what happens to a variable that gets the value.
    """
    inner: ast.AST | None = None
    computes = False
    for node in around:
        if hint := _of_node(node, inner):
            return hint if hint == _LENGTH or not computes else _FACTOR
        computes = computes or isinstance(node, ast.BinOp)
        if follow and isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            return _of_uses(node.targets[0].id, around)
        inner = node
    return _FACTOR if computes else BRANCH


def _of_uses(name: str, around: Sequence[ast.AST]) -> str:
    function = next((node for node in around if isinstance(node, ast.FunctionDef)), None)
    if function is None:
        return BRANCH
    uses = (n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load))
    hints = (_of_read(_path(function, _start(use), _end(use)), follow=False) for use in uses)
    return next((hint for hint in hints if hint != BRANCH), BRANCH)


def _of_node(node: ast.AST, inner: ast.AST | None) -> str:
    match node:
        case ast.Assert():
            return _CHECKED
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) if inner in (test, None):
            if any(name in _DRAWS for name in _called(test)):
                return _DRAWN
            body = node.body if isinstance(node.body, list) else [node.body]
            return _CHECKED if all(isinstance(part, ast.Raise | ast.Pass) or _says(part) for part in body) else BRANCH
        case ast.JoinedStr() | ast.Dict():
            return _LOGGED
        case ast.Call() if inner is not None and inner is not node.func:
            name = _name(node)
            return _LOGGED if name in _LOGS else _LENGTH if name in _MAKES else ""
        case ast.Slice():
            return _LENGTH
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign():
            return _LOGGED
        case ast.Return():
            return _LOGGED
        case _:
            return ""


def _says(statement: ast.AST) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) and _name(statement.value) in _LOGS


def _called(test: ast.AST) -> list[str]:
    return [_name(node) for node in ast.walk(test) if isinstance(node, ast.Call)]


def _name(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _around(error: BaseException) -> list[ast.AST]:
    """The syntax around the user's expression that failed, innermost first; empty if its source is unknown."""
    position = failed_position(error)
    tree = None if position is None else _tree(position.file)
    if position is None or tree is None:
        return []
    return _path(tree, position.start, position.end)


def _path(node: ast.AST, start: tuple[int, int], end: tuple[int, int]) -> list[ast.AST]:
    """The nodes within `node` that span a range, innermost first."""
    for child in ast.iter_child_nodes(node):
        placed = hasattr(child, "lineno")
        if placed and not (_start(child) <= start and end <= _end(child)):
            continue
        within = _path(child, start, end)
        if placed or within:
            return [*within, child]
    return []


def _start(node: Any) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: Any) -> tuple[int, int]:
    return node.end_lineno, node.end_col_offset


def _tree(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None
