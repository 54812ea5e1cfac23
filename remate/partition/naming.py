"""Names of the parts: the module's path if a part is a whole module, otherwise the modules that it spans."""

from __future__ import annotations

from collections.abc import Sequence

from ..capture.captured import Captured
from .hierarchy import BlockSpan
from .pieces import ModuleSpan


def name_parts(captured: Captured, pieces: Sequence[ModuleSpan]) -> tuple[BlockSpan, ...]:
    """Return parts with unique ids and empty backward ranges.

    No id is a prefix of another, except that of a composite.
    """
    return _Naming(captured).parts(pieces, "", "")


class _Naming:
    def __init__(self, captured: Captured) -> None:
        self._captured = captured
        self._taken: set[str] = set()

    def parts(self, pieces: Sequence[ModuleSpan], enclosing: str, prefix: str) -> tuple[BlockSpan, ...]:
        """Return named parts.

        Args:
            pieces: Spans of the forward.
            enclosing: Id of the composite around the pieces ("" at the top).
            prefix: Module path of that composite.
        """
        names = [self._name(piece) for piece in pieces]
        spans: list[BlockSpan] = []
        for piece, (module, rest) in zip(pieces, names, strict=True):
            path = _joined(module, rest)
            if enclosing:
                # A loop inside a module's forward: its rounds belong to that module.
                path = _joined(enclosing, path[len(prefix) :].lstrip(".") or "part")
            full = self._unique(path, enclosing)
            empty = (self._captured.graph.backward_start, self._captured.graph.backward_start)
            inner = self.parts(piece.pieces, full, module) if piece.pieces else ()
            spans.append(BlockSpan(full, module, self._label(module, rest), (piece.start, piece.stop), empty, inner))
        return tuple(spans)

    def _name(self, piece: ModuleSpan) -> tuple[str, str]:
        """Return (module path, name below it): `("h.0", "")`, `("transformer", "wte~drop")`, `("", "part")`."""
        if piece.own and piece.path:
            return piece.path, ""
        modules = list(dict.fromkeys(self._captured.modules[piece.start : piece.stop]))
        shared = _shared([module.split(".") if module else [] for module in modules])
        if shared in modules and len(modules) == 1:
            return shared, "part"
        below = [m[len(shared) :].lstrip(".") for m in modules]
        heads = list(dict.fromkeys(_short(b) for b in below if b))
        return shared, (heads[0] if len(heads) == 1 else f"{heads[0]}~{heads[-1]}") if heads else "part"

    def _label(self, module: str, rest: str) -> str:
        name = self._captured.classes.get(module) or (module.rpartition(".")[2] if module else "Model")
        return _joined(name, rest)

    def _unique(self, wanted: str, enclosing: str) -> str:
        """Return `wanted`, or `wanted~2`, …: different from every id, and a prefix or extension of none but
        `enclosing`."""
        around = f"{enclosing}."
        others = [other for other in self._taken if not around.startswith(other + ".")]
        wanted = wanted or "model"
        for other in sorted(others, key=len):
            if wanted.startswith(other + "."):  # a part is never inside a leaf
                wanted = f"{other}~{wanted[len(other) + 1 :]}"
        name, k = wanted, 2
        while any(other == name or other.startswith(name + ".") for other in others):
            name, k = f"{wanted}~{k}", k + 1
        self._taken.add(name)
        return name


def _shared(paths: list[list[str]]) -> str:
    shared = paths[0]
    for path in paths[1:]:
        k = 0
        while k < min(len(shared), len(path)) and shared[k] == path[k]:
            k += 1
        shared = shared[:k]
    return ".".join(shared)


def _joined(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def _short(path: str) -> str:
    """Return the last component of a path with its list: `lm_head`, `up_0`."""
    head, _, last = path.rpartition(".")
    return f"{head.rpartition('.')[2]}_{last}" if last.isdigit() and head else last
