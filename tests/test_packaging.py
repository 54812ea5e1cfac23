"""What an installation puts on a user's machine, and what works there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import torch

from remate_runtime import load
from remate_runtime.format import save
from remate_runtime.version import __version__
from tests.runtime.stepping import schedule_of

ROOT = Path(__file__).resolve().parent.parent
SCHEDULE = ROOT / "tests" / "cli" / "data" / "mlp.json"
# Files of schema/ that are read at run time, and where a wheel has them.
DATA = {
    "schedule-1.schema.json": "remate",
    "operators-1.json": "remate_runtime/operators",
    "rows-1.json": "remate_runtime/operators",
}
BASE = ["msgspec", "jsonschema", "shtab"]


def called(*command: str | Path, **variables: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | variables
    words = [str(word) for word in command]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env=environment, cwd=Path(words[0]).parent
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the project's wheel and sdist, built without the network."""
    folder = tmp_path_factory.mktemp("dist")
    code = f"import os; os.chdir({str(ROOT)!r}); from hatchling.build import build_sdist, build_wheel; "
    called(sys.executable, "-c", f"{code}build_wheel({str(folder)!r}); build_sdist({str(folder)!r})")
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (made,) = built.glob("*.whl")
    return made


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as packed:
        return set(packed.namelist())


def tracked(*folders: str) -> set[str]:
    """Files of the repository, without caches."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in found if "__pycache__" not in path.parts}


@pytest.mark.slow
def test_wheel_holds_the_two_packages_and_their_data(wheel: Path) -> None:
    info = f"remate-{__version__}.dist-info/"
    packages = {name.removeprefix("runtime/") for name in tracked("remate", "runtime/remate_runtime")}
    data = {f"{package}/{name}" for name, package in DATA.items()}
    rest = names_in(wheel) - packages - data
    assert packages | data <= names_in(wheel)
    assert {name for name in rest if not name.startswith(info)} == set()
    assert f"{info}licenses/LICENSE" in rest


def test_sdist_holds_what_the_wheel_is_built_from(built: Path) -> None:
    (made,) = built.glob("*.tar.gz")
    with tarfile.open(made) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    wanted = tracked("remate", "runtime/remate_runtime", "schema")
    loose = {"pyproject.toml", "tools/hatch_build.py", "README.md", "LICENSE", "CHANGELOG.md", ".gitignore", "PKG-INFO"}
    assert wanted | (loose - {".gitignore"}) <= names
    assert names - wanted - loose == set()


def test_unpacked_wheel_finds_its_data(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path)
    code = "from remate.schedule_tools.schema_file import load_schema, schema_path; load_schema(); print(schema_path())"
    found = called(sys.executable, "-c", code, PYTHONPATH=str(tmp_path))
    assert Path(found.strip()) == tmp_path / "remate" / "schedule-1.schema.json"


def test_the_runtime_alone_knows_its_operators(wheel: Path, tmp_path: Path) -> None:
    """Without a single file of the planner."""
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path, [name for name in packed.namelist() if name.startswith("remate_runtime/")])
    code = "from remate_runtime.operators import tables; import remate_runtime.format; print(tables.path())"
    found = called(sys.executable, "-c", code, PYTHONPATH=str(tmp_path))
    assert Path(found.strip()) == tmp_path / "remate_runtime" / "operators" / "operators-1.json"


def test_source_tree_finds_its_schema() -> None:
    from remate.schedule_tools.schema_file import load_schema

    assert load_schema()["$schema"]


class Environment:
    """A virtual environment of its own, with nothing but what is installed into it."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=True)
        self.python = folder / "bin" / "python"
        self.packages = next(folder.glob("lib/python*/site-packages"))

    def install(self, *words: str | Path) -> None:
        quiet = ("--quiet", "--disable-pip-version-check", "--no-warn-script-location")
        called(self.python, "-m", "pip", "install", *quiet, *words)

    def run(self, *words: str | Path) -> str:
        return called(self.python, *words)

    def installed(self) -> set[str]:
        listed = json.loads(self.run("-m", "pip", "list", "--format", "json", "--disable-pip-version-check"))
        return {one["name"].lower() for one in listed}


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """`pip install` of the wheel, with its two dependencies from a registry."""
    made = Environment(tmp_path_factory.mktemp("base"))
    made.install(wheel)
    return made


@pytest.mark.slow
def test_base_install_runs_the_commands_on_files(base: Environment, tmp_path: Path) -> None:
    assert {"remate", *BASE} <= base.installed()
    assert not base.installed() & {"torch", "numpy", "scipy", "pyomo", "highspy", "rich", "matplotlib"}
    assert {"schema", "runtime", "tools", "tests", "hatch_build.py"}.isdisjoint(os.listdir(base.packages))
    remate, file = base.python.with_name("remate"), tmp_path / "s.json"
    shutil.copy(SCHEDULE, file)
    for command in ("check", "fmt", "lint", "show", "explain", "migrate"):
        called(remate, command, file)
    called(remate, "show", file, "--plot", tmp_path / "memory.svg")
    called(remate, "edit", file, "--keep", "layers.2.addmm", "-o", tmp_path / "new.json")
    called(remate, "diff", file, file)
    called(remate, "report", file, "-o", tmp_path / "s.html", "--frontier", tmp_path)
    called(remate, "trace", file, "-o", tmp_path / "trace.json")
    build = tmp_path / "model.py"
    build.write_text("import torch\n", encoding="utf-8")
    for words in (["run", file, "--model", build], ["plan", build, "--budget", "50%", "-o", tmp_path / "p.json"]):
        done = subprocess.run([str(remate), *map(str, words)], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr.startswith(f"error: remate {words[0]} needs PyTorch")


@pytest.mark.slow
def test_runtime_without_the_planner(wheel: Path, tmp_path: Path) -> None:
    """`remate_runtime` reads and checks files without a single file of `remate`, with msgspec alone; with PyTorch
    beside it, it trains."""
    made = Environment(tmp_path / "runtime")
    made.install("--no-deps", wheel)
    made.install("msgspec")
    shutil.rmtree(made.packages / "remate")
    code = f"import remate_runtime as r; s = r.load({str(SCHEDULE)!r}); print(s.peak_bytes, s.name)"
    assert made.run("-c", code).split() == [str(load(str(SCHEDULE)).peak_bytes), "mlp"]
    requested = [made.python, "-c", "import remate_runtime; remate_runtime.apply"]
    failed = subprocess.run(requested, capture_output=True, text=True, check=False)
    assert "MissingExtraError: remate_runtime.apply needs PyTorch, which is not installed" in failed.stderr
    _lend(made, Path(torch.__file__).parents[1])
    layers = "torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))"
    path = tmp_path / "s.json"
    save(schedule_of(eval(layers), (torch.randn(4, 8),)), str(path))
    train = "\n".join(
        [
            "import torch, remate_runtime",
            f"model, x = {layers}, torch.randn(4, 8)",
            f"planned = remate_runtime.apply(model, {str(path)!r})",
            "planned(x).sum().backward()",
            "found = [p.grad.clone() for p in model.parameters()]",
            "model.zero_grad()",
            "model(x).sum().backward()",
            "assert all(map(torch.equal, found, (p.grad for p in model.parameters())))",
            "print('trained')",
        ]
    )
    assert made.run("-c", train).strip() == "trained"


def _lend(made: Environment, lender: Path) -> None:
    """Let the environment import PyTorch, and what that needs, from another one: half a gigabyte is not copied."""
    needed = ("torch", "torchgen", "functorch", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "fsspec")
    needed += ("filelock", "typing_extensions.py", "numpy", "numpy.libs", "torch-*", "nvidia")
    for pattern in needed:
        for path in lender.glob(pattern):
            (made.packages / path.name).symlink_to(path)


@pytest.mark.slow
def test_wheel_from_the_sdist_is_the_same(built: Path, wheel: Path, tmp_path: Path) -> None:
    (made,) = built.glob("*.tar.gz")
    with tarfile.open(made) as packed:
        packed.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    code = (
        f"import os; os.chdir({str(source)!r}); from hatchling.build import build_wheel; build_wheel({str(tmp_path)!r})"
    )
    called(sys.executable, "-c", code)
    (again,) = tmp_path.glob("*.whl")
    assert names_in(again) == names_in(wheel)
