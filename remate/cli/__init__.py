"""The command `remate`: one module per subcommand. Heavy imports wait until a subcommand needs them."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from remate_runtime.errors import BindError, MissingExtraError, RemateError, ScheduleError
from remate_runtime.support.files import advice
from remate_runtime.version import __version__

from ..errors import NotApplicableError, ProfileError, UnknownNameError
from . import exit_codes
from .output import say_aside
from .streams import guarded_streams
from .train import split_script
from .usage import UsageError
from .words import check_words, subcommands

COMMANDS = (
    "plan",
    "replan",
    "rebind",
    "frontier",
    "fit",
    "train",
    "strategies",
    "solve",
    "instance",
    "check",
    "fmt",
    "show",
    "run",
    "diff",
    "merge",
    "explain",
    "lint",
    "edit",
    "migrate",
    "report",
    "trace",
    "completion",
)
_STATUS = {
    "R000": exit_codes.USAGE,
    "R005": exit_codes.UNSUPPORTED,
    "R006": exit_codes.UNSUPPORTED,
    "R082": exit_codes.STALE,
}
_EPILOG = """exit status:
  0  success
  1  findings: faults, warnings, different schedules, or a budget that cannot be met
  2  usage: wrong arguments, an unknown strategy or cost model, a missing file, or missing libraries
  3  stale: the schedule was planned for a different model
  4  the file needs a newer version of remate
  130  interrupted by Ctrl-C
For several files, the largest status is returned."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. Expected errors are printed, not raised."""
    try:
        with guarded_streams():
            return _ended(argv)
    except KeyboardInterrupt:
        print_error("interrupted")
        return exit_codes.INTERRUPTED


def _ended(argv: Sequence[str] | None) -> int:
    """Run the command and convert errors to a message and an exit status."""
    try:
        status = _run(argv)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        return status
    except RemateError as error:
        file = error.file if isinstance(error, ScheduleError) else ""
        print_error(f"{file}: {error}" if file else str(error))
        return status_of(error)
    except OSError as error:
        at = f"{error.filename}: " if error.filename else ""
        print_error(f"{at}{error.strerror or error}\n  hint: {advice(error)}")
        return exit_codes.USAGE


def _run(argv: Sequence[str] | None) -> int:
    try:
        command_line, words = parser(), sys.argv[1:] if argv is None else list(argv)
        words, rest = _split(command_line, words)
        check_words(command_line, words)
        args = command_line.parse_args(words)
        args.rest, args.showwarning = rest, warnings.showwarning
        with warnings.catch_warnings():
            warnings.showwarning = _print_warning
            return args.run(args)
    except SystemExit as stop:  # argparse: --help, --version, wrong arguments
        return stop.code if isinstance(stop.code, int) else exit_codes.USAGE


def _split(command_line: argparse.ArgumentParser, words: list[str]) -> tuple[list[str], list[str]]:
    """Split the words into those of the command and those of the script that it runs."""
    if words[:1] == ["plan"] and "--from-script" in words and "--" in words:
        at = words.index("--")
        return words[:at], words[at + 1 :]
    if words[:1] != ["train"]:
        return words, []
    own, rest = split_script(subcommands(command_line)["train"], words[1:])
    return ["train", *own], rest


def parser() -> argparse.ArgumentParser:
    command_line = argparse.ArgumentParser(
        prog="remate",
        description="Plans activation re-materialization for PyTorch training and keeps the plan as a schedule file.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command_line.add_argument("--version", action="version", version=f"remate {__version__}")
    commands = command_line.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in COMMANDS:
        import_module(f".{name}", __name__).configure(commands)
    for command in (command_line, *commands.choices.values()):
        _say_briefly(command)
    for command in commands.choices.values():
        _take_in_any_order(command)
    return command_line


def _say_briefly(command: argparse.ArgumentParser) -> None:
    """Report wrong arguments with a hint, without argparse's usage text."""

    def error(message: str) -> NoReturn:
        raise UsageError(f"{command.prog}: {message}\n  hint: `{command.prog} --help` lists the arguments")

    setattr(command, "error", error)  # noqa: B010


def _take_in_any_order(command: argparse.ArgumentParser) -> None:
    """Accept options between positional arguments: `explain S.json --at b=2 ID`.

    By default argparse stops reading optional or repeated arguments at the first option.
    """
    plain = command.parse_known_args

    def parse(args: Any = None, namespace: Any = None) -> Any:
        setattr(command, "parse_known_args", plain)  # noqa: B010 (parse_known_intermixed_args calls it twice)
        try:
            return command.parse_known_intermixed_args(args, namespace)
        finally:
            setattr(command, "parse_known_args", parse)  # noqa: B010

    setattr(command, "parse_known_args", parse)  # noqa: B010


def print_error(message: str) -> None:
    """Print `error: …` to stderr, and each hint on a line `hint: …`."""
    summary, *hints = message.split("\n  hint: ")
    say_aside("\n".join([f"error: {summary}", *(f"hint: {hint}" for hint in hints)]))


def _print_warning(message: Warning | str, category: type[Warning], *rest: object) -> None:
    """Print a warning without its source line. Drop PyTorch's internal warnings."""
    if "Triggered internally at" not in str(message):
        say_aside(f"warning: {message}")


def status_of(error: RemateError) -> int:
    if isinstance(error, BindError):
        return exit_codes.STALE
    if isinstance(error, ScheduleError):
        return _STATUS.get(error.code, exit_codes.FINDINGS)
    if isinstance(error, MissingExtraError | UsageError | UnknownNameError | NotApplicableError | ProfileError):
        return exit_codes.USAGE
    return exit_codes.FINDINGS
