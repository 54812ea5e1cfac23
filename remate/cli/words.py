"""Checks the words of a command line before argparse reads them, and suggests the correct spelling."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from remate_runtime.format import did_you_mean

from .usage import UsageError


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of the commands by name."""
    parsers: dict[str, Any] = {}
    for action in parser._actions:
        choices: dict[str, Any] | Iterable[Any] | None = action.choices
        if not action.option_strings and isinstance(choices, dict):
            parsers |= choices
    return parsers


def options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """The options of a command that `--help` shows."""
    return [action for action in parser._actions if action.option_strings and action.help != argparse.SUPPRESS]


def check_words(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    """Raise UsageError for an unknown command or option. argparse checks the rest."""
    known = subcommands(parser)
    if not argv or argv[0].startswith("-"):
        return
    if argv[0] not in known:
        hint = did_you_mean(argv[0], known, f"the commands: {', '.join(known)}", "remate ")
        raise UsageError(f"unknown command {argv[0][:80]!r}\n  hint: {hint}")
    flags = [flag for action in options(known[argv[0]]) for flag in action.option_strings]
    for word in argv[1:]:
        name = word.partition("=")[0]
        if word == "--":
            return
        if word.startswith("--") and not any(flag.startswith(name) for flag in flags):
            hint = did_you_mean(name, flags, f"`remate {argv[0]} --help` lists the options")
            raise UsageError(f"remate {argv[0]} has no option {name[:80]}\n  hint: {hint}")
