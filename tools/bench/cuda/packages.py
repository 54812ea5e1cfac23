"""Installing what a Python with PyTorch lacks, into a folder of its own. Standard library alone."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[3]
# Modules by the names of their distributions; PyTorch itself only where there is none.
NEEDED = (
    "torch",
    "numpy",
    "msgspec",
    "jsonschema",
    "pyomo",
    "highspy",
    "scipy",
    "pytest",
    "hypothesis",
    "transformers",
)


def missing(target: Path) -> list[str]:
    """What cannot be imported, neither from this Python nor from `target`."""
    invalidate_caches()  # `target` may just have been filled
    sys.path.insert(0, str(target))
    try:
        return [name for name in NEEDED if find_spec(name) is None]
    finally:
        sys.path.remove(str(target))


def environment(target: Path) -> dict[str, str]:
    """For processes that need this project, which need not be installed, and what is installed in `target`."""
    folders = [str(target), str(ROOT), str(ROOT / "runtime"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}


def install(target: Path, wheels: Path | None, limit: float) -> str:
    """Install what is missing; with `wheels`, from that folder alone. Returns what happened, in words.

    Where pip is missing or refuses, wheels are unpacked, which is all that importing them takes. limit: seconds.
    """
    lacking = missing(target)
    if not lacking:
        return "nothing was missing"
    target.mkdir(parents=True, exist_ok=True)
    said = []
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--target",
        str(target),
    ]
    if wheels is not None:
        command += ["--no-index", "--find-links", str(wheels.resolve())]
    try:
        done = subprocess.run([*command, *lacking], capture_output=True, text=True, timeout=limit, check=False)
        said.append(f"pip install {' '.join(lacking)}: exit status {done.returncode}\n{done.stderr[-2000:]}".rstrip())
    except (OSError, subprocess.TimeoutExpired) as error:
        said.append(f"pip install {' '.join(lacking)}: {error}")
    if missing(target) and wheels is not None:
        for wheel in sorted(wheels.glob("*.whl")):
            try:
                with zipfile.ZipFile(wheel) as packed:
                    packed.extractall(target)
            except (OSError, zipfile.BadZipFile) as error:
                said.append(f"unpacking {wheel.name}: {error}")
        said.append(f"unpacked the wheels of {wheels}")
    still = missing(target)
    return "\n".join([*said, f"still missing: {', '.join(still)}" if still else "everything is there"])
