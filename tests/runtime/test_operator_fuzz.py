"""Results of `tools.fuzz.operators`: the table covers the list of operators, and a sample of it is run again."""

from __future__ import annotations

import pytest

from remate_runtime.flat_step import Ref
from remate_runtime.format.tensor_type import TensorType
from remate_runtime.operators import OPERATORS
from tools.fuzz.operator_program import Call, Program, Source, check, graph_of
from tools.fuzz.operators import TABLE, called, fenced


def table() -> dict[str, str]:
    rows = (line.split(maxsplit=5) for line in TABLE.read_text("utf-8").splitlines() if line.startswith("aten."))
    return {row[0]: row[5] if len(row) > 5 else "" for row in rows}


def test_the_table_has_every_operator_and_none_that_ends_the_process() -> None:
    rows = table()
    assert rows.keys() == OPERATORS
    assert not [name for name, verdict in rows.items() if verdict.startswith("ends")]


def added(*shapes: tuple[int, ...]) -> Program:
    sources = tuple(Source(TensorType("f32", shape)) for shape in shapes)
    return Program(sources, (Call("aten.add.Tensor", (Ref(0), Ref(1)), {}),))


def test_a_program_passes_the_checks_of_a_file() -> None:
    check(graph_of(added((2, 3), (3,))))
    with pytest.raises(RuntimeError, match="broadcast"):
        graph_of(added((2, 3), (4,)))


@pytest.mark.slow
def test_a_sample() -> None:
    names = ("aten.gather", "aten.index.Tensor", "aten._weight_norm_interface", "aten.cat")
    matrix, indices = Source(TensorType("f32", (4, 4))), Source(TensorType("i64", (4, 4)))
    vector = Source(TensorType("f32", (4, 1)))
    calls = (
        Program((matrix, indices), (Call(names[0], (Ref(0), 0, Ref(1)), {}),)),
        Program((matrix, indices), (Call(names[1], (Ref(0), (Ref(1),)), {}),)),
        Program((matrix, vector), (Call(names[2], (Ref(0), Ref(1), 0), {}),)),
        Program((matrix,), (Call(names[3], ((Ref(0), Ref(0)),), {}),)),
    )
    rows = called({name: [call] for name, call in zip(names, calls, strict=True)}, 40, 400, 120.0)
    assert [row.name for row in rows] == list(names)
    assert not [(row.name, row.ends) for row in rows if row.ends]
    assert all(row.counts[3] for row in rows)


@pytest.mark.slow
@pytest.mark.skipif(not fenced(), reason="needs a C compiler")
def test_the_fence_sees_what_no_signal_would() -> None:
    """A permitted operator that writes out of bounds is not called by the checks, so this reads behind a tensor on its
    own."""
    import os
    import subprocess
    import sys
    import tempfile
    from pathlib import Path

    from tools.fuzz.operators import FENCE

    code = "import ctypes, torch; x = torch.zeros(16); print((ctypes.c_char * 65).from_address(x.data_ptr())[{}])"
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "fence.so"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", FENCE, "-o", library, "-ldl"], check=True)
        settings = {**os.environ, "LD_PRELOAD": str(library)}
        inside, outside = (
            subprocess.run([sys.executable, "-c", code.format(at)], env=settings, capture_output=True, check=False)
            for at in (63, 64)
        )
    assert inside.returncode == 0
    assert outside.returncode < 0
