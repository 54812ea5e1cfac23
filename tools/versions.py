"""Tests versions of PyTorch: python -m tools.versions [VERSION ...] [--rooms ROOM ...]

Without versions, tests the newest patch of each supported minor version. Each version gets an environment in
`build/versions`, with the other packages pinned. Results replace those of the same version and room in
`tools/bench/results/versions.jsonl`; `tools/docs --write` writes the table in `docs/gpu.md` from them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "tools" / "bench" / "results" / "versions.jsonl"
OLDEST = (2, 11)
ROOMS = ("runtime", "planner", "dims", "live_attributes", "staleness", "self_check", "training")
_COUNTS = ("tests", "failures", "errors", "skipped")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.versions", description=__doc__)
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="such as 2.14.1 (default: all)")
    parser.add_argument("--rooms", nargs="+", default=ROOMS, help="folders of tests/ (default: %(default)s)")
    parser.add_argument("--workers", default="2", help="test processes (default: %(default)s)")
    args = parser.parse_args(argv)
    failed = False
    for version in args.versions or newest_patches(published()):
        python = environment(version)
        for room in args.rooms:
            record = {"python": platform.python_version(), "torch": version, "room": room}
            record |= tested(python, room, args.workers)
            failed |= record["failed"] > 0
            write([*kept(record), record])
            print(f"torch {version}, {room}: {record['passed']} passed, {record['failed']} failed", flush=True)
    return int(failed)


def published() -> list[str]:
    """Versions of torch for this Python, from the package index."""
    command = [sys.executable, "-m", "pip", "index", "versions", "torch"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    match = re.search(r"Available versions: (.*)", text)
    return match[1].split(", ") if match else []


def newest_patches(versions: Iterable[str]) -> list[str]:
    """The newest patch of each minor version from OLDEST on, in order."""
    newest: dict[tuple[int, int], tuple[int, str]] = {}
    for version in versions:
        match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", version)
        if match and (minor := (int(match[1]), int(match[2]))) >= OLDEST:
            newest[minor] = max(newest.get(minor, (-1, "")), (int(match[3]), version))
    return [newest[minor][1] for minor in sorted(newest)]


def environment(version: str) -> Path:
    """The Python of an environment with this version of torch and the pinned other packages."""
    folder = ROOT / "build" / "versions" / version
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pinned = (ROOT / "tools" / "requirements.txt").read_text(encoding="utf-8")
        others = folder / "requirements.txt"
        others.write_text(re.sub(r"^torch==.*$", f"torch=={version}", pinned, flags=re.MULTILINE), encoding="utf-8")
        install = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*install, f"torch=={version}"], check=True)
        subprocess.run([*install, "-r", str(others)], check=True)
        subprocess.run([*install, "--no-build-isolation", "--no-deps", "--editable", str(ROOT)], check=True)
        complete.touch()
    return python


def tested(python: Path, room: str, workers: str) -> dict[str, int]:
    """Numbers of passed, failed and skipped tests of a room."""
    report = python.parents[1] / f"{room}.xml"
    report.unlink(missing_ok=True)
    command = [
        str(python),
        "-m",
        "pytest",
        f"tests/{room}",
        "-n",
        workers,
        f"--junitxml={report}",
        "-p",
        "no:cacheprovider",
    ]
    subprocess.run(command, check=False, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if not report.exists():
        raise SystemExit(f"pytest wrote no report for {room}: see its output above")
    suite = next(ElementTree.parse(report).getroot().iter("testsuite"))
    number, failures, errors, skipped = (int(suite.get(name, "0")) for name in _COUNTS)
    return {"passed": number - failures - errors - skipped, "failed": failures + errors, "skipped": skipped}


def kept(record: dict[str, object]) -> list[dict[str, object]]:
    """Recorded results, without those that `record` replaces."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    key = record["torch"], record["room"]
    return [old for old in map(json.loads, lines) if (old["torch"], old["room"]) != key]


def write(records: list[dict[str, object]]) -> None:
    """Write the results, in the order of versions and rooms."""
    records.sort(key=lambda record: ([int(part) for part in str(record["torch"]).split(".")], str(record["room"])))
    RESULTS.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
