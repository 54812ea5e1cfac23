"""`python -m tools.fuzz [libFuzzer options] [corpus folder]`: see tools/fuzz/README.md."""

from __future__ import annotations

import random
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

try:
    atheris: Any = import_module("atheris")  # optional: no other part of the project needs it
except ImportError:
    sys.exit("error: atheris is not installed\nhint: pip install atheris (Linux, CPython 3.11 to 3.13)")

with atheris.instrument_imports(include=["remate", "remate_runtime"]):
    from tools.fuzz.target import consume, consume_within_its_share

from tools.fuzz.mutations import mutated_tree

_HERE = Path(__file__).parent
_SEEDS = _HERE.parents[1] / "schema" / "corpus"


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """Damage the JSON in half of the cases, if it is JSON; otherwise let libFuzzer damage the bytes."""
    dice = random.Random(seed)
    if dice.random() < 0.5:
        try:
            mutated = mutated_tree(data, dice)
        except (ValueError, RecursionError, IndexError, TypeError):
            mutated = b""
        if 0 < len(mutated) <= max_size:
            return mutated
    return atheris.Mutate(data, max_size)


def main() -> None:
    options = [f"-dict={_HERE / 'schedule.dict'}", "-timeout=20", "-rss_limit_mb=4096", "-max_len=16384"]
    folders = [str(_SEEDS / "valid"), str(_SEEDS / "invalid")]
    for path in sorted((_SEEDS / "valid").glob("*.json")):
        consume(
            path.read_bytes()
        )  # imports and tables are loaded here, so that they do not count against the first input
    atheris.Setup([sys.argv[0], *options, *sys.argv[1:], *folders], consume_within_its_share, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
