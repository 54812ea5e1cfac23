"""Changes of the models in `changed_models`, by model and by what they change. Each takes the model, the module of its
file, and a monkeypatch that undoes what is done to libraries."""

from __future__ import annotations

import copy
import functools
import math
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from .changes_of_values import VALUES, Change, half, move, set_attribute


def _code(source: str) -> Any:
    """The code of a function that is written here."""
    scope: dict[str, Any] = {"torch": torch, "F": F}
    exec(source, scope)
    return scope["f"].__code__


def _swap(function: Any, other: Any) -> None:
    function.__code__ = other.__code__


def plain(x: Any, *rest: Any, **more: Any) -> Any:
    return x * 0.125


def quarter(module: Any, args: Any, output: Any) -> Any:
    return output * 0.25


def _halved(layer: nn.Module) -> Any:
    forward = layer.forward

    @functools.wraps(forward)
    def run(x: Any) -> Any:
        return forward(x) * 0.5

    return run


def in_place(module: Any, args: Any, output: Any) -> None:
    output.data.mul_(0.5)


def assigning(module: Any, args: Any, output: Any) -> None:
    output.data[0] = 0.0


CODE: dict[str, Change] = {
    "method of a module hidden": lambda n, m, p: set_attribute(n.blocks[0], "mix", lambda x: x * 3),
    "method of a module hidden by MethodType": lambda n, m, p: set_attribute(
        n.blocks[1], "mix", types.MethodType(half, n)
    ),
    "static method hidden": lambda n, m, p: set_attribute(n.blocks[0], "fixed", lambda x: x * 3),
    "class method hidden": lambda n, m, p: set_attribute(n.blocks[0], "made", lambda x: x * 3),
    "method of the class": lambda n, m, p: set_attribute(m.Block, "mix", half),
    "static method of the class": lambda n, m, p: set_attribute(m.Block, "fixed", staticmethod(plain)),
    "property of the class": lambda n, m, p: set_attribute(m.Block, "width", property(lambda self: 5.0)),
    "property replaced by a number": lambda n, m, p: set_attribute(m.Block, "width", 5.0),
    "class assigned": lambda n, m, p: set_attribute(n.blocks[0], "__class__", m.Other),
    "class of a library assigned": lambda n, m, p: set_attribute(n.blocks[0], "act", torch.sin),
    "module of a subclass": lambda n, m, p: n.blocks.__setitem__(0, _like(n.blocks[0], m.Other())),
    "type(self).depth": lambda n, m, p: set_attribute(m.Block, "depth", 3),
    "list of the class": lambda n, m, p: m.Block.shared.__setitem__(0, 2.5),
    "cls.rate": lambda n, m, p: set_attribute(m.Mixed, "rate", 2.5),
    "list in a dict of a class": lambda n, m, p: m.Mixed.table["k"].__setitem__(0, 2.5),
    "class method of a class": lambda n, m, p: set_attribute(m.Mixed, "rated", classmethod(lambda cls: 2.5)),
    "module imported by forward": lambda n, m, p: set_attribute(sys.modules["cfg_of_tests"], "SCALE", 2.5),
    "function imported by forward": lambda n, m, p: set_attribute(
        sys.modules["cfg_of_tests"], "table", lambda x: x * 2.5
    ),
    "global of a function imported by forward": lambda n, m, p: set_attribute(
        sys.modules["cfg_of_tests"], "FACTOR", 2.5
    ),
    "method in torch.no_grad": lambda n, m, p: set_attribute(m.Block, "mix", torch.no_grad()(m.Block.mix)),
    "function in torch.no_grad": lambda n, m, p: set_attribute(m, "helper", torch.no_grad()(m.helper)),
    "layer's forward in a wrapper": lambda n, m, p: set_attribute(n.blocks[0].lin, "forward", _halved(n.blocks[0].lin)),
    "__code__ of a function": lambda n, m, p: _swap(m.helper, plain),
    "__code__ of a method": lambda n, m, p: set_attribute(m.Block.mix, "__code__", half.__code__),
    "__code__ of a forward": lambda n, m, p: set_attribute(
        m.Block.forward, "__code__", _code("def f(self, x): return x * 3")
    ),
    "__code__ of a method of an object": lambda n, m, p: set_attribute(m.Helper.inner, "__code__", half.__code__),
    "__defaults__ of a function": lambda n, m, p: set_attribute(m.helper, "__defaults__", (2.5,)),
    "__kwdefaults__ of a function": lambda n, m, p: set_attribute(m.keyword, "__kwdefaults__", {"k": 2.5}),
    "__kwdefaults__ in place": lambda n, m, p: m.keyword.__kwdefaults__.update(k=2.5),
    "__defaults__ of a lambda": lambda n, m, p: set_attribute(m.double, "__defaults__", (2.5,)),
    "__defaults__ of a lambda in a list": lambda n, m, p: set_attribute(n.blocks[0].lambdas[0], "__defaults__", (2.5,)),
    "attribute of a function": lambda n, m, p: set_attribute(m.annotated, "k", 2.5),
    "function replaced": lambda n, m, p: set_attribute(m, "helper", lambda x, k=2: x * k),
    "function that is reached replaced": lambda n, m, p: set_attribute(m, "reached", plain),
    "function in a list in a dict": lambda n, m, p: m.FUNCTIONS["one"].__setitem__(0, plain),
    "function in a dict": lambda n, m, p: m.FUNCTIONS.update(two=plain),
    "function in a list": lambda n, m, p: m.CHAIN.__setitem__(1, plain),
    "lambda in a list of an attribute": lambda n, m, p: n.blocks[0].lambdas.__setitem__(0, lambda x: x * 3),
    "lambda appended": lambda n, m, p: n.blocks[0].lambdas.append(lambda x: x * 3),
    "tuple that a lambda reads": lambda n, m, p: m.FACTORS[1].__setitem__(0, 5.0),
    "object in a list": lambda n, m, p: set_attribute(m.OBJECTS[1], "k", 2.5),
    "class of an object in a list": lambda n, m, p: set_attribute(m.OBJECTS[1], "__class__", _child(m)),
    "method of an object in a list": lambda n, m, p: set_attribute(m.OBJECTS[1], "inner", lambda x: x * 2.5),
    "object of a module": lambda n, m, p: set_attribute(n.blocks[0].helper, "k", 2.5),
    "method of an object of a module": lambda n, m, p: set_attribute(n.blocks[0].helper, "inner", lambda x: x * 2.5),
    "object of a module replaced": lambda n, m, p: set_attribute(n.blocks[0], "helper", m.Callable()),
    "method of the class of an object": lambda n, m, p: set_attribute(m.Helper, "inner", lambda self, x: x * 2.5),
    "override in the class of an object": lambda n, m, p: set_attribute(m.Child, "inner", lambda self, x: x * 2.5),
    "override of a module's method": lambda n, m, p: set_attribute(m.Child, "run", lambda self, x: x * 2.5),
    "class attribute of an object": lambda n, m, p: set_attribute(m.Child, "k", 2.5),
    "property of an object": lambda n, m, p: set_attribute(m.Helper, "half", property(lambda self: 2.5)),
    "__call__ of an object": lambda n, m, p: set_attribute(m.Child, "__call__", lambda self, x: x * 2.5),
    "function of a decorator": lambda n, m, p: set_attribute(m.third, "function", plain),
    "number of a decorator": lambda n, m, p: set_attribute(m.third, "k", 2.5),
    "number in a decorator's closure": lambda n, m, p: set_attribute(_cell(m.wrapped, "k"), "cell_contents", 2.5),
    "function in a decorator's closure": lambda n, m, p: set_attribute(
        _cell(m.wrapped, "function"), "cell_contents", plain
    ),
    "object of a bound method": lambda n, m, p: set_attribute(m.BOUND.__self__, "k", 2.5),
    "object of a bound method of a module": lambda n, m, p: set_attribute(n.blocks[0].bound.__self__, "k", 2.5),
    "forward of an instance": lambda n, m, p: set_attribute(n.blocks[0], "forward", lambda x: x * 2.5),
    "forward of the class": lambda n, m, p: set_attribute(m.Block, "forward", half),
    "__call__ of the class": lambda n, m, p: set_attribute(m.Block, "__call__", half),
    "class of a global": lambda n, m, p: set_attribute(m, "Callable", m.Child),
    "function of torch in a list": lambda n, m, p: m.CHAIN.__setitem__(1, torch.cos),
}

STRUCTURE: dict[str, Change] = {
    "order of a ModuleDict": lambda n, m, p: move(n.steps._modules, "first"),
    "order of a ParameterDict": lambda n, m, p: _order(n.gains),
    "order of children": lambda n, m, p: move(n.children_of._modules, "first"),
    "order of a Sequential": lambda n, m, p: move(n.stack._modules, "1"),
    "entries of a ModuleDict exchanged": lambda n, m, p: _exchange(n.named._modules, "one", "two"),
    "parameters of a list exchanged": lambda n, m, p: _exchange(n.listed._parameters, "0", "1"),
    "module appended": lambda n, m, p: n.stack.append(nn.Tanh()),
    "module inserted in a ModuleDict": lambda n, m, p: n.steps.update({"more": nn.Tanh()}),
    "module replaced": lambda n, m, p: n.stack.__setitem__(1, nn.Tanh()),
    "class of a module": lambda n, m, p: set_attribute(n.lin, "__class__", m.Unlike),
    "class of a module of a library": lambda n, m, p: set_attribute(n.stack[1], "__class__", nn.Tanh),
    "class of a module within": lambda n, m, p: set_attribute(n.named["two"], "__class__", nn.Tanh),
    "rate of a dropout": lambda n, m, p: set_attribute(n.drop, "p", 0.9),
    "setting of a module": lambda n, m, p: set_attribute(n.norm, "eps", 0.5),
    "keywords of a hook's partial": lambda n, m, p: _hook(n.lin).keywords.update(k=2.5),
    "list in the keywords of a hook": lambda n, m, p: _hook(n.norm).keywords["table"]["k"].__setitem__(0, 2.5),
    "object that is a hook": lambda n, m, p: set_attribute(_hook(n.last), "k", 2.5),
    "object of a hook's method": lambda n, m, p: set_attribute(_hook(n.last, "_forward_pre_hooks").__self__, "k", 2.5),
    "dict in a hook's closure": lambda n, m, p: n.state.update(k=2.5),
    "__defaults__ of a hook": lambda n, m, p: n.norm._forward_hooks.update(
        {next(iter(n.norm._forward_hooks)): quarter}
    ),
    "hook gone": lambda n, m, p: n.lin._forward_hooks.clear(),
    "hook added": lambda n, m, p: n.stack[0].register_forward_hook(quarter),
    "hook that writes": lambda n, m, p: n.stack[0].register_forward_hook(in_place),
    "hook that assigns": lambda n, m, p: n.stack[0].register_forward_hook(assigning),
    "order of hooks": lambda n, m, p: _hooks_in_order(n.last),
    "__code__ of a hook": lambda n, m, p: set_attribute(
        m.doubled, "__code__", _code("def f(a, b, o, k=2.0): return o + k")
    ),
    "__call__ of a hook's class": lambda n, m, p: set_attribute(m.Hook, "__call__", lambda self, a, b, c: c * 2.5),
    "eval of a part": lambda n, m, p: n.drop.eval(),
    "parameter replaced": lambda n, m, p: set_attribute(n.norm, "weight", nn.Parameter(torch.ones(4) * 2)),
    "weights of a module": lambda n, m, p: n.lin.weight.data.mul_(2),
}

LIBRARY: dict[str, Change] = {
    "F.gelu, a lambda": lambda n, m, p: p.setattr(F, "gelu", lambda x, **k: x * 2.5),
    "F.gelu, a function": lambda n, m, p: p.setattr(F, "gelu", plain),
    "F.gelu, another of torch": lambda n, m, p: p.setattr(F, "gelu", F.silu),
    "F.softplus": lambda n, m, p: p.setattr(F, "softplus", plain),
    "F.scaled_dot_product_attention": lambda n, m, p: p.setattr(
        F, "scaled_dot_product_attention", lambda q, k, v, *rest, **more: q * 0.5
    ),
    "F.multi_head_attention_forward": lambda n, m, p: p.setattr(
        F, "multi_head_attention_forward", lambda q, k, v, *rest, **more: (q * 0.5, None)
    ),
    "F.group_norm": lambda n, m, p: p.setattr(F, "group_norm", plain),
    "F.layer_norm": lambda n, m, p: p.setattr(F, "layer_norm", plain),
    "F.linear": lambda n, m, p: p.setattr(F, "linear", lambda x, w, b=None: torch.matmul(x, w.t()) * 0.5),
    "F.conv1d": lambda n, m, p: p.setattr(F, "conv1d", plain),
    "torch.tanh": lambda n, m, p: p.setattr(torch, "tanh", torch.sin),
    "math.sqrt": lambda n, m, p: p.setattr(math, "sqrt", lambda x: 2.5),
    "F.layer_norm in torch.no_grad": lambda n, m, p: p.setattr(F, "layer_norm", torch.no_grad()(F.layer_norm)),
    "forward of nn.GroupNorm in torch.no_grad": lambda n, m, p: p.setattr(
        nn.GroupNorm, "forward", torch.no_grad()(nn.GroupNorm.forward)
    ),
    "forward of nn.GroupNorm": lambda n, m, p: p.setattr(nn.GroupNorm, "forward", half),
    "_conv_forward of nn.Conv1d": lambda n, m, p: p.setattr(nn.Conv1d, "_conv_forward", half),
    "_sa_block of nn.TransformerEncoderLayer": lambda n, m, p: p.setattr(nn.TransformerEncoderLayer, "_sa_block", half),
    "_ff_block of an instance": lambda n, m, p: set_attribute(n.attention, "_ff_block", plain),
    "forward of an instance": lambda n, m, p: set_attribute(
        n.attention.linear1, "forward", lambda x: torch.zeros(2, 3, 16)
    ),
    "__code__ of a method of torch": lambda n, m, p: p.setattr(
        nn.TransformerEncoderLayer._ff_block, "__code__", half.__code__
    ),
    "activation of a layer": lambda n, m, p: set_attribute(n.attention, "activation", F.gelu),
    "norm_first of a layer": lambda n, m, p: set_attribute(n.attention, "norm_first", True),
    "fx: node retargeted": lambda n, m, p: _edited(n.traced, lambda graph: _retarget(graph, nn.Tanh())),
    "fx: node added": lambda n, m, p: _edited(n.traced, _added),
    "fx: node removed": lambda n, m, p: _edited(n.traced, _removed),
    "fx: another module": lambda n, m, p: set_attribute(
        n, "traced", torch.fx.symbolic_trace(n.traced[1] if False else nn.GELU())
    ),
}

HARMFUL = {"values": VALUES, "code": CODE, "structure": STRUCTURE, "library": LIBRARY}


def observing(module: Any, args: Any, output: Any) -> None:
    SEEN.append(output.detach().abs().mean())


SEEN: list[Any] = []


class Observer:
    def __init__(self) -> None:
        self.norms: list[float] = []

    def __call__(self, module: Any, args: Any, output: Any) -> None:
        self.norms.append(float(output.detach().norm()) if not isinstance(output, tuple) else 0.0)


ALLOWED: dict[str, dict[str, Change]] = {
    "values": {
        "nothing": lambda n, m, p: None,
        "what forward does not read of an object": lambda n, m, p: set_attribute(m.GAIN, "unread", 7),
        "what forward does not read of an attribute": lambda n, m, p: set_attribute(n.gain, "unread", 7),
        "1.0 is 1": lambda n, m, p: m.NESTED["a"][0]["b"].__setitem__(0, 1),
        "2.0 is 2": lambda n, m, p: set_attribute(n, "nested", {"a": [[1.5], (2, [0.5])]}),
        "an equal object": lambda n, m, p: set_attribute(m, "GAIN", copy.deepcopy(m.GAIN)),
        "an equal object in an attribute": lambda n, m, p: set_attribute(n, "gain", copy.deepcopy(n.gain)),
        "an equal list": lambda n, m, p: m.NESTED["a"].__setitem__(1, (3.0, [0.5])),
        "an equal array": lambda n, m, p: set_attribute(m, "ARRAY", m.ARRAY.copy()),
        "a new attribute": lambda n, m, p: set_attribute(n, "note", "a note"),
        "a new global": lambda n, m, p: set_attribute(m, "NOTE", "a note"),
        "set back": lambda n, m, p: (set_attribute(m.GAIN, "gain", 2.5), set_attribute(m.GAIN, "gain", 1.5)),
        "an unused submodule": lambda n, m, p: n.add_module("probe", nn.Linear(2, 2).requires_grad_(False)),
    },
    "code": {
        "a function that forward does not reach": lambda n, m, p: set_attribute(m, "unreached", plain),
        "a method that forward does not call": lambda n, m, p: set_attribute(m.Block, "unreached", half),
        "an attribute of a method's name elsewhere": lambda n, m, p: set_attribute(n, "mixing", plain),
        "attribute of a class that nobody reads": lambda n, m, p: set_attribute(m.Block, "version", 3),
        "1 for 1.0": lambda n, m, p: set_attribute(m.Mixed, "rate", 0.5),
        "a copy": lambda n, m, p: copy.deepcopy(n),
    },
    "structure": {
        "hook that observes": lambda n, m, p: n.stack[0].register_forward_hook(observing),
        "hook that observes before": lambda n, m, p: n.stack[2].register_forward_pre_hook(
            lambda module, args: SEEN.append(args[0].detach())
        ),
        "object that observes": lambda n, m, p: n.named["one"].register_forward_hook(Observer()),
        "unused submodule": lambda n, m, p: n.add_module("probe", nn.Tanh()),
        "unused submodule without gradient": lambda n, m, p: n.add_module(
            "probe", nn.Linear(2, 2).requires_grad_(False)
        ),
        "hook removed and put back": lambda n, m, p: _again(n.lin),
        "weights trained": lambda n, m, p: n.lin.zero_grad(),
    },
    "library": {
        "a function that forward does not reach": lambda n, m, p: p.setattr(F, "embedding_bag", plain),
        "a method that forward does not call": lambda n, m, p: p.setattr(nn.Linear, "extra_repr", plain),
        "fx: compiled again": lambda n, m, p: n.traced.recompile(),
    },
}


def _like(old: Any, new: Any) -> Any:
    new.load_state_dict(old.state_dict())
    return new


def _child(m: Any) -> Any:
    return type("Child", (m.Helper,), {"inner": half})


def _cell(function: Any, name: str) -> Any:
    return dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))[name]


def _exchange(mapping: Any, left: str, right: str) -> None:
    mapping[left], mapping[right] = mapping[right], mapping[left]


def _order(gains: nn.ParameterDict) -> None:
    move(gains._keys, "a")


def _hook(module: nn.Module, kind: str = "_forward_hooks") -> Any:
    return next(iter(getattr(module, kind).values()))


def _hooks_in_order(module: nn.Module) -> None:
    module.register_forward_hook(quarter)
    hooks: Any = module._forward_hooks
    hooks.move_to_end(next(iter(hooks)))


def _again(module: nn.Module) -> None:
    hook = _hook(module)
    module._forward_hooks.clear()
    module.register_forward_hook(hook)


def _edited(traced: Any, edit: Callable[[Any], Any]) -> None:
    edit(traced.graph)
    traced.recompile()


def _retarget(graph: Any, module: nn.Module) -> None:
    node = next(node for node in graph.nodes if node.op == "call_module" and node.target == "1")
    node.op, node.target = "call_function", torch.tanh


def _added(graph: Any) -> None:
    output = next(node for node in graph.nodes if node.op == "output")
    with graph.inserting_before(output):
        output.args = (graph.call_function(torch.sin, (output.args[0],)),)


def _removed(graph: Any) -> None:
    node = next(node for node in graph.nodes if node.op == "call_module" and node.target == "1")
    node.replace_all_uses_with(node.args[0])
    graph.erase_node(node)
