"""The registry of engines."""

from __future__ import annotations

from ..errors import EngineError
from .compiled.compiled_engine import AUTO, COMPILED
from .compiled_step import Engine
from .eager.eager_engine import EAGER
from .experimental.arena.arena_engine import ARENA

ENGINES: tuple[Engine, ...] = (EAGER, ARENA, COMPILED, AUTO)


def engine_of(name: str | Engine) -> Engine:
    """Return an engine by name, and an engine as it is. Raises EngineError with the known names."""
    if isinstance(name, Engine):
        return name
    engines = {engine.name: engine for engine in ENGINES}
    if name not in engines:
        known = "; ".join(f"{engine.name!r} ({engine.about})" for engine in ENGINES)
        raise EngineError(f"there is no engine {name!r}\n  the engines: {known}")
    return engines[name]
