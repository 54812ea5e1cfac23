"""Stores the measurements of `tools.bench.peers` as one JSON file per model, and shows them as a table and a picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import quantiles

import msgspec
from msgspec.structs import replace

from remate.present.plane import BLUE, GREY, INK, RED, Plane, round_numbers
from remate_runtime.support.quantities import size

from .text import table
from .ways import Way

RESULTS = Path(__file__).with_name("results")
TABLE, PICTURE = RESULTS / "peers.txt", RESULTS / "peers.svg"
_COLORS = {  # colour and dash pattern by family
    "eager": (INK, ""),
    "checkpoint": ("#9a6700", ""),
    "selective": ("#bf8700", "2 2"),
    "torch.compile": (RED, ""),
    "compile over checkpoint": ("#8250df", ""),
    "compile over selective": ("#bf3989", "2 2"),
    "remate": (GREY, "4 2"),
    "remate compiled": (BLUE, ""),
}
_APART = 0.05
_WIDTH, _HEIGHT, _COLUMNS = 900, 460, 2  # size of a panel


class Measured(msgspec.Struct, frozen=True, omit_defaults=True):
    """A way to train one model. tree: the commit that was measured, with a + where files were changed. failed: why
    there are no figures. peak, predicted: bytes. ns: of a step. time, low, high: over eager, its quartiles. each: ns of
    the step in each round."""

    tree: str
    failed: str = ""
    peak: int = 0
    predicted: int | None = None
    ns: int = 0
    time: float = 0.0
    low: float = 0.0
    high: float = 0.0
    rounds: int = 0
    each: tuple[int, ...] = ()


class Model(msgspec.Struct, frozen=True):
    name: str
    describe: str
    environment: str
    rows: dict[str, Measured]


def store(model: Model, ways: Iterable[str]) -> None:
    """Rows that were not measured this time do not change."""
    path = RESULTS / f"peers-{model.name}.json"
    rows = dict(msgspec.json.decode(path.read_bytes(), type=Model).rows) if path.exists() else {}
    rows |= model.rows
    kept = replace(model, rows={key: rows[key] for key in ways if key in rows})
    path.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")


def kept(names: Iterable[str]) -> dict[str, Model]:
    paths = {name: RESULTS / f"peers-{name}.json" for name in names}
    return {name: msgspec.json.decode(path.read_bytes(), type=Model) for name, path in paths.items() if path.exists()}


def report(models: Mapping[str, Model], ways: Mapping[str, Way]) -> str:
    return "\n".join(_table(model, ways) for model in models.values())


def _table(model: Model, ways: Mapping[str, Way]) -> str:
    rows = [("", "peak", "predicted", "time / eager", "half within", "tree", "")]
    better = _dominated(model, ways)
    for key, row in model.rows.items():
        if row.failed:
            rows.append((ways[key].label, row.failed, "", "", "", "", ""))
            continue
        predicted = "" if row.predicted is None else f"{(row.peak / row.predicted - 1) * 100:+.2f}%"
        figures = size(row.peak), predicted, f"{row.time:.3f}", f"{row.low:.3f}–{row.high:.3f}"
        rows.append((ways[key].label, *figures, row.tree, better.get(key, "")))
    return f"{model.name}: {model.describe}; {model.environment}\n{table(rows)}\n"


def _dominated(model: Model, ways: Mapping[str, Way]) -> dict[str, str]:
    """Return for each other way whether a schedule, on any engine, needs neither more memory nor more time.

    Of two ways that took turns, the ratios of their rounds decide: it is a tie if their quartiles include 1. Times of
    different measurements (commits) are equal if they differ by less than 5%. The time of eager is always 1.
    """
    ours = [row for key, row in model.rows.items() if ways[key].family.startswith("remate") and not row.failed]
    dominated: dict[str, str] = {}
    for key, row in model.rows.items():
        if not ways[key].family.startswith("remate") and not row.failed:
            within = [mine for mine in ours if mine.peak <= row.peak]
            paired = [ratios for mine in within if (ratios := paired_ratios(mine, row))]
            beaten = any(mine.time <= row.time * _sure(key, mine, row) for mine in within)
            dominated[key] = _verdict(min(paired, key=lambda r: r[1])) if paired else ("not ", "")[beaten] + "dominated"
    return dominated


def paired_ratios(mine: Measured, other: Measured) -> tuple[float, float, float] | None:
    """Return lower quartile, median and upper quartile of the ratios within rounds; None if the two did not take
    turns."""
    if mine.tree != other.tree or len(mine.each) < 2 or len(mine.each) != len(other.each):
        return None
    low, median, high = quantiles([a / b for a, b in zip(mine.each, other.each, strict=True)], method="inclusive")
    return low, median, high


def _verdict(ratios: tuple[float, float, float]) -> str:
    low, median, high = ratios
    word = "dominated" if high < 1 else "not dominated" if low > 1 else "tie"
    return f"{word} (×{median:.3f}, {low:.3f}–{high:.3f})"


def _sure(key: str, mine: Measured, other: Measured) -> float:
    return 1.0 if key == "eager" or mine.tree == other.tree else 1 - _APART


def picture(models: Mapping[str, Model], ways: Mapping[str, Way]) -> None:
    """Return a plot of time over peak, with one panel per model."""
    lines = -(-len(models) // _COLUMNS)
    width, height = _WIDTH * _COLUMNS, _HEIGHT * lines
    panels = [_panel(model, ways) for model in models.values()]
    placed = [
        f'<svg x="{at % _COLUMNS * _WIDTH}" y="{at // _COLUMNS * _HEIGHT}" {panel[panel.index("<svg") + 5 :]}'
        for at, panel in enumerate(panels)
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
    PICTURE.write_text("\n".join([head, *placed, "</svg>"]) + "\n", encoding="utf-8")


def _panel(model: Model, ways: Mapping[str, Way]) -> str:
    curves: dict[str, list[tuple[float, float]]] = {}
    for key, row in model.rows.items():
        if not row.failed:
            curves.setdefault(ways[key].family, []).append((row.peak / 1e6, row.time))
    points = [point for curve in curves.values() for point in curve]
    right, low, high = (1.05 * max(x for x, _ in points), min(y for _, y in points), max(y for _, y in points))
    low, high = low - 0.05, high + 0.05
    plane = Plane((0, right), (low, high))
    for family, curve in curves.items():
        color, dash = _COLORS[family]
        if len(curve) == 1:
            plane.dot(curve[0], color, family)
        else:
            plane.line(sorted(curve), color, family, dash, dots=4)
    hundredths = round_numbers(100 * high, 12)
    return plane.svg(
        model.describe,
        ("peak of a step, MB", "time / eager"),
        (round_numbers(right, 8), [at / 100 for at in hundredths if low <= at / 100 <= high]),
        (lambda at: f"{at:g}", lambda at: f"{at:.2f}"),
    )
