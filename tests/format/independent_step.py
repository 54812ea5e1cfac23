"""The flat step of a schedule file, for the second simulator: from `schema/README.md` alone, nothing of remate
imported."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from .independent_split import Window

Json = dict[str, Any]
TABLES: Json = json.loads((Path(__file__).parents[2] / "schema/operators-1.json").read_bytes())
VIEWS = set(TABLES["views"])
SIZES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "f8e4m3": 1, "f8e5m2": 1, "i64": 8, "i32": 4, "i16": 2, "i8": 1}
SIZES |= {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "bool": 1, "c64": 8, "c128": 16}


class Tensor(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    cpu: bool

    @property
    def nbytes(self) -> int:
        if self.strides is None or 0 in self.shape:
            return prod(self.shape) * SIZES[self.dtype]
        last = sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))
        return (last + 1) * SIZES[self.dtype]


class Op(NamedTuple):
    id: str
    line: Json
    args: list[Any]  # values as `Name`
    reads: list[str]
    writes: list[str]
    ns: int

    @property
    def view(self) -> bool:
        return self.line["op"] in VIEWS


class Name(str):
    """A value among arguments, by its full name."""


def tensor(text: str) -> Tensor:
    match = re.fullmatch(r"(\w+)\[([\d,]*)\](?:\{([\d,]*)\})?(@cpu)?", text)
    assert match
    numbers = [None if part is None else tuple(map(int, filter(None, part.split(",")))) for part in match.group(2, 3)]
    return Tensor(match[1], numbers[0] or (), numbers[1], match[4] is not None)


def number(text: str, size: dict[str, int]) -> int:
    """An expression of named sizes, as Python spells it: `^` is a power, and a division that is exact leaves no
    rest."""
    value = eval(text.replace("^", "**").replace("//", "÷").replace("/", "//").replace("÷", "//"), {}, dict(size))
    return int(value)


def numbered(node: Any, size: dict[str, int]) -> Any:
    """A file at a size: numbers replace names."""
    if isinstance(node, list):
        return [numbered(item, size) for item in node]
    if not isinstance(node, dict):
        return (
            re.sub(r"(?<=[\[{,])[^\[\]{},]+", lambda found: str(number(found[0], size)), node)
            if is_type(node)
            else node
        )
    if node.keys() == {"size"}:
        return number(node["size"], size)
    evaluated = {key: numbered(item, size) for key, item in node.items()}
    if isinstance(evaluated.get("workspace"), str):
        evaluated["workspace"] = max(0, number(evaluated["workspace"], size))
    return evaluated


def is_type(text: Any) -> bool:
    return isinstance(text, str) and re.fullmatch(r"[a-z]+\d*\[[^\[\]]*\](\{[^}]*\})?(@cpu)?", text) is not None


class Step:
    """The flat step of a file: `ops` in order, `backward_start` the number of those in forward, `plan` before which op
    what is recomputed."""

    def __init__(self, file: Json) -> None:
        dims = file["model"].get("dims", {})
        file = numbered(file, {name: dim["planned"] for name, dim in dims.items()}) if dims else file
        self.file, self.model = file, file["model"]
        self.types: dict[str, Tensor] = {}
        self.ops: list[Op] = []
        self.index: dict[str, int] = {}
        self.spans: dict[str, tuple[range, range]] = {}  # instance -> its operations in forward and backward
        self.gradients: dict[str, str] = {}
        self.updates: dict[str, str] = {}
        self.plan: dict[int, list[int]] = {}
        self.pages: list[tuple[str, str, int | None, int | None, int | None]] = []  # value, memory, points
        self._sources()
        parts = [(i, i["id"], i.get("prefix", i["id"]), {}, "") for i in file["program"]]
        leaves: list[tuple[str, Json, dict[str, str]]] = []
        self.costs: dict[str, Json] = {}  # of a leaf
        self.workspaces: dict[str, Json] = {}  # of tiles of a leaf
        spans: list[tuple[str, int, int]] = []
        self.plans: list[tuple[str, list[Json]]] = [("", file.get("statements", []))]
        self._walk(parts, leaves, spans)
        self._lines(leaves)
        self._places(leaves, spans)
        self._note(self.model.get("gradients", {}), {}, self.gradients)
        self._splits()
        for prefix, statements in self.plans:
            self._statements(prefix, statements)

    def _sources(self) -> None:
        inputs = self.model.get("inputs", {})
        trees = [*inputs.get("args", []), *inputs.get("kwargs", {}).values()]
        self.sources = [leaf["name"] for leaf in leaves_of(trees, "tensor")]
        self.types.update((leaf["name"], tensor(leaf["tensor"])) for leaf in leaves_of(trees, "tensor"))
        self.parameters: list[str] = []
        for kind in ("parameters", "buffers"):
            for name, text in spelled(self.model.get(kind, {})):
                self.types[name] = tensor(text)
                self.sources.append(name)
                self.parameters += [name] if kind == "parameters" else []
        self.outputs = list(dict.fromkeys(leaf["value"][1:] for leaf in leaves_of(self.model["outputs"], "value")))
        self.tangents = {
            f"grad.{leaf['name']}": leaf["value"][1:]
            for leaf in leaves_of(self.model["outputs"], "value")
            if leaf.get("grad")
        }

    def _walk(self, parts: list[Any], leaves: list[Any], spans: list[Any]) -> None:
        """Instances in forward order. A part: instance, full id, prefix, scope around it, id of the composite around
        it."""
        for instance, full, prefix, around, outer in parts:
            block, given = self.file["blocks"][instance["block"]], instance.get("with", {})
            scope: dict[str, str] = {}
            for kind in ("inputs", "parameters", "buffers"):
                for name in block.get(kind, {}):
                    if name in given:
                        text = given[name][1:]
                        scope[name] = around.get(text) or (f"{outer}.{text}" if outer else text)
                    else:
                        scope[name] = f"{prefix}.{name}" if prefix else name
            for name, constant in block.get("constants", {}).items():
                scope[name] = f"{full}.{name}"
                self.types[scope[name]] = tensor(constant["type"])
            if instance.get("plan", "baseline") != "baseline":
                self.plans.append((full + ".", block["plans"][instance["plan"]]))
            first = len(leaves)
            if block.get("instances"):
                self._walk([self._part(i, full, prefix, scope) for i in block["instances"]], leaves, spans)
            else:
                leaves.append((full, block, scope))
                self.costs[full] = self.file.get("costs", {}).get(instance["block"], {})
                self.workspaces[full] = self.file.get("tile_workspaces", {}).get(instance["block"], {})
            spans.append((full, first, len(leaves)))
            self._note(block.get("gradients", {}), scope, self.gradients, full)
            self._note(block.get("updates", {}), scope, self.updates, full)

    def _part(self, instance: Json, full: str, prefix: str, scope: dict[str, str]) -> tuple[Any, ...]:
        own = instance.get("prefix", instance["id"])
        joined = ".".join(filter(None, (prefix, own)))
        return instance, f"{full}.{instance['id']}", joined, scope, full

    def _note(self, stated: dict[str, str], scope: dict[str, str], into: dict[str, str], full: str = "") -> None:
        for name, text in stated.items():
            into[scope.get(name, name)] = self._full(text[1:], scope, full)

    def _full(self, name: str, scope: dict[str, str], full: str) -> str:
        return scope.get(name) or (f"{full}.{name}" if full else name)

    def _lines(self, leaves: list[tuple[str, Json, dict[str, str]]]) -> None:
        for full, block, scope in leaves:
            for line in (*block.get("forward", []), *block.get("backward", [])):
                outs = line["out"]
                for k, out in enumerate(outs if isinstance(outs, list) else [outs]):
                    name = f"{line['id']}:{k}" if isinstance(outs, list) else line["id"]
                    if out is not None:
                        scope[name] = f"{full}.{name}"
                        self.types[scope[name]] = tensor(out)
        for tangent, output in self.tangents.items():
            self.types[tangent] = self.types[output]._replace(strides=None)

    def _places(self, leaves: list[tuple[str, Json, dict[str, str]]], spans: list[tuple[str, int, int]]) -> None:
        at: list[tuple[range, range]] = [(range(0), range(0))] * len(leaves)
        for side in (0, 1):
            for number in range(len(leaves))[:: -1 if side else 1]:
                full, block, scope = leaves[number]
                start = len(self.ops)
                for line in block.get(("forward", "backward")[side], []):
                    self.index[f"{full}.{line['id']}"] = len(self.ops)
                    self.ops.append(self._op(full, line, scope))
                forward = at[number][0]
                at[number] = (forward, range(start, len(self.ops))) if side else (range(start, len(self.ops)), range(0))
            if not side:
                self.backward_start = len(self.ops)
        for full, first, end in spans:
            forward = [i for number in range(first, end) for i in at[number][0]]
            backward = [i for number in range(first, end)[::-1] for i in at[number][1]]
            self.spans[full] = (range(forward[0], forward[-1] + 1) if forward else range(0), _range(backward))

    def _op(self, full: str, line: Json, scope: dict[str, str]) -> Op:
        def read(value: Any) -> Any:
            if isinstance(value, str) and value.startswith("%") and not value.startswith("%%"):
                return Name(scope[value[1:]])
            return [read(item) for item in value] if isinstance(value, list) else value

        def names(value: Any) -> Iterator[str]:
            if isinstance(value, Name):
                yield str(value)
            elif isinstance(value, list):
                for item in value:
                    yield from names(item)

        args = [read(a) for a in line.get("args", [])]
        reads = [name for a in (*args, *map(read, line.get("kwargs", {}).values())) for name in names(a)]
        outs = line["out"]
        keys = [f":{k}" for k, out in enumerate(outs) if out is not None] if isinstance(outs, list) else [""]
        name, took = f"{full}.{line['id']}", self.costs[full].get(line["id"], 0)
        return Op(name, line, args, list(dict.fromkeys(reads)), [name + k for k in keys], took)

    def _splits(self) -> None:
        for prefix, statements in self.plans:
            for statement in statements:
                if "split" in statement:
                    named = sorted({self.index[prefix + name] for name in statement["split"]})
                    first = self.ops[named[0]].id
                    home = max((full for full in self.costs if first.startswith(full + ".")), key=len)
                    Window(self, named, statement["into"], (self.costs[home], self.workspaces[home]), home).apply()

    def _tiles(self, name: str) -> list[int]:
        """The operations that replace a split operation."""
        return [i for i, op in enumerate(self.ops) if op.id.startswith(name + "@")]

    def _statements(self, prefix: str, statements: list[Json]) -> None:
        for statement in statements:
            if "page" in statement:
                self._page(prefix, statement)
                continue
            if "split" in statement:
                continue
            point = self._point(prefix + statement["before"])
            for name in statement["recompute"]:
                if prefix + name in self.index:
                    self.plan.setdefault(point, []).append(self.index[prefix + name])
                elif tiles := self._tiles(prefix + name):
                    again = [i for i in tiles if i < self.backward_start and not self.ops[i].view]
                    self.plan.setdefault(point, []).extend(again)
                else:
                    inside = (i for i in self.spans[prefix + name][0] if not self.ops[i].view)
                    self.plan.setdefault(point, []).extend(inside)

    def _page(self, prefix: str, statement: Json) -> None:
        named = [statement.get(field) for field in ("out", "gone", "back")]
        out, gone, back = (None if not point else self._point(prefix + point) for point in named)
        views = {w: op.reads[0] for op in self.ops if op.view for w in op.writes}

        def root(value: str) -> str:
            while value in views:
                value = views[value]
            return value

        of = {gradient: source for source, gradient in self.gradients.items() if source in self.parameters}
        roots = [root(gradient) for gradient in self.gradients.values()]
        for name in statement["page"]:
            full, _, number = (prefix + name).partition(":")
            if full in self.parameters:
                self.pages.append((full, statement.get("to", "disk"), None, gone, back))
                continue
            span = self.spans[full][0] if full in self.spans and full not in self.index else self._tiles(full)
            span = [self.index[full]] if full in self.index else span
            for value in (w for index in span for w in self.ops[index].writes):
                held = {root(v) for v in (*self.outputs, *self.gradients.values())}
                leaves = value not in views and value not in held and not (self.types[value].cpu and self._on_device)
                if value in of and roots.count(root(value)) == 1:
                    leaves = self.types[value]._replace(cpu=False) == self.types[of[value]]._replace(cpu=False)
                if leaves and (not number or value == f"{full}:{int(number)}"):
                    self.pages.append((value, statement.get("to", "disk"), out, gone, back))

    @property
    def _on_device(self) -> bool:
        return self.model["device"] != "cpu"

    def _point(self, full: str) -> int:
        if full in self.index:
            return self.index[full]
        return self._tiles(full)[0] if self._tiles(full) else self.spans[full][1][0]


def _range(numbers: list[int]) -> range:
    return range(numbers[0], numbers[-1] + 1) if numbers else range(0)


def spelled(entries: Json, before: str = "") -> Iterator[tuple[str, str]]:
    """The entries of a map after expansion of runs of numbers."""
    for key, value in entries.items():
        run = re.search(r"\[(\d+)-(\d+)\]$", key)
        for number in range(int(run[1]), int(run[2]) + 1) if run else [None]:
            name = before + (key if run is None else f"{key[: run.start()]}{number}")
            if isinstance(value, str):
                yield name, value
            else:
                yield from spelled(value, name + ".")


def leaves_of(tree: Any, key: str) -> list[Json]:
    """Leaves of a tree of inputs or outputs."""
    if isinstance(tree, list):
        return [leaf for item in tree for leaf in leaves_of(item, key)]
    if not isinstance(tree, dict) or "literal" in tree or "live" in tree:
        return []
    if key in tree:
        return [tree]
    if "returns" in tree:
        return [*leaves_of(tree["returns"], key), *leaves_of(list(tree["attributes"].values()), key)]
    inside = next(tree[k] for k in ("tuple", "list", "dict", "fields") if k in tree)
    return leaves_of(list(inside.values()) if isinstance(inside, dict) else inside, key)
