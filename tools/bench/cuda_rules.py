"""Compares the rules for CUDA with the dispatch of a CUDA build of torch, for each architecture. Needs no GPU.

    tools/cuda-build build/cuda-2.12.1 2.12.1                       # the CUDA build, 5 GB
    REMATE_CUDA_BUILD=build/cuda-2.12.1 python -m tools.bench.cuda_rules --keep build/observed \\
        -o tools/bench/results/cuda_rules/2.12.1.txt

Rules follow the version of torch that plans: where this one is another than the CUDA build, the CUDA build plans too,
without a GPU. Both are observed in separate processes, which takes about 2 minutes for each architecture. With --keep,
a later run reads the existing results, so that an interrupted run continues; remove the folder after a change of rules
or cases.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.planner.cuda_build.compared import (
    ARCHITECTURES,
    PYTHON,
    Chosen,
    differences,
    observed,
    python_for,
    versions,
)

from .text import environment, table

HEAD = ["GPU", "attention calls", "steps of models", "differences"]


def _seen(folder: Path | None, version: str, architecture: str, source: str) -> Chosen:
    file = folder / f"{version}_{source}_{architecture}.json" if folder else None
    if file and file.exists():
        return json.loads(file.read_text(encoding="utf-8").splitlines()[-1])
    chosen = observed(python_for(source), architecture, source)
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(chosen), encoding="utf-8")
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("architectures", nargs="*", default=list(ARCHITECTURES), metavar="SM")
    parser.add_argument("--keep", type=Path, help="folder for what was observed")
    parser.add_argument("-o", "--output", type=Path, help="write the table to this file, too")
    chosen = parser.parse_args()
    if not PYTHON.exists():
        parser.error(f"{PYTHON} is missing: run tools/cuda-build, or name its folder in REMATE_CUDA_BUILD")
    build = versions(str(PYTHON))
    rows, found = [HEAD], 0
    for architecture in chosen.architectures:
        rules, dispatch = (
            _seen(chosen.keep, build[0].split("+")[0], architecture, source) for source in ("rules", "stub")
        )
        differing = differences(rules, dispatch)
        found += len(differing)
        print("\n".join(differing[:5]), file=sys.stderr, end="\n" if differing else "")
        counts = [len(dispatch[kind]) for kind in ("attention", "models")]
        rows.append([f"sm_{architecture}", f"{counts[0]:,}", str(counts[1]), str(len(differing))])
    against = "torch {}, CUDA {}, cuDNN {}".format(*build)
    text = f"python -m tools.bench.cuda_rules; against {against}; {environment()}\n\n{table(rows)}\n"
    print(text)
    if chosen.output:
        chosen.output.write_text(text, encoding="utf-8")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
