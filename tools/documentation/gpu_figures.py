"""The figures of a run of `tools/cuda` on a GPU."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from itertools import chain, groupby
from typing import Any

from remate_runtime.support.quantities import size
from tools.bench.cuda.subjects import FULL
from tools.bench.cuda.tables import label

from .results import Table, records_of

_RESULTS = "cuda/outcomes.jsonl"


def gpu_contest() -> Table:
    """Peak and time of each configuration, measured and predicted. Configurations that failed have their reason."""
    rows = [["", "peak", "predicted", "reserved by the step", "predicted", "step", "time / eager", "predicted"]]
    for model, records in groupby(records_of(_RESULTS), key=lambda record: record["model"]):
        rows.append([f"**{FULL[model].describe}**"])
        found = [record for record in records if record["configuration"] != "profile"]
        eager = next(record for record in found if record["configuration"] == "eager")
        rows += [_row(record, eager) for record in found]
    return rows


def gpu_errors() -> Table:
    """Memory of the steps that the eager engine ran: measured, and how far predictions were from it."""
    table = [["", "allocated", "predicted", "reserved by the step", "predicted"]]
    for record in records_of(_RESULTS):
        if record.get("modelled_reserved") and record["ms"]:
            pairs = (("peak", "predicted"), ("step_reserved", "modelled_reserved"))
            cells = (
                (size(record[ours]), f"{size(record[model])} ({record[model] / record[ours] - 1:+.1%})")
                for ours, model in pairs
            )
            table.append([f"{record['model']}: {label(record['configuration'])}", *chain(*cells)])
    return table


def _row(record: Mapping[str, Any], eager: Mapping[str, Any]) -> list[str]:
    if record["failure"] or not record["ms"]:
        lines = [line for line in record["failure"].splitlines() if line and not line.startswith((" ", "Traceback"))]
        return [label(record["configuration"]), f"failed: {lines[0][:80]}" if lines else "no time was left"]
    ratios = [statistics.median(a) / statistics.median(b) for a, b in zip(record["ms"], eager["ms"], strict=False)]
    planned = "predicted_ms" in record
    reserved = record.get("modelled_reserved")
    return [
        label(record["configuration"]),
        size(record["peak"]),
        size(record["predicted"]) if planned else "",
        size(record["step_reserved"]),
        size(reserved) if reserved else "",
        f"{statistics.median(chain(*record['ms'])):.1f} ms",
        f"{statistics.median(ratios):.2f}",
        f"{record['predicted_ms'] / record['predicted_eager_ms']:.2f}" if planned else "",
    ]
