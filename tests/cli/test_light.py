"""The commands that only read and write schedule files load neither torch nor a solver."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_HEAVY = ["torch", "pyomo", "highspy", "scipy", "numpy", "transformers"]
_CALLS = [
    ["diff", "mlp.json", "new.json"],
    ["explain", "mlp.json"],
    ["explain", "mlp.json", "layers.2.addmm"],
    ["lint", "mlp.json"],
    ["edit", "mlp.json", "--keep", "layers.2.addmm", "-o", "new.json"],
    ["migrate", "mlp.json"],
    ["report", "mlp.json", "-o", "page.html", "--frontier", "."],
    ["trace", "mlp.json", "-o", "trace.txt", "--snapshot", "trace.pickle"],
]


def test_nothing_heavy_is_loaded(tmp_path: Path) -> None:
    for name in ("mlp.json", "new.json"):
        (tmp_path / name).write_bytes((Path(__file__).parent / "data" / "mlp.json").read_bytes())
    code = (
        f"import sys; sys.path[:0] = [{str(_ROOT)!r}, {str(_ROOT / 'runtime')!r}]\n"
        "from remate.cli import main\n"
        f"status = [main(argv) for argv in {_CALLS!r}]\n"
        f"import json; print(json.dumps([status, sorted(set({_HEAVY!r}) & set(sys.modules))]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [[0] * len(_CALLS), []]
