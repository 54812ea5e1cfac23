"""Writes the generated parts of the documentation: python -m tools.documentation [--check]"""

from __future__ import annotations

import argparse
import sys

from .generated import stale, write
from .results import ROOT


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file would change")
    if not parser.parse_args().check:
        write()
        return 0
    old = stale()
    for path in old:
        print(f"{path.relative_to(ROOT)} is not current", file=sys.stderr)
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())
