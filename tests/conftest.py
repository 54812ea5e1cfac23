"""Settings of the whole test suite: slow tests, golden files, threads, Hypothesis."""

from __future__ import annotations

import difflib
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from msgspec.structs import replace

from remate_runtime.engine.compiled.times import KnownTimes

# No test in these folders needs a fast schedule, only one that fits its budget.
_SHORT = {
    "cli",
    "dims",
    "end_to_end",
    "integrations",
    "live_attributes",
    "pipelines",
    "runtime",
    "staleness",
    "training",
}

MANY = 100  # slow tests of a run in which they are left out; of fewer, each is reported as skipped

torch.set_num_threads(1)  # test processes share the cores, and sums are made in one order
hypothesis.settings.register_profile("remate", deadline=None, print_blob=True)
hypothesis.settings.load_profile("remate")


def pytest_configure(config: pytest.Config) -> None:
    """No test, nor a process that it starts, reads or writes the user's cache; Ctrl-C works as at a terminal, wherever
    the suite was started."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Traces and imports make many objects and little garbage, which Python looks for at every 700 by default.
    gc.set_threshold(20_000)
    folder = tempfile.mkdtemp(prefix="remate-test-cache-")
    os.environ.update(XDG_CACHE_HOME=folder, LOCALAPPDATA=folder)
    if not hasattr(config, "workerinput"):  # what one process compiles, all have
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(folder, "inductor")
    # Estimates of workspaces in bfloat16 are for processors without AMX: with it, oneDNN takes other blocks.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    # Test processes share the cores, and others to compile take seconds to start.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "1"  # no programs that try out what /proc/cpuinfo says (15 s per folder)
    gold = shutil.which("ld.gold")
    if gold:  # GCC's other linker takes longer to read the symbols of torch
        linkers = os.path.join(folder, "linkers")
        os.mkdir(linkers)
        os.symlink(gold, os.path.join(linkers, "ld"))
        os.environ.setdefault("COMPILER_PATH", linkers)
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the slow tests too")
    parser.addoption("--engine", default="eager", help="what executes steps in the tests of the runtime that name none")
    parser.addoption("--update-golden", action="store_true", help="write what was printed into the golden files")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    slow = [] if config.getoption("--slow") else [item for item in items if _is_slow(item)]
    if len(slow) > MANY:  # thousands of reports would take seconds
        left_out = set(slow)
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=slow)
    else:
        for item in slow:
            item.add_marker(pytest.mark.skip(reason="slow: run with --slow"))
    for item in items:
        if not config.getoption("--slow"):
            _with_fewer_examples(item)
        if item.get_closest_marker("cuda") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not config.getoption("--slow"):
        terminalreporter.write_line("without slow tests: run them with --slow")


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # what was imported is searched for garbage no more: some percent of the time of all tests


def _is_slow(item: pytest.Item) -> bool:
    """Whether a test runs with `--slow` only: `slow` of all parameters or of those it names, `quick` of all others."""
    own = f"-{getattr(getattr(item, 'callspec', None), 'id', '')}-"

    def named(mark: pytest.Mark) -> bool:
        return any(f"-{word}-" in own for word in mark.args)

    slow = any(not mark.args or named(mark) for mark in item.iter_markers("slow"))
    return slow or not all(named(mark) for mark in item.iter_markers("quick"))


def _with_fewer_examples(item: pytest.Item) -> None:
    """Let Hypothesis try an eighth of the examples, and at least 5."""
    test: Any = getattr(item, "obj", None)
    own = getattr(test, "_hypothesis_internal_use_settings", None)
    if own is not None and own.max_examples > 5:
        fewer = hypothesis.settings(own, max_examples=max(5, own.max_examples // 8))
        test._hypothesis_internal_use_settings = fewer


@pytest.fixture(scope="session", autouse=True)
def segments_stay_compiled() -> Iterator[None]:
    """The engine "compiled" interprets segments that are faster so, which depends on the load of the machine. Only tests
    of that choice measure times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KnownTimes, "of", lambda *_: None)
        yield


@pytest.fixture
def quick_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches of normal effort end as soon as quick ones, for tests that need a plan and not the best one."""
    from remate.strategy.effort import EFFORTS, QUICK

    monkeypatch.setitem(EFFORTS, "normal", replace(QUICK, name="normal"))


@contextmanager
def _short_searches() -> Iterator[None]:
    module = import_module("remate.strategy.portfolio")  # a function of this name hides it
    more = [module.Step(name, module.nothing_fits) for name in ("rotor", "chen-sqrt", "flat", "flat-squeeze", "states")]
    steps = (module.Step("cut"), module.Step("greedy"), *more)
    smallest = tuple(map(module.Step, ("greedy", "rotor", "flat-squeeze")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "AUTO", replace(module.AUTO, steps=steps, smallest=smallest, finish=()))
        yield


@pytest.fixture
def short_searches() -> Iterator[None]:
    """`auto` tries little once a schedule fits, for tests that need one, however slow."""
    with _short_searches():
        yield


@pytest.fixture(scope="module", autouse=True)
def _search_shortly(request: pytest.FixtureRequest) -> Iterator[None]:
    """For fixtures of the module, too."""
    tests = Path(__file__).parent
    short = tests in request.path.parents and request.path.relative_to(tests).parts[0] in _SHORT
    with _short_searches() if short else nullcontext():
        yield


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)` compares text with `golden/<name>` beside the test; `--update-golden` writes it instead."""

    def compare(name: str, text: str) -> None:
        path = Path(request.path).parent / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        wanted = path.read_text(encoding="utf-8") if path.exists() else ""
        if text != wanted:
            lines = difflib.unified_diff(
                wanted.splitlines(), text.splitlines(), f"golden/{name}", "printed now", lineterm=""
            )
            pytest.fail("\n".join(lines) + "\n(if this is right: pytest --update-golden)", pytrace=False)

    return compare
