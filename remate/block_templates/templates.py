"""Templates: every leaf and composite of the tree as a block of the file; equal ones share a block."""

from __future__ import annotations

import msgspec

from remate_runtime.flat_step import LIVE, Graph
from remate_runtime.format import Block, Instance

from ..capture.captured import Captured
from ..partition.canonical import form
from ..partition.hierarchy import BlockSpan
from .leaf import Written, write_leaf
from .names import NameAllocator, relative

_OWN = ("parameter", "buffer", LIVE)  # kinds that a prefix can bind


class Use(msgspec.Struct, frozen=True):
    """How a part uses its template.

    Attributes:
        template: Name of the template.
        bindings: Local name -> graph value, for everything that the prefix does not bind.
        gradients: Parameters (graph values) whose gradient the template declares.
    """

    template: str
    bindings: dict[str, int]
    gradients: tuple[int, ...]


class Templates:
    """Collects the blocks of a file.

    Attributes:
        blocks: The templates, by name.
        costs: ns of the operations of each leaf block, by local id.
        ids: Full id of every placed operation, by graph index.
        constants: Full name of every constant, in the first block that declares it.
    """

    def __init__(self, captured: Captured) -> None:
        self.blocks: dict[str, Block] = {}
        self.costs: dict[str, dict[str, int]] = {}
        self.ids: dict[int, str] = {}
        self.constants: dict[int, str] = {}
        self._captured = captured
        self._names = NameAllocator()
        self._leaves: dict[bytes, tuple[str, Written]] = {}
        self._composites: dict[bytes, str] = {}

    def use(self, part: BlockSpan) -> Use:
        """Return the template of a part and the bindings of an instance, and create the template if it is new."""
        return self._composite(part) if part.parts else self._leaf(part)

    def _leaf(self, part: BlockSpan) -> Use:
        graph = self._captured.graph
        shape = form(graph, part)
        if shape.key not in self._leaves:
            written = write_leaf(self._captured, part, shape)
            name = self._add(part.label, written.block)
            self._leaves[shape.key] = (name, written)
            if written.costs:
                self.costs[name] = written.costs
        name, written = self._leaves[shape.key]
        for i, local in zip(shape.operations, written.ids, strict=True):
            self.ids[i] = f"{part.id}.{local}"
        for v, local in zip(shape.sources, written.names, strict=True):
            if graph.values[v].kind == "constant":
                self.constants.setdefault(v, f"{part.id}.{local}")
        bindings = {
            local: v
            for v, local in zip(shape.sources, written.names, strict=True)
            if graph.values[v].kind != "constant" and not _by_prefix(graph, part, local, v)
        }
        order = {n: k for k, n in enumerate(_declared(written.block))}
        ordered = dict(sorted(bindings.items(), key=lambda pair: order[pair[0]]))
        return Use(name, ordered, tuple(p for p, _ in shape.gradients))

    def _composite(self, part: BlockSpan) -> Use:
        graph = self._captured.graph
        uses = [self.use(child) for child in part.parts]
        inside = {v for i in _operations(part) for v in graph.operations[i].writes if v is not None}
        names, allocator = dict[int, str](), NameAllocator()
        for child in part.parts:
            allocator.take(relative(child.id, part.id))
        for v in dict.fromkeys(v for use in uses for v in use.bindings.values() if v not in inside):
            own = graph.values[v].kind in _OWN
            names[v] = allocator.take(relative(graph.values[v].name, part.prefix) if own else self._role(v))

        def local(v: int) -> str:
            return names[v] if v in names else relative_id(self._value_name(v), part.id)

        instances = tuple(
            Instance(
                id=relative_id(child.id, part.id),
                block=use.template,
                prefix=_nested_prefix(child, part),
                bindings={name: f"%{local(v)}" for name, v in use.bindings.items()},
            )
            for child, use in zip(part.parts, uses, strict=True)
        )
        kinds: dict[str, dict[str, str]] = {"parameter": {}, "buffer": {}, LIVE: {}, "value": {}}
        for v, name in names.items():
            kind = graph.values[v].kind
            kinds[kind if kind in _OWN else "value"][name] = str(graph.values[v].type)
        block = Block(
            inputs=kinds["value"],
            parameters=kinds["parameter"],
            buffers=kinds["buffer"],
            live=tuple(kinds[LIVE]),
            instances=instances,
        )
        key = msgspec.json.encode(block)
        if key not in self._composites:
            self._composites[key] = self._add(part.label, block)
        bindings = {name: v for v, name in names.items() if not _by_prefix(graph, part, name, v)}
        return Use(self._composites[key], bindings, tuple(p for use in uses for p in use.gradients))

    def _add(self, label: str, block: Block) -> str:
        name = self._names.take(label)
        self.blocks[name] = block
        return name

    def _role(self, v: int) -> str:
        graph, about = self._captured.graph, self._captured.graph.values[v]
        if about.kind != "op":
            return about.name
        return "grad" if about.producer >= graph.backward_start else "x"

    def _value_name(self, v: int) -> str:
        op = self._captured.graph.operations[self._captured.graph.values[v].producer]
        name = self.ids[self._captured.graph.values[v].producer]
        return f"{name}:{op.writes.index(v)}" if op.multiple else name


def relative_id(full: str, enclosing: str) -> str:
    """Return the id `full` relative to the instance `enclosing`."""
    return full.removeprefix(enclosing + ".")


def _nested_prefix(child: BlockSpan, part: BlockSpan) -> str | None:
    """Return the prefix that a nested instance must state to resolve its parameters."""
    if not part.prefix:
        own = child.prefix
    elif child.prefix == part.prefix:
        own = ""
    else:
        own = relative_id(child.prefix, part.prefix)
    return None if own == relative_id(child.id, part.id) else own


def _by_prefix(graph: Graph, part: BlockSpan, local: str, v: int) -> bool:
    """Return whether the prefix of `part` resolves the parameter or buffer v under the name `local`."""
    about = graph.values[v]
    return about.kind in _OWN and about.name == (f"{part.prefix}.{local}" if part.prefix else local)


def _declared(block: Block) -> list[str]:
    return [*block.inputs, *block.parameters, *block.buffers, *block.live]


def _operations(part: BlockSpan) -> tuple[int, ...]:
    return (*range(*part.forward), *range(*part.backward))
