"""Runs a user's script as `python script.py ARGS` does, with its arguments, `__main__`, import path and exit status."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import signal
import sys
import types
from collections.abc import Generator, Sequence
from typing import Any

from ..capture.recorded import LoopLeft

INTERRUPTED = 130


def run_script(path: str, arguments: Sequence[str]) -> int:
    """Run a file and return Python's exit status. Errors are printed as Python prints them.

    Raises:
        OSError: The file cannot be read.
    """
    with io.open_code(path) as file:
        source = file.read()
    where = os.path.abspath(path)
    main = types.ModuleType("__main__")
    vars(main).update(__file__=where, __builtins__=__builtins__)

    def run() -> None:
        exec(compile(source, where, "exec", dont_inherit=True), vars(main))

    folder = "" if sys.flags.safe_path else os.path.dirname(os.path.realpath(path))
    with _as_main(main, [path, *arguments], folder):
        return _status(run, where)


def run_module(name: str, arguments: Sequence[str]) -> int:
    """Run a module as `python -m name` does."""

    def run() -> None:
        runpy.run_module(name, run_name="__main__", alter_sys=True)

    with _as_main(None, [name, *arguments], "" if sys.flags.safe_path else os.getcwd()):
        return _status(run, None)


@contextlib.contextmanager
def _as_main(main: Any, argv: list[str], folder: str) -> Generator[None]:
    old_argv, old_path, old_main = sys.argv, sys.path[:], sys.modules.get("__main__")
    old_handler = signal.getsignal(signal.SIGINT)
    sys.argv = argv
    if folder:
        sys.path[:1] = [folder]
    if main is not None:
        sys.modules["__main__"] = main
    with contextlib.suppress(ValueError):  # signal handlers can only be set in the main thread
        if old_handler != signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        sys.argv, sys.path[:] = old_argv, old_path
        if old_main is not None:
            sys.modules["__main__"] = old_main
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGINT, old_handler)


def _status(run: Any, where: str | None) -> int:
    try:
        run()
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except LoopLeft:
        return 0
    except BaseException as error:
        trace = error.__traceback__
        while where is not None and trace is not None and trace.tb_frame.f_code.co_filename != where:
            trace = trace.tb_next
        error = error.with_traceback(trace or error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    return 0
