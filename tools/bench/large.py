"""Measures CPU seconds of reading, linking and all commands on a file with about 9,000 operations.

    python -m tools.bench.large -o tools/bench/results/large.txt

The step is synthetic: 420 equal layers, half of which recompute, both in templates and written flat. Each command runs
in its own process; start and imports count.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from remate.block_templates.folding import fold, fold_flat
from remate.partition.partitioning import partition
from remate_runtime.flat_step import FlatRecompute, expand
from remate_runtime.format import Schedule, decode, encode, fingerprint
from remate_runtime.link import link, simulate
from tests.planner.folding import schedule_of
from tests.planner.synthetic import layers

from .text import environment, table

ROOT = Path(__file__).parents[2]
COMMANDS = (["check"], ["fmt", "--check"], ["diff"], ["lint"], ["show"], ["explain"], ["migrate", "--check"])


def schedules() -> dict[str, Schedule]:
    step = partition(layers(420))
    graph = step.captured.graph
    recomputes = [
        FlatRecompute(op, part.backward[0])
        for part in step.parts[1:-1:2]
        for op in range(*part.forward)
        if not graph.operations[op].view
    ]
    recomputes.sort(key=lambda recompute: recompute.before)
    folded_steps = {"templates": fold(step.captured, recomputes, step), "flat": fold_flat(step.captured, recomputes)}
    written = {name: schedule_of(folded) for name, folded in folded_steps.items()}
    return {n: replace(s, model=replace(s.model, fingerprint=fingerprint(s))) for n, s in written.items()}


def parts(schedule: Schedule) -> dict[str, float]:
    """Return the least CPU seconds of three runs for each part of loading a file."""
    text = encode(schedule)
    expanded = expand(schedule)
    linked = link(expanded.graph, expanded.recomputes)
    work: dict[str, Callable[[], object]] = {
        "encode": lambda: encode(schedule),
        "decode": lambda: decode(text),
        "expand": lambda: expand(schedule),
        "link": lambda: link(expanded.graph, expanded.recomputes),
        "simulate": lambda: simulate(linked),
    }
    return {name: min(_cpu(run) for _ in range(3)) for name, run in work.items()}


def _cpu(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def command(words: list[str], path: str) -> float:
    name, *rest = words
    argv = [sys.executable, "-m", "remate", name, path, *([path] if name == "diff" else []), *rest]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'runtime'}"}
    subprocess.run(argv, env=env, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="also write the table to this file")
    chosen = parser.parse_args()
    rows = [("", "operations", "kB", "what", "CPU seconds")]
    for name, schedule in schedules().items():
        count, size = len(expand(schedule).graph.operations), len(encode(schedule)) // 1000
        for what, seconds in parts(schedule).items():
            rows.append((name, str(count), str(size), what, f"{seconds:.3f}"))
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "large.json")
            schedule.save(path)
            for words in COMMANDS:
                rows.append((name, str(count), str(size), "remate " + " ".join(words), f"{command(words, path):.2f}"))
    text = f"python -m tools.bench.large; {environment()}\n\n{table(rows)}\n"
    print(text)
    if chosen.output:
        chosen.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
