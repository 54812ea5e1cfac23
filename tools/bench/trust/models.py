"""Models that read values of many kinds in one place each, as files of a user; imported again for every case."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import tempfile
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .kinds import HEAD, KINDS, Kind
from .places import Place

_CLASSES = """
import settings_of_trust


def given(held=None):
    return held


def hook(module, hooks="_forward_hooks"):
    return next(iter(getattr(module, hooks).values()))


def decorated(held):
    def around(function):
        @functools.wraps(function)
        def inner():
            function()
            return held

        return inner

    return around


class Held:
    pass


class Bound:
    def __init__(self, held):
        self.held = held

    def get(self):
        return self.held


class Single:
    one = None

    @classmethod
    def get(cls):
        if cls.one is None:
            cls.one = cls()
        return cls.one


class Base(nn.Module):
    pass


class Inner(nn.Module):
    def forward(self, x):
        return x


THING, ITEMS, THINGS, OPTIONS, LOCAL = Held(), [], {}, {}, threading.local()
"""

_NET = """

class Net(Base):
{body}

    def __init__(self):
        super().__init__()
        self.lin, self.inner, self.thing, self.table = nn.Linear(4, 4), Inner(), Held(), {{}}
{init}

    def lookup(self, name):
        return self.table[name]

    def through(self, held):
        return held

    def forward(self, x):
        y = self.inner(self.lin(x))
        z = torch.zeros_like(y)
{forward}
        return z.mean()


def build():
    torch.manual_seed(0)
    return Net()
"""
_SETTINGS = "settings_of_trust"
_numbers = itertools.count()


def name_of(kind: str) -> str:
    """A kind's name as a variable."""
    return "h_" + "".join(letter if letter.isalnum() else "_" for letter in kind).lower()


def source_of(place: Place, kinds: Sequence[str]) -> str:
    """The file of a model that reads values of these kinds in one place."""
    above, body, init, forward = [], [], [], []
    for index, kind in enumerate(kinds):
        kind_of_change = KINDS[kind]
        words = {"h": name_of(kind), "make": kind_of_change.make.format(), "index": index}
        words["read_held"] = kind_of_change.read.format(h="held")
        words["read_imported"] = kind_of_change.read.format(h=f"{_SETTINGS}.{words['h']}")
        held = place.held.format(**words)
        above.append(place.above.format(**words))
        body.append(place.body.format(**words))
        init.append(place.init.format(**words))
        forward.append(place.forward.format(**words) or f"z = z + (y * ({kind_of_change.read.format(h=held)})).sin()")
    net = _NET.format(body=_indented(body, 4) or "    pass", init=_indented(init, 8), forward=_indented(forward, 8))
    return "\n\n".join([HEAD, _CLASSES, *filter(None, above), net])


def _indented(lines: Sequence[str], by: int) -> str:
    return "\n".join(" " * by + line for line in lines if line)


class Sources:
    """Writes files of models and imports them afresh each time, as another process does. Use it as a context."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()

    def __enter__(self) -> Sources:
        return self

    def __exit__(self, *args: object) -> None:
        self._folder.cleanup()

    def load(self, text: str, name: str = "model_of_trust") -> types.ModuleType:
        """The module of a file with this text. The settings that it may import are empty before."""
        settings = types.ModuleType(_SETTINGS)
        settings.REGISTRY = {}  # type: ignore[attr-defined]
        file = Path(self._folder.name) / "settings" / f"{_SETTINGS}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text("")
        settings.__file__ = str(file)
        sys.modules[_SETTINGS] = settings
        folder = Path(self._folder.name) / str(next(_numbers))
        folder.mkdir()
        path = folder / f"{name}.py"
        path.write_text(text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module


def changed(place: Place, kinds: Sequence[str], kind: str, module: types.ModuleType, model: Any) -> None:
    """Change the value of a kind in its place. kinds: all that the model reads."""
    kind_of_change: Kind = KINDS[kind]
    words = {"h": name_of(kind), "index": kinds.index(kind)}
    scope = {**vars(module), "m": module, "n": model}
    scope["h"] = eval(place.get.format(**words), scope)
    if kind_of_change.change:
        exec(kind_of_change.change, scope)
    else:
        scope["new"] = eval(kind_of_change.other, scope)
        exec(place.put.format(**words), scope)
