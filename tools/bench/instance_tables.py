"""Writes measurements on published graphs as text and pictures, beside the figures of their authors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from remate.present.plane import INK, Plane, round_numbers

from .text import environment, table

NOTE = """Time: % over running every node once, in the graph's order; "free" where the order was changed, which "kept" forbids.
Budget: % of the peak of that order. Bound: proven, of the given order (0 where a strategy asks for none). CPU: seconds of one
solve from nothing, one thread, processes that it started among them; all by normal effort; t: ended by a limit on the wall, so
another run may differ; *: measured earlier. - : finds nothing that fits. Below a table: the strategies without a row, and why.
Published: the best of Moccasin's table (B. Bartan et al., ICML 2023) and of FastSA's
(NeurIPS 2023) for RL1-RL4; for the networks of Checkmate (MLSys 2020), the optimum that an exact program proves; none where no
figure for this problem is known. POET's graphs (ICML 2022; times of a Cortex-A72) were published with paging and energy,
another problem. Every sequence is held against Moccasin's own definition of memory and time. The machine was busy with other
work."""

NOTHING, NOT_APPLICABLE, NONE_FITS = "-", "not applicable", "none fits"
# By the beginning of a graph's name: budgets in %, with published times in % and their authors.
PUBLISHED: dict[str, dict[int, str]] = {
    "VGG16_256_224x224x3_train": {90: "1.968 optimum"},
    "fcn_8_vgg_32_416x608x3_train": {  # CM1 of Moccasin's table
        90: "0.0294 optimum",
        80: "0.1361 optimum",
        70: "0.8915 optimum",
        65: "1.6173 optimum",
    },
    "vgg_unet_32_416x608x3_train": {80: "1.984 optimum", 50: "6.967 optimum"},
    "segnet_32_416x608x3_train": {50: "40.66 optimum"},
    "ResNet50_256_224x224x3_train": {90: NOTHING, 80: NOTHING, 70: NOTHING},  # CM2
    "random_layered_n100_": {90: "0.8 Moccasin", 80: "2.3 Moccasin"},  # RL1
    "random_layered_n250_": {90: "0.9 Moccasin", 80: "4.9 Moccasin"},
    "random_layered_n500_": {90: "0.7 Moccasin", 80: "3.4 Moccasin"},
    "random_layered_n1000_": {
        90: "0.7 Moccasin; 0.4 FastSA, free",
        80: "3.4 Moccasin; 2.5 FastSA, free",
        70: "7.4 FastSA, free",
    },
    "resnet18_cifar.a72": {80: NOTHING, 60: NOTHING},
    "vgg16_cifar.a72": {80: NOTHING, 60: NOTHING},
    "resnet18.a72": {80: NOTHING, 60: NOTHING},
    "resnet50.a72": {90: NOTHING, 80: NOTHING, 70: NOTHING, 60: NOTHING, 50: NOTHING},
    "vgg16.a72": {80: NOTHING, 60: NOTHING},
    "bert.a72": {90: NOTHING, 80: NOTHING, 70: NOTHING, 60: NOTHING, 50: NOTHING},
    "transformer.a72": {95: NOTHING, 90: NOTHING, 85: NOTHING, 80: NOTHING},  # the last budget is below the floor
}
DRAWN = {
    "fcn8": "fcn_8_vgg_32_416x608x3_train_nx",
    "vgg_unet": "vgg_unet_32_416x608x3_train_nx",
    "resnet50": "resnet50.a72",
    "bert": "bert.a72",
}
COLORS = {  # strategies in a picture
    "auto:kept": "#1f6feb",
    "checkmate": "#1a7f37",
    "moccasin": "#bf8700",
    "hiremate": "#8250df",
    "rotor": "#6e7781",
    "dtr": "#cf222e",
    "treewidth": "#0a7ea4",
}
HIGHEST = 40.0  # largest time in a picture, %
TIES = 1e-4  # times that differ by less are equal, %; older cells have four decimals


class Cell(msgspec.Struct, frozen=True, omit_defaults=True):
    """One solve of a graph. budget: % of the baseline's peak. time, bound: % over the baseline; peak: % of its; time is
    None where there is no result, and `lacks` says why. cpu: seconds. limit: seconds on the wall, 0 for none. reason: why a strategy does
    not apply."""

    graph: str
    nodes: int
    budget: int
    strategy: str
    time: float | None = None
    bound: float = 0.0
    peak: float = 0.0
    cpu: float = 0.0
    again: int = 0
    reordered: bool = False
    stopped_by: str = ""
    lacks: str = ""
    earlier: bool = False  # measured with an older commit
    reason: str = ""
    limit: float = 0.0
    effort: str = "normal"

    @property
    def key(self) -> tuple[str, int, str]:
        return self.graph, self.budget, self.strategy

    @property
    def ended(self) -> bool:
        """Whether a limit on the wall ended the solve, so that another run may differ."""
        return self.stopped_by == "time" or bool(self.lacks == NONE_FITS and self.limit)

    def differs(self, other: Cell) -> bool:
        """Whether time, peak or bound differ from another measurement."""
        pairs = (self.time, other.time), (self.peak, other.peak), (self.bound, other.bound)
        return any(abs((a or 0.0) - (b or 0.0)) > TIES for a, b in pairs)

    def row(self) -> tuple[str, ...]:
        if self.time is None:
            return (self.strategy, f"-{' t' if self.ended else ''}", "-", "-", "-", f"{self.cpu:.1f}")
        time = f"{self.time:.4f}{' free' if self.reordered else ''}{' t' if self.ended else ''}"
        time += "*" * self.earlier
        return (self.strategy, time, f"{self.bound:.4f}", f"{self.peak:.1f}", str(self.again), f"{self.cpu:.1f}")


def text(cells: Sequence[Cell], strategies: Sequence[str]) -> str:
    """Return all tables, and the cases in which another strategy is faster than `auto`."""
    parts = [f"python -m tools.bench.instances; {environment()}\n{NOTE}"]
    for (graph, budget), row in _grouped(cells, strategies).items():
        applied = [cell for cell in row if cell.lacks != NOT_APPLICABLE]
        rows = [("strategy", "time", "bound", "peak", "again", "CPU"), *(cell.row() for cell in applied)]
        said = f"{graph}, {row[0].nodes} nodes, budget {budget}%: {_published(graph, budget)}"
        left_out = [
            f"{cell.strategy} does not apply{cell.reason and f': {cell.reason}'}" for cell in row if cell not in applied
        ]
        lacking = [name for name in strategies if name not in {cell.strategy for cell in row}]
        left_out += [f"not run: {', '.join(lacking)}"] if lacking else []
        parts.append("\n".join([said, table(rows), *left_out]))
    parts.append("Where auto takes more time than another strategy\n" + _beaten(cells, strategies))
    return "\n\n".join(parts) + "\n"


def _published(graph: str, budget: int) -> str:
    known = next((budgets for start, budgets in PUBLISHED.items() if graph.startswith(start)), {})
    said = known.get(budget, NOTHING)
    return "no published figure" if said == NOTHING else f"published {said}"


def _grouped(cells: Iterable[Cell], strategies: Sequence[str]) -> dict[tuple[str, int], list[Cell]]:
    """Return the rows by graph and budget, in the order of the published tables."""
    starts = list(PUBLISHED)

    def place(cell: Cell) -> tuple[int, str, int, int]:
        start = next(n for n, start in enumerate(starts) if cell.graph.startswith(start))
        return start, cell.graph, -cell.budget, strategies.index(cell.strategy)

    rows: dict[tuple[str, int], list[Cell]] = {}
    for cell in sorted((c for c in cells if c.strategy in strategies), key=place):
        rows.setdefault((cell.graph, cell.budget), []).append(cell)
    return rows


def _beaten(cells: Sequence[Cell], strategies: Sequence[str]) -> str:
    """Return the pairs of graph and budget for which another strategy with the same order rule is faster than `auto`."""
    lines, held = list[str](), 0
    for (graph, budget), row in _grouped(cells, strategies).items():
        for name in ("auto", "auto:kept"):
            auto = next((cell for cell in row if cell.strategy == name), None)
            if auto is None:
                continue
            others = [c for c in row if c is not auto and c.time is not None and (name == "auto" or not c.reordered)]
            best = min(others, key=lambda c: c.time or 0.0, default=None)
            if best is None or best.time is None or (auto.time is not None and auto.time <= best.time + TIES):
                held += 1
                continue
            mine = "nothing" if auto.time is None else f"{auto.time:.4f}"
            lines.append(f"{graph}, {budget}%: {name} {mine}, {best.strategy} {best.time:.4f}")
    return "\n".join([*lines, f"nowhere else, in {held} comparisons"])


def pictures(cells: Sequence[Cell]) -> Mapping[str, str]:
    """Return an SVG plot of overhead over budget for each network of DRAWN that was solved under several budgets."""
    drawings: dict[str, str] = {}
    for name, graph in DRAWN.items():
        mine = [c for c in cells if c.graph == graph and c.time is not None and not c.reordered]
        if len({cell.budget for cell in mine}) > 1:
            drawings[name] = _picture(graph, mine)
    return drawings


def _picture(graph: str, cells: Sequence[Cell]) -> str:
    times = [cell.time for cell in cells if cell.time is not None]
    top = min(HIGHEST, max(1.0, *times)) * 1.05
    budgets = sorted({cell.budget for cell in cells})
    plane = Plane((budgets[0] - 2, 100), (0, top))
    best = {budget: max(c.bound for c in cells if c.budget == budget) for budget in budgets}
    plane.line([*best.items(), (100, 0.0)], INK, "bound", dash="4 2")
    for strategy, color in COLORS.items():
        line = sorted((c.budget, c.time) for c in cells if c.strategy == strategy and c.time is not None)
        if line:
            plane.line([*line, (100, 0.0)], color, strategy.partition(":")[0], dots=3)
    return plane.svg(
        f"{graph}: time over that without recomputation, nodes in the given order",
        ("budget, % of the peak without recomputation", "extra time"),
        ([float(at) for at in (*budgets, 100)], [float(at) for at in round_numbers(top, 5)]),
        (lambda at: f"{at:g}%", lambda at: f"{at:g}%"),
    )
