"""Code for a GPU, where there is none: what Inductor writes for one compiles, holds what was predicted, and computes
eager's gradients where Triton's interpreter executes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TRITON = (
    Path(sys.prefix) / "triton"
)  # where tools/setup-env puts it: beside packages, which import it where they find it


def found(tmp_path: Path, triton: str, *names: str) -> tuple[dict[str, Any], str]:
    """What gpu_code describes these models, and its log."""
    command = [sys.executable, "-m", "tests.runtime.compiled.gpu_code", triton, *names]
    variables = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    root = Path(__file__).parents[3]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables, cwd=root)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.slow
def test_code_for_a_gpu_holds_what_was_predicted(tmp_path: Path) -> None:
    models, log = found(tmp_path, "", "mixed", "normed", "tied", "pools")
    assert "does not compile" not in log
    assert {name: (item["over"], item["written"] > 0) for name, item in models.items()} == dict.fromkeys(
        models, (0, True)
    )


@pytest.mark.slow
@pytest.mark.skipif(not TRITON.is_dir(), reason="there is no Triton for this platform")
def test_code_for_a_gpu_computes_eagers_gradients(tmp_path: Path) -> None:
    models, log = found(tmp_path, str(TRITON), "dropout@graphs", "normed@graphs", "tied", "pools")
    assert "the step is replayed by 2 CUDA graphs" in log
    assert "does not compile" not in log
    for name, item in models.items():
        assert item["written"] > 0, name
        assert item["difference"] < 1e-6, name
