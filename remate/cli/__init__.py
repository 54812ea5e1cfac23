"""The command `remate`. One module for each subcommand; nothing heavy loads before a subcommand needs it."""

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
  0  fine
  1  findings: faults, warnings, schedules that differ, or a budget that cannot be met
  2  usage: wrong arguments, a strategy or cost model that does not exist, a file that is not there, or libraries that
     are not installed
  3  stale: the model is not the one that the schedule was planned for
  4  the file needs a newer version of remate
  130  interrupted by Ctrl-C
of several files, the greatest"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. Errors that remate raises on purpose are printed, not raised."""
    try:
        with guarded_streams():
            return _ended(argv)
    except KeyboardInterrupt:
        print_error("interrupted")
        return exit_codes.INTERRUPTED


def _ended(argv: Sequence[str] | None) -> int:
    """Run the command; whatever ends it becomes a word and an exit status."""
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
        made, words = parser(), sys.argv[1:] if argv is None else list(argv)
        words, rest = _split(made, words)
        check_words(made, words)
        args = made.parse_args(words)
        args.rest, args.showwarning = rest, warnings.showwarning
        with warnings.catch_warnings():
            warnings.showwarning = _print_warning
            return args.run(args)
    except SystemExit as stop:  # argparse: --help, --version, wrong arguments
        return stop.code if isinstance(stop.code, int) else exit_codes.USAGE


def _split(made: argparse.ArgumentParser, words: list[str]) -> tuple[list[str], list[str]]:
    """The words of the command, and those of a script that it runs."""
    if words[:1] == ["plan"] and "--from-script" in words and "--" in words:
        at = words.index("--")
        return words[:at], words[at + 1 :]
    if words[:1] != ["train"]:
        return words, []
    own, rest = split_script(subcommands(made)["train"], words[1:])
    return ["train", *own], rest


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="remate",
        description="Plans activation re-materialization for PyTorch training and keeps the plan as a schedule file.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--version", action="version", version=f"remate {__version__}")
    commands = made.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in COMMANDS:
        import_module(f".{name}", __name__).configure(commands)
    for command in (made, *commands.choices.values()):
        _say_briefly(command)
    for command in commands.choices.values():
        _take_in_any_order(command)
    return made


def _say_briefly(command: argparse.ArgumentParser) -> None:
    """Wrong arguments are an error with a hint, without the list of all options before it."""

    def error(message: str) -> NoReturn:
        raise UsageError(f"{command.prog}: {message}\n  hint: `{command.prog} --help` lists the arguments")

    setattr(command, "error", error)  # noqa: B010


def _take_in_any_order(command: argparse.ArgumentParser) -> None:
    """Let options stand between arguments: `explain S.json --at b=2 ID`. As argparse reads, an argument that may be
    left out, or several ones, end at the first option."""
    plain = command.parse_known_args

    def parse(args: Any = None, namespace: Any = None) -> Any:
        setattr(command, "parse_known_args", plain)  # noqa: B010 (what reading in any order calls, twice)
        try:
            return command.parse_known_intermixed_args(args, namespace)
        finally:
            setattr(command, "parse_known_args", parse)  # noqa: B010

    setattr(command, "parse_known_args", parse)  # noqa: B010


def print_error(message: str) -> None:
    """`error: …` on stderr, its hints each on a line `hint: …`."""
    what, *hints = message.split("\n  hint: ")
    say_aside("\n".join([f"error: {what}", *(f"hint: {hint}" for hint in hints)]))


def _print_warning(message: Warning | str, category: type[Warning], *rest: object) -> None:
    """Without the source line that Python adds, which says nothing to the user of a command; nor does what PyTorch
    describes its own inside."""
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
