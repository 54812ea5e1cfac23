"""Changes of what the model of `changed_models.VALUES` reads: containers, objects, arrays, partials, closures."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

Change = Callable[[Any, Any, Any], Any]


def set_attribute(thing: Any, name: str, value: Any) -> None:
    setattr(thing, name, value)


def move(mapping: Any, key: str) -> None:
    """A key to the end."""
    mapping[key] = mapping.pop(key)


def half(self: Any, x: Any, *rest: Any) -> Any:
    return x * 0.25


VALUES: dict[str, Change] = {
    "global list, three deep": lambda n, m, p: m.NESTED["a"][0]["b"].__setitem__(1, 5.0),
    "global list in a tuple": lambda n, m, p: m.NESTED["a"][1][1].__setitem__(0, 5.0),
    "global dict replaced in a list": lambda n, m, p: m.NESTED["a"].__setitem__(0, {"b": [1.0, 4.0]}),
    "global tuple replaced": lambda n, m, p: m.NESTED["a"].__setitem__(1, (3.0, [0.75])),
    "global replaced": lambda n, m, p: set_attribute(m, "NESTED", {"a": [{"b": [1.0, 3.0]}, (3.0, [0.5])]}),
    "object in a global": lambda n, m, p: set_attribute(m.GAIN, "gain", 2.5),
    "object in an object": lambda n, m, p: set_attribute(m.GAIN.inner, "gain", 2.5),
    "object in an object replaced": lambda n, m, p: set_attribute(m.GAIN, "inner", m.Gain(2.5)),
    "list in an object": lambda n, m, p: m.GAIN.table["k"].__setitem__(1, 3.5),
    "dict of an object replaced": lambda n, m, p: set_attribute(m.GAIN, "table", {"k": [0.0, 1.0]}),
    "object replaced by its like": lambda n, m, p: set_attribute(m, "GAIN", m.Gain(2.5, m.Gain(0.5))),
    "class attribute of an object": lambda n, m, p: set_attribute(m.Gain, "offset", 1.0),
    "class attribute hidden": lambda n, m, p: set_attribute(m.GAIN, "offset", 1.0),
    "method of an object hidden": lambda n, m, p: set_attribute(m.GAIN, "scale", lambda x: x * 3),
    "method called by a method hidden": lambda n, m, p: set_attribute(m.GAIN, "shift", lambda: 3.0),
    "method of the class": lambda n, m, p: set_attribute(m.Gain, "scale", lambda self, x: x * 3),
    "class of an object": lambda n, m, p: set_attribute(m.GAIN, "__class__", type("Gain", (m.Gain,), {"scale": half})),
    "slot": lambda n, m, p: set_attribute(m.SLOTS, "gain", 2.5),
    "list in a slot": lambda n, m, p: m.SLOTS.table.__setitem__(0, 2.5),
    "dataclass with slots": lambda n, m, p: set_attribute(m.SLOT_DATA, "gain", 2.5),
    "list of a dataclass with slots": lambda n, m, p: m.SLOT_DATA.items.__setitem__(0, 2.5),
    "dataclass": lambda n, m, p: set_attribute(m.DATA, "gain", 2.5),
    "list in a list of a dataclass": lambda n, m, p: m.DATA.items[1].__setitem__(0, 2.5),
    "dict of a frozen dataclass": lambda n, m, p: m.FROZEN.table.update(a=2.5),
    "frozen dataclass by force": lambda n, m, p: object.__setattr__(m.FROZEN, "table", {"a": 2.5}),
    "object in a global list": lambda n, m, p: set_attribute(m.GAINS[0], "gain", 2.5),
    "object in a global list replaced": lambda n, m, p: m.GAINS.__setitem__(0, m.Gain(2.5)),
    "object in a dict in a list": lambda n, m, p: set_attribute(m.GAINS[1]["inner"], "gain", 2.5),
    "deque": lambda n, m, p: m.QUEUE.append(2.5),
    "deque, item": lambda n, m, p: m.QUEUE.__setitem__(1, 2.5),
    "order of an OrderedDict": lambda n, m, p: m.ORDERED.move_to_end("double"),
    "item of an OrderedDict": lambda n, m, p: m.ORDERED.update(add=2.5),
    "UserDict": lambda n, m, p: m.BAG.update(gain=2.5),
    "dict with attributes": lambda n, m, p: m.SETTINGS.update(gain=2.5),
    "dict with attributes, deep": lambda n, m, p: m.SETTINGS.more.update(k=2.5),
    "object with __getattr__": lambda n, m, p: set_attribute(m.LOOKUP, "kept", 2.5),
    "namespace": lambda n, m, p: set_attribute(m.SPACE, "k", 2.5),
    "list of a namespace in a namespace": lambda n, m, p: m.SPACE.deep.k.__setitem__(0, 2.5),
    "array": lambda n, m, p: m.ARRAY.__setitem__(1, 4.5),
    "array in place": lambda n, m, p: m.ARRAY.__imul__(2),
    "array in a list in a dict": lambda n, m, p: m.ARRAYS["w"][0].fill(2.5),
    "scalar of NumPy": lambda n, m, p: set_attribute(m, "SCALAR", m.np.float64(2.5)),
    "keywords of a partial": lambda n, m, p: m.PARTIAL.keywords.update(other=3.0),
    "partial replaced": lambda n, m, p: set_attribute(m, "LEAKY", functools.partial(F.leaky_relu, negative_slope=0.75)),
    "partial of a partial": lambda n, m, p: set_attribute(
        m, "CHAINED", functools.partial(torch.add, alpha=0.75, other=1.0)
    ),
    "dict by enum": lambda n, m, p: m.CHOICES.__setitem__(m.Mode.TWICE, 5.0),
    "dict by tuple": lambda n, m, p: m.CHOICES.__setitem__(("a", 1), 5.0),
    "dict by number": lambda n, m, p: m.CHOICES.__setitem__(3, 5.0),
    "enum": lambda n, m, p: set_attribute(m, "MODE", m.Mode.THRICE) or m.CHOICES.__setitem__(m.Mode.THRICE, 2.0),
    "set": lambda n, m, p: m.STEPS.discard("relu"),
    "namedtuple": lambda n, m, p: set_attribute(m, "PAIR", m.Pair(2.5, [1.5])),
    "list in a namedtuple": lambda n, m, p: m.PAIR.high.__setitem__(0, 2.5),
    "getter of an attribute": lambda n, m, p: set_attribute(m, "GETTER", lambda slots: 2.5),
    "default of a function": lambda n, m, p: set_attribute(m.through, "__defaults__", (m.Gain(2.5),)),
    "object in a default": lambda n, m, p: set_attribute(m.through.__defaults__[0], "gain", 2.5),
    "keyword default of a function": lambda n, m, p: m.through.__kwdefaults__.update(table={"a": [0, (0, [2.5])]}),
    "object in a closure": lambda n, m, p: set_attribute(m.CLOSED.__closure__[0].cell_contents, "gain", 2.5),
    "list in a dict in a closure": lambda n, m, p: m.CLOSED.__closure__[1].cell_contents["k"].__setitem__(0, 2.5),
    "cell of a closure": lambda n, m, p: set_attribute(m.CLOSED.__closure__[1], "cell_contents", {"k": [2.5]}),
    "object in an attribute": lambda n, m, p: set_attribute(n.gain, "gain", 2.5),
    "object in an object in an attribute": lambda n, m, p: set_attribute(n.gain.inner, "gain", 2.5),
    "list in an object in an attribute": lambda n, m, p: n.gain.table["k"].__setitem__(1, 2.5),
    "method of an object in an attribute hidden": lambda n, m, p: set_attribute(n.gain, "scale", lambda x: x * 2.5),
    "method by MethodType": lambda n, m, p: set_attribute(n.gain, "scale", types.MethodType(half, n.gain)),
    "list in a list in an attribute": lambda n, m, p: n.nested["a"][0].__setitem__(0, 2.5),
    "list in a tuple in an attribute": lambda n, m, p: n.nested["a"][1][1].__setitem__(0, 2.5),
    "deque in an attribute": lambda n, m, p: n.queue.__setitem__(0, 2.5),
    "slot of an attribute": lambda n, m, p: set_attribute(n.slots, "gain", 2.5),
    "list in a slot of an attribute": lambda n, m, p: n.slots.table.__setitem__(0, 2.5),
    "dataclass of an attribute, deep": lambda n, m, p: n.data.items[1].__setitem__(0, 2.5),
    "UserDict of an attribute": lambda n, m, p: n.bag.update(k=2.5),
    "array of an attribute": lambda n, m, p: n.array.__setitem__(1, 2.5),
    "partial of an attribute": lambda n, m, p: n.partial.keywords.update(beta=2.5),
    "partial of an attribute replaced": lambda n, m, p: set_attribute(
        n, "partial", functools.partial(F.softplus, beta=2.5)
    ),
    "object in a list of an attribute": lambda n, m, p: set_attribute(n.helpers[0], "gain", 2.5),
    "object in a tuple of an attribute": lambda n, m, p: set_attribute(n.helpers[1][0], "gain", 2.5),
    "order of a dict of an attribute": lambda n, m, p: move(n.steps, "double"),
    "object of a bound method": lambda n, m, p: set_attribute(n.method.__self__, "gain", 2.5),
    "bound method of another object": lambda n, m, p: set_attribute(n, "method", m.Gain(2.5).scale),
    "object in the closure of an attribute": lambda n, m, p: set_attribute(
        n.closed.__closure__[0].cell_contents, "gain", 2.5
    ),
    "list in the closure of an attribute": lambda n, m, p: (
        n.closed.__closure__[1].cell_contents["k"].append(2.5) or n.closed.__closure__[1].cell_contents["k"].pop(0)
    ),
    "list in a namedtuple of an attribute": lambda n, m, p: n.pair.high.__setitem__(0, 2.5),
    "dict with attributes of an attribute": lambda n, m, p: n.settings.update(k=2.5),
    "global gone": lambda n, m, p: delattr(m, "MODE"),
    "attribute gone": lambda n, m, p: delattr(n, "queue"),
}
