"""Places where a forward may find what it reads, as text of a model."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """Where a value is; `{h}` is its name, `{make}` what makes it, `{read}` the number that forward wants of it.

    Attributes:
        held: Python that forward reaches it by.
        get: Python that gives it, of `m` (the module of Python) and `n` (the model).
        put: Python that replaces it by `new`.
        above: Lines of the file.
        body: Lines of the class of the model.
        init: Lines of its `__init__`.
        forward: Lines of its forward, in place of those that multiply by `{read}`.
    """

    held: str
    get: str
    put: str
    above: str = ""
    body: str = ""
    init: str = ""
    forward: str = ""


def _at(name: str) -> tuple[str, str]:
    return name, f"{name} = new"


PLACES: dict[str, Place] = {
    "global": Place("{h}", *_at("m.{h}"), above="{h} = {make}"),
    "attribute": Place("self.{h}", *_at("n.{h}"), init="self.{h} = {make}"),
    "closure": Place(
        "{h}()",
        *_at("m.{h}.__closure__[0].cell_contents"),
        above="def make_{h}(held):\n    def inner():\n        return held\n\n"
        "    return inner\n\n\n{h} = make_{h}({make})",
    ),
    "default": Place(
        "{h}()",
        "m.{h}.__defaults__[0]",
        "m.{h}.__defaults__ = (new,)",
        above="def {h}(held={make}):\n    return held",
    ),
    "keyword default": Place(
        "{h}()",
        *_at("m.{h}.__kwdefaults__['held']"),
        above="def {h}(*, held={make}):\n    return held",
    ),
    "attribute of a function": Place(
        "{h}()", *_at("m.{h}.held"), above="def {h}():\n    return {h}.held\n\n\n{h}.held = {make}"
    ),
    "global of a function": Place(
        "read_{h}()", *_at("m.{h}"), above="{h} = {make}\n\n\ndef read_{h}():\n    return {h}"
    ),
    "attribute of a submodule": Place("self.inner.{h}", *_at("n.inner.{h}"), init="self.inner.{h} = {make}"),
    "attribute of the class": Place("self.{h}", *_at("m.Net.{h}"), body="{h} = {make}"),
    "type(self)": Place("type(self).{h}", *_at("m.Net.{h}"), body="{h} = {make}"),
    "class by name": Place("Held.{h}", *_at("m.Held.{h}"), above="Held.{h} = {make}"),
    "class method": Place(
        "Held.of_{h}()",
        *_at("m.Held.{h}"),
        above="Held.{h} = {make}\nHeld.of_{h} = classmethod(lambda cls: cls.{h})",
    ),
    "attribute of a base class": Place("self.{h}", *_at("m.Base.{h}"), above="Base.{h} = {make}"),
    "property": Place(
        "self.of_{h}", *_at("m.{h}"), above="{h} = {make}", body="@property\n    def of_{h}(self):\n        return {h}"
    ),
    "object in a global": Place("THING.{h}", *_at("m.THING.{h}"), above="THING.{h} = {make}"),
    "object in an attribute": Place("self.thing.{h}", *_at("n.thing.{h}"), init="self.thing.{h} = {make}"),
    "item of a global list": Place("ITEMS[{index}]", *_at("m.ITEMS[{index}]"), above="ITEMS.append({make})"),
    "item of a dict of an attribute": Place(
        "self.table['{h}']", *_at("n.table['{h}']"), init="self.table['{h}'] = {make}"
    ),
    "keywords of a partial": Place(
        "{h}()", *_at("m.{h}.keywords['held']"), above="{h} = functools.partial(given, held={make})"
    ),
    "object of a bound method": Place("{h}()", *_at("m.{h}.__self__.held"), above="{h} = Bound({make}).get"),
    "decorator": Place(
        "{h}()",
        *_at("m.{h}.__closure__[1].cell_contents"),
        above="@decorated({make})\ndef {h}():\n    return None",
    ),
    "default of a lambda": Place(
        "{h}()", "m.{h}.__defaults__[0]", "m.{h}.__defaults__ = (new,)", above="{h} = lambda held={make}: held"
    ),
    "module of Python": Place(
        "settings_of_trust.{h}", *_at("m.settings_of_trust.{h}"), above="settings_of_trust.{h} = {make}"
    ),
    "module imported by forward": Place(
        "__import__('settings_of_trust').{h}",
        *_at("m.settings_of_trust.{h}"),
        above="settings_of_trust.{h} = {make}",
        forward="import settings_of_trust\n        z = z + (y * ({read_imported})).sin()",
    ),
    "hook, keywords of a partial": Place(
        "",
        *_at("hook(n.mark_{h}).keywords['held']"),
        above="def hook_{h}(module, args, output, held=None):\n    return (output * ({read_held})).sin()",
        init="self.mark_{h} = nn.Identity()\n"
        "        self.mark_{h}.register_forward_hook(functools.partial(hook_{h}, held={make}))",
        forward="z = z + self.mark_{h}(y)",
    ),
    "hook, an object": Place(
        "",
        *_at("hook(n.mark_{h}).held"),
        above="class Hook_{h}:\n    def __init__(self, held):\n        self.held = held\n\n    def __call__(self, "
        "module, args, output):\n        held = self.held\n        return (output * ({read_held})).sin()",
        init="self.mark_{h} = nn.Identity()\n        self.mark_{h}.register_forward_hook(Hook_{h}({make}))",
        forward="z = z + self.mark_{h}(y)",
    ),
    "pre-hook, a closure": Place(
        "",
        *_at("hook(n.mark_{h}, '_forward_pre_hooks').__closure__[0].cell_contents"),
        above="def make_hook_{h}(held):\n    def hook(module, args):\n        return ((args[0] * "
        "({read_held})).sin(),)\n\n    return hook",
        init="self.mark_{h} = nn.Identity()\n        self.mark_{h}.register_forward_pre_hook(make_hook_{h}({make}))",
        forward="z = z + self.mark_{h}(y)",
    ),
    "backward of a Function": Place(
        "",
        *_at("m.{h}"),
        above="{h} = {make}\n\n\nclass Function_{h}(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, "
        "x):\n        return x.clone()\n\n    @staticmethod\n    def backward(ctx, grad):\n        held = {h}\n  "
        "      return grad * ({read_held})",
        forward="z = z + Function_{h}.apply(y)",
    ),
    "hook of a tensor": Place(
        "",
        *_at("m.{h}"),
        above="{h} = {make}\n\n\ndef hook_{h}(grad):\n    held = {h}\n    return grad * ({read_held})",
        forward="w = y.sin()\n        w.register_hook(hook_{h})\n        z = z + w",
    ),
    "getattr of a computed name": Place("getattr(self, ''.join(['{h}']))", *_at("n.{h}"), init="self.{h} = {make}"),
    "globals()": Place("globals()[''.join(['{h}'])]", *_at("m.{h}"), above="{h} = {make}"),
    "vars(self)": Place("vars(self)['{h}']", *_at("n.{h}"), init="self.{h} = {make}"),
    "context variable": Place(
        "{h}.get()", "m.{h}.get()", "m.{h}.set(new)", above="{h} = contextvars.ContextVar('{h}', default={make})"
    ),
    "thread local": Place("LOCAL.{h}", *_at("m.LOCAL.{h}"), above="LOCAL.{h} = {make}"),
    "cached function": Place(
        "{h}()",
        "m.held_{h}",
        "m.held_{h} = new; m.{h}.cache_clear()",
        above="held_{h} = {make}\n\n\n@functools.lru_cache\ndef {h}():\n    return held_{h}",
    ),
    "registry of another module": Place(
        "settings_of_trust.REGISTRY['{h}']",
        *_at("m.settings_of_trust.REGISTRY['{h}']"),
        above="settings_of_trust.REGISTRY['{h}'] = {make}",
    ),
    "object that a method returns": Place(
        "self.lookup('{h}')", *_at("n.table['{h}']"), init="self.table['{h}'] = {make}"
    ),
    "singleton": Place("Single.get().{h}", *_at("m.Single.get().{h}"), above="Single.get().{h} = {make}"),
    "generator expression": Place(
        "next(each for name, each in THINGS.items() if name == '{h}')",
        *_at("m.THINGS['{h}']"),
        above="THINGS['{h}'] = {make}",
    ),
    "argument of a method": Place("self.through({h})", *_at("m.{h}"), above="{h} = {make}"),
    "starred keywords": Place(
        "given(**{{'held': OPTIONS['{h}']}})", *_at("m.OPTIONS['{h}']"), above="OPTIONS['{h}'] = {make}"
    ),
}
