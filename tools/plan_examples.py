"""Plans the examples again and writes the schedules that are checked in beside them.

Costs come from the profiles in examples/profiles, so that the same planner gives the same files on any machine; delete
a profile to measure on this one.
"""

from __future__ import annotations

import sys
from pathlib import Path

from remate.cli import main as remate

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
# Budget, and the gap at which the solver stops. Otherwise it stops by counted work, long before the time limit, so
# results do not depend on the clock.
SETTINGS = {
    "gpt2": ("50%", "0.002"),
    "resnet": ("50%", "0.002"),
    "unet": ("60%", "0.002"),
    "encoder_decoder": ("50%", "0.002"),
}


def main(names: list[str]) -> int:
    for name in names or list(SETTINGS):
        if name not in SETTINGS:
            print(f"error: no example {name!r}, only {', '.join(SETTINGS)}", file=sys.stderr)
            return 2
        target, output = f"{EXAMPLES / name}.py:build", str(EXAMPLES / f"{name}.json")
        profile = str(EXAMPLES / "profiles" / f"{name}.json")
        budget, gap = SETTINGS[name]
        options = ["--budget", budget, "--gap", gap, "--profile", profile, "--threads", "1", "--time-limit", "600"]
        status = remate(["plan", target, "-o", output, *options])
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
