"""The tree: rooms by purpose, imports that go down only, no cycles, and the planner on the runtime's public surface."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Rooms from the bottom to the top: a module imports from its own room and from those before it.
RUNTIME = [
    "support",
    "torch_private",
    "errors",
    "version",
    "extras",
    "devices",
    "operators",
    "format",
    "flat_step",
    "link",
    "display",
    "addresses",
    "operator_calls",
    "bind",
    "staleness",
    "engine",
]
RUNTIME += ["self_check", "applied", "__init__"]
PLANNER = [
    "errors",
    "interrupts",
    "budget",
    "step_measurement",
    "capture",
    "live_attributes",
    "profile",
    "partition",
    "block_templates",
    "splits",
    "strategy",
    "standalone_graphs",
    "dims",
    "schedule_tools",
    "pipelines",
    "api",
]
PLANNER += ["training", "integrations", "present", "cli", "__init__", "__main__"]
HOUSES = {"remate_runtime": (ROOT / "runtime" / "remate_runtime", RUNTIME), "remate": (ROOT / "remate", PLANNER)}
LINES = 400


@cache
def parsed(path: Path) -> ast.Module:
    """A module's tree, which the tests share and must not change."""
    return ast.parse(path.read_text(encoding="utf-8"))


def modules(house: str) -> dict[str, Path]:
    """Every module of a package by its dotted name; a package by the name of its folder."""
    root = HOUSES[house][0]
    by_name = {}
    for path in sorted(root.rglob("*.py")):
        parts = [house, *path.relative_to(root).with_suffix("").parts]
        by_name[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return by_name


@cache
def imports(name: str, path: Path, *, lazy: bool = True) -> tuple[str, ...]:
    """Modules that a module imports, absolute; without those inside functions if not `lazy`."""
    return tuple(_imports(name, path, lazy))


def statements(node: ast.AST, lazy: bool) -> Iterator[ast.AST]:
    """Statements inside a module or a statement, at any depth; without those of functions if not `lazy`."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for inner in getattr(node, field, ()):
            yield inner
            if lazy or not (isinstance(inner, ast.FunctionDef) or _for_types(inner)):
                yield from statements(inner, lazy)


def _for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _imports(name: str, path: Path, lazy: bool) -> Iterator[str]:
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in statements(parsed(path), lazy):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            whole = ".".join([*base, *([node.module] if node.module else [])])
            yield whole
            yield from (f"{whole}.{alias.name}" for alias in node.names)


def room(house: str, name: str) -> str:
    return [*name.split("."), "__init__"][1]


@pytest.mark.quick("remate_runtime")
@pytest.mark.parametrize("house", HOUSES)
def test_imports_go_down(house: str) -> None:
    known, order = modules(house), HOUSES[house][1]
    upwards = [
        f"{name} -> {target}"
        for name, path in known.items()
        for target in imports(name, path)
        if target in known and target != house and order.index(room(house, target)) > order.index(room(house, name))
    ]
    assert upwards == []


@pytest.mark.slow
@pytest.mark.parametrize("house", HOUSES)
def test_no_module_imports_itself_through_others(house: str) -> None:
    known = modules(house)
    edges = {
        name: {t for t in imports(name, path, lazy=False) if t in known and t != house} for name, path in known.items()
    }
    # A name of a package is not an import of the package by its own modules.
    edges = {name: {t for t in result if t != name and not name.startswith(f"{t}.")} for name, result in edges.items()}
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join([*above[above.index(name) :], name])
        if name not in done:
            for target in sorted(edges[name]):
                visit(target, (*above, name))
            done.add(name)

    for name in edges:
        visit(name, ())


def test_the_runtime_imports_no_planner() -> None:
    for name, path in modules("remate_runtime").items():
        tops = {target.partition(".")[0] for target in imports(name, path)}
        assert not tops & {"remate", "pyomo", "highspy", "scipy", "numpy", "jsonschema"}, name


def test_the_planner_uses_the_runtime_by_its_rooms() -> None:
    """What the planner takes, a room of the runtime offers under `__all__`."""
    open_rooms = (
        "support",
        "torch_private",
        "devices",
    )  # of small modules with a subject each, all of them for everybody
    inner = {n for n in modules("remate_runtime") if n.count(".") > 1 and room("remate_runtime", n) not in open_rooms}
    results = [
        f"{name} -> {target}"
        for name, path in modules("remate").items()
        for target in imports(name, path)
        if target in inner
    ]
    assert results == []


def test_nothing_lies_loose_at_the_root() -> None:
    loose = {path.name for path in (ROOT / "remate").glob("*.py")}
    assert loose == {"__init__.py", "__main__.py", "errors.py", "budget.py", "interrupts.py"}


@pytest.mark.parametrize("house", HOUSES)
def test_every_room_says_what_it_is_for(house: str) -> None:
    for name, path in modules(house).items():
        assert ast.get_docstring(parsed(path)), name


def test_files_are_small() -> None:
    folders = ("remate", "runtime", "tools", "tests", "examples")
    long = [str(p) for f in folders for p in (ROOT / f).rglob("*.py") if len(p.read_text("utf-8").splitlines()) > LINES]
    assert long == []


# Classes that libraries expect under one name.
SHARED_NAMES = {"RemateCallback"}
# Modules outside `torch_private` that use private interfaces of torch. The list may only become shorter.
PRIVATE_TORCH = {
    "remate": {
        "api.dry_run",
        "capture.branches",
        "capture.cuda.generated",
        "capture.cuda.no_gpu",
        "capture.cuda.rules",
        "capture.cuda.versions",
        "capture.eager_kernels",
        "capture.fake_call",
        "capture.fake_module",
        "capture.gradient_layouts",
        "capture.hot_paths",
        "capture.known_values",
        "capture.layouts",
        "capture.outside",
        "capture.remembered",
        "capture.repeats.candidates",
        "capture.torch_api",
        "dims.resize",
    },
    "remate_runtime": {
        "engine.compiled.inductor",
        "engine.compiled.kernel_units",
        "operator_calls.cache_folder",
    },
}


def private_torch(tree: ast.AST) -> set[str]:
    """Private modules, functions and classes of torch that a module names; operators (`torch.ops`) are public."""
    names = {"torch": "torch"}
    named: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            whole = {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            names |= whole
            named |= set(whole.values())

    def dotted(node: ast.AST) -> str:
        if isinstance(node, ast.Attribute):
            return f"{dotted(node.value)}.{node.attr}"
        return names.get(node.id, "") if isinstance(node, ast.Name) else ""

    named |= {dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    named |= {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    of_torch = {name for name in named if name.startswith("torch.") and not name.startswith("torch.ops.")}
    return {
        name for name in of_torch if re.search(r"\._(?!_)\w+$|\._(?!_)\w+\.[\w.]+$|^torch\.fx\.experimental\b", name)
    }


@pytest.mark.slow
@pytest.mark.parametrize("house", HOUSES)
def test_private_torch_is_in_one_room(house: str) -> None:
    """Private interfaces are used in `torch_private`, and in the modules that are listed here."""
    users = {
        name.partition(".")[2]
        for name, path in modules(house).items()
        if private_torch(parsed(path)) and room(house, name) != "torch_private"
    }
    assert users == PRIVATE_TORCH[house]


def test_the_page_about_private_torch_is_complete() -> None:
    """Every name that `torch_private` exports is in the table of the page, and no other."""
    text = (ROOT / "docs" / "private-torch.md").read_text(encoding="utf-8")
    table = text.partition("|---|---|---|\n")[2].partition("\n\n")[0]
    listed = {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    exported: set[str] = set()
    for path in (HOUSES["remate_runtime"][0] / "torch_private").glob("*.py"):
        for node in parsed(path).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                exported |= set(ast.literal_eval(node.value))
    assert listed == exported


def test_a_class_has_a_name_of_its_own() -> None:
    """No two classes of the two packages share a name, except one per library that integrates remate."""
    places: dict[str, list[str]] = {}
    for house in HOUSES:
        for name, path in modules(house).items():
            for node in ast.walk(parsed(path)):
                if isinstance(node, ast.ClassDef) and node.name not in SHARED_NAMES:
                    places.setdefault(node.name, []).append(name)
    assert {name: users for name, users in places.items() if len(users) > 1} == {}
