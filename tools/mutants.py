"""Shows that tests notice faults: python -m tools.mutants [--count N] [--seed S] [ROOM ...]

Changes one operator or number of the source at a time, in a copy of the tree, and runs the tests of that room. Prints
for each change which test noticed it. A change that no test noticed is a missing test, unless the program means the
same with it. The same seed takes the same changes of the same source. Exit status 1: a change survived.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[1]
COPIED = ("remate", "runtime", "tests", "tools", "schema", "examples", "docs", "pyproject.toml", "README.md")
LIMIT = 900  # seconds: a change that makes the tests run longer is noticed, too
_RUNTIME = "runtime/remate_runtime"

# The tests that should notice a fault of each room, quick ones first.
ROOMS: dict[str, tuple[str, ...]] = {
    f"{_RUNTIME}/link": (
        *(f"tests/runtime/test_{name}.py" for name in ("link", "lives", "deliveries", "memory", "linked_sizes")),
        *(
            f"tests/runtime/test_{name}.py"
            for name in ("paged_link", "recompute_order", "agreement", "random_recomputes")
        ),
    ),
    f"{_RUNTIME}/engine/eager": (
        *(f"tests/runtime/test_{name}.py" for name in ("step", "apply", "writes", "partial_backward", "pages")),
        *(f"tests/runtime/test_{name}.py" for name in ("random_recomputes", "zoo", "saved_hooks", "host_states")),
    ),
    f"{_RUNTIME}/bind": (
        *(f"tests/runtime/test_{name}.py" for name in ("bindings", "calls", "overloads", "attributes", "identity")),
        *(
            f"tests/runtime/test_{name}.py"
            for name in ("changed_tensors", "sizes", "declared_types", "writes", "padding")
        ),
    ),
    f"{_RUNTIME}/staleness": ("tests/staleness", "tests/live_attributes"),
    f"{_RUNTIME}/flat_step": (
        *(f"tests/runtime/test_{name}.py" for name in ("sizes", "splits", "row_rules", "programs", "shared_programs")),
        "tests/format",
    ),
    f"{_RUNTIME}/format": ("tests/format",),
    "remate/dims": ("tests/dims",),
    "remate/splits": tuple(f"tests/planner/test_{name}.py" for name in ("plan_split", "split_goals", "small_products")),
    "remate/strategy": (
        *(f"tests/planner/test_{name}.py" for name in ("classical", "checkmate", "moccasin", "hiremate", "online")),
        *(f"tests/planner/test_{name}.py" for name in ("strategy", "strategy_contract", "strategy_many", "optimum")),
        *(f"tests/planner/test_{name}.py" for name in ("cuts", "paging", "poet", "treewidth", "weight_offloading")),
    ),
    "remate/capture": tuple(
        f"tests/planner/test_capture{name}.py"
        for name in ("", "_features", "_layouts", "_branches", "_errors", "_repeats", "_models", "_assertions")
    )
    + tuple(
        f"tests/planner/test_{name}.py" for name in ("attention_rules", "cuda_elsewhere", "random_layouts", "heads")
    ),
}

_COMPARE: Mapping[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_BINARY: Mapping[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
}
_BOOLEAN: Mapping[type[ast.boolop], tuple[str, str]] = {ast.And: ("and", "or"), ast.Or: ("or", "and")}


class Mutant(msgspec.Struct, frozen=True):
    """A change of the source.

    Attributes:
        path: The file, from the root of the tree.
        line: Number of the line, from 1.
        start: Offset in bytes in the file.
        old: What is replaced.
        new: What replaces it.
    """

    path: str
    line: int
    start: int
    old: str
    new: str

    def applied(self, source: bytes) -> bytes:
        end = self.start + len(self.old.encode())
        assert source[self.start : end] == self.old.encode(), self
        return source[: self.start] + self.new.encode() + source[end:]


def candidates(path: str, source: bytes) -> Iterator[Mutant]:
    """Yield every change of a file: operators, and whole numbers in expressions."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def offset(line: int | None, column: int | None) -> int:
        assert line is not None
        assert column is not None
        return starts[line - 1] + column

    def between(left: ast.expr, right: ast.expr, change: tuple[str, str]) -> Iterator[Mutant]:
        start, end = offset(left.end_lineno, left.end_col_offset), offset(right.lineno, right.col_offset)
        word = r"\s+".join(map(re.escape, change[0].split()))
        matching = re.search(rf"(?<![\w<>=!+*/-]){word}(?![\w<>=+*/-])".encode(), source[start:end])
        if matching:
            at = start + matching.start()
            yield Mutant(path, source.count(b"\n", 0, at) + 1, at, matching[0].decode(), change[1])

    for node in _expressions(ast.parse(source)):
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            for left, right, operator in zip(operands, operands[1:], node.ops, strict=False):
                yield from between(left, right, _COMPARE[type(operator)])
        elif isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            yield from between(node.left, node.right, _BINARY[type(node.op)])
        elif isinstance(node, ast.BoolOp):
            yield from between(node.values[0], node.values[1], _BOOLEAN[type(node.op)])
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield Mutant(path, node.lineno, offset(node.lineno, node.col_offset), "not ", "")
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            start = offset(node.lineno, node.col_offset)
            old = source[start : offset(node.end_lineno, node.end_col_offset)].decode()
            yield Mutant(path, node.lineno, start, old, str(node.value + 1))


def _expressions(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the nodes inside functions that can change what the program does: no annotations, messages or assertions."""
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, inside = waiting.pop()
        if inside:
            yield node
        inside = inside or isinstance(node, ast.FunctionDef)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list") or isinstance(
                node, ast.Raise | ast.Assert | ast.JoinedStr
            ):
                continue
            children = value if isinstance(value, list) else [value]
            waiting += [(child, inside) for child in children if isinstance(child, ast.AST)]


def chosen(root: Path, rooms: Sequence[str], count: int, seed: int) -> list[tuple[str, Mutant]]:
    """Return changes at random, in turn from each room."""
    drawn = random.Random(seed)
    places = {}
    for room in rooms:
        files = sorted((root / room).rglob("*.py"))
        every = [m for file in files for m in candidates(file.relative_to(root).as_posix(), file.read_bytes())]
        places[room] = drawn.sample(every, min(len(every), -(-count // len(rooms))))
    turns = [(room, places[room][at]) for at in range(count) for room in rooms if at < len(places[room])]
    return turns[:count]


def tested(folder: Path, tests: Sequence[str]) -> str | None:
    """Return the test that fails first in a copy of the tree; None if all pass."""
    paths = os.pathsep.join(map(str, (folder, folder / "runtime")))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return f"no end after {LIMIT} s"
    if run.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
    return failed[1] if failed else f"exit status {run.returncode}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rooms", nargs="*", metavar="ROOM", default=list(ROOMS), help=f"of {', '.join(ROOMS)}")
    parser.add_argument("--count", type=int, default=20, help="number of changes (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="which changes (default: %(default)s)")
    args = parser.parse_args(argv)
    if unknown := [room for room in args.rooms if room not in ROOMS]:
        parser.error(f"no room {', '.join(unknown)}; one of {', '.join(ROOMS)}")
    survived = 0
    with tempfile.TemporaryDirectory(prefix="remate-mutants-") as name:
        folder = Path(name)
        for part in COPIED:
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
            copy(ROOT / part, folder / part)
        for room, mutant in chosen(ROOT, args.rooms, args.count, args.seed):
            file = folder / mutant.path
            source = file.read_bytes()
            file.write_bytes(mutant.applied(source))
            start = time.monotonic()
            test = tested(folder, ROOMS[room])
            file.write_bytes(source)
            survived += test is None
            print(
                f"{mutant.path}:{mutant.line}  {mutant.old} → {mutant.new or 'nothing'}  "
                f"{test or 'SURVIVED'}  ({time.monotonic() - start:.0f} s)",
                flush=True,
            )
    print(f"{args.count - survived} of {args.count} changes noticed")
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())
