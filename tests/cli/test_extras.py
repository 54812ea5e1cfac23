"""With msgspec, jsonschema and shtab alone, commands on files work, and all others name the missing package."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from remate.cli import COMMANDS
from remate_runtime import MissingExtraError
from remate_runtime.extras import EXTRAS, require

ROOT = Path(__file__).parents[2]
TORCH, SOLVERS = ("torch",), ("numpy", "scipy", "pyomo", "highspy")
BUILD = (
    "hint: PyTorch comes in builds: choose one first (pip install torch --index-url "
    "https://download.pytorch.org/whl/cpu, say), or take the default one: pip install 'remate[{}]'\n"
)
# Arguments of every command; what it lacks where only msgspec, jsonschema and shtab are installed.
ARGUMENTS = {
    "plan": ("models.py:build --budget 50% -o s.json", "PyTorch, NumPy, SciPy, Pyomo and HiGHS"),
    "frontier": ("models.py:build -o out", "PyTorch, NumPy, SciPy, Pyomo and HiGHS"),
    "fit": ("models.py:build --device-memory 8GiB --optimizer sgd", "PyTorch, NumPy, SciPy, Pyomo and HiGHS"),
    "train": ("models.py", "PyTorch"),
    "replan": ("mlp.json --model models.py:build", "PyTorch, NumPy, SciPy, Pyomo and HiGHS"),
    "rebind": ("mlp.json --model models.py:build", "PyTorch, NumPy, SciPy, Pyomo and HiGHS"),
    "run": ("mlp.json --model models.py:build", "PyTorch"),
    "solve": ("i.json --budget 50%", "NumPy, SciPy, Pyomo and HiGHS"),
    "instance": ("models.py:build -o i.json", "PyTorch, NumPy, SciPy, Pyomo and HiGHS"),
    "strategies": ("", "NumPy, SciPy, Pyomo and HiGHS"),
    "check": ("mlp.json", ""),
    "fmt": ("mlp.json", ""),
    "show": ("mlp.json --plot memory.svg", ""),
    "diff": ("mlp.json mlp.json", ""),
    "merge": ("mlp.json mlp.json mlp.json", ""),
    "explain": ("mlp.json", ""),
    "lint": ("mlp.json", ""),
    "edit": ("mlp.json --keep layers.2.addmm -o new.json", ""),
    "migrate": ("mlp.json", ""),
    "report": ("mlp.json -o page.html --frontier .", ""),
    "trace": ("mlp.json -o trace.txt --snapshot trace.pickle", ""),
    "completion": ("bash", ""),
}


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`without("torch")`: let imports of torch fail."""

    def hide(*modules: str) -> None:
        for module in modules:
            monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]

    return hide


@pytest.mark.slow
def test_every_command_without_torch_and_solvers(tmp_path: Path) -> None:
    """All commands run in one process in which no heavy module can be imported."""
    assert set(ARGUMENTS) == set(COMMANDS)
    calls = [[name, *arguments.split()] for name, (arguments, _) in ARGUMENTS.items()]
    calls.append(["check", "mlp.json", "--model", "models.py:build"])
    for name in ("mlp.json", "models.py"):
        (tmp_path / name).write_bytes((Path(__file__).parent / "data" / name).read_bytes())
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'runtime')!r}]\n"
        f"sys.modules.update(dict.fromkeys({[*TORCH, *SOLVERS, 'rich', 'matplotlib', 'transformers']!r}))\n"
        "from remate.cli import main\n"
        f"for argv in {calls!r}:\n"
        "    print(f'-- {argv[0]} {main(argv)}', file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *said, rest = re.split(r"-- \w+ (?=\d)", done.stderr)
    parts = [*said, rest]
    wanted = [lacks for _, lacks in ARGUMENTS.values()] + ["PyTorch"]
    for argv, before, after, lacks in zip(calls, parts[:-1], parts[1:], wanted, strict=True):
        text = before.partition("\n")[2] if before is not parts[0] else before
        assert after.startswith("2\n" if lacks else "0\n"), (argv, text)
        if lacks:
            hint = BUILD.format("torch,plan" if "HiGHS" in lacks else "torch")
            hint = hint if "PyTorch" in lacks else "hint: pip install 'remate[plan]'\n"
            option = " --model" if argv[0] == "check" else ""
            verb = "are" if "HiGHS" in lacks else "is"
            first = f"error: remate {argv[0]}{option} needs {lacks}, which {verb} not installed\n"
            assert text == first + hint


def test_only_the_solvers_are_missing(remate: Callable[..., Any], without: Callable[..., None]) -> None:
    without("pyomo", "highspy")
    outcome = remate("plan", "models.py:build", "--budget", "50%", "-o", "s.json")
    assert outcome.status == 2
    assert outcome.err == (
        "error: remate plan needs Pyomo and HiGHS, which are not installed\nhint: pip install 'remate[plan]'\n"
    )
    assert not Path("s.json").exists()


@pytest.mark.parametrize(
    ("house", "name", "extras"),
    [
        ("remate_runtime", "apply", ("torch",)),
        ("remate", "plan", ("torch", "plan")),
        ("remate", "frontier", ("torch", "plan")),
        ("remate", "fit", ("torch", "plan")),
    ],
)
def test_names_of_the_packages(house: str, name: str, extras: tuple[str, ...], without: Callable[..., None]) -> None:
    without(*TORCH, *SOLVERS)
    with pytest.raises(MissingExtraError, match=rf"^{house}\.{name} needs PyTorch") as raised:
        getattr(sys.modules[house], name)
    assert raised.value.extras == extras
    with pytest.raises(ImportError, match="pip install 'remate"):
        exec(f"from {house} import {name}", {})


def test_what_planning_raises_is_named_without_its_extras(without: Callable[..., None]) -> None:
    import remate

    without("torch", *SOLVERS)
    errors = [getattr(remate, name) for name in remate.__all__ if name.endswith("Error")]
    assert len(errors) == 9
    assert all(issubclass(error, remate.RemateError) for error in errors)


def test_nothing_is_missing() -> None:
    require("this test", *EXTRAS)


def test_extras_are_those_of_the_distribution() -> None:
    """The messages name packages that pip would install. The base installation has what the file commands need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    assert {name(text) for text in project["dependencies"]} == {"msgspec", "jsonschema", "shtab"}
    assert {extra: {name(text) for text in optional[extra]} for extra in EXTRAS} == {
        extra: set(modules) for extra, modules in EXTRAS.items()
    }
    everything = [extra for extra in EXTRAS if extra != "cpsat"]  # for one strategy, and large
    assert optional["all"] == [f"remate[{','.join(everything)}]"]
    assert set(optional) == {*EXTRAS, "all", "docs", "dev"}


def name(requirement: str) -> str:
    match = re.match(r"[\w-]+", requirement)
    assert match is not None
    assert metadata.version(match[0])  # it is what is installed under that name
    return match[0]
