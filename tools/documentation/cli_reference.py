"""Generates the page about the command line from the parsers of the commands."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from remate.cli import parser

_HEAD = """# Command line

This page is generated from `remate --help` and from `remate COMMAND --help`: `tools/docs --write` writes it again.
A schedule file is named `S.json` here. `FILE.py:build` names a function in a Python file that returns
`(model, args)`, `(model, args, kwargs)`, or a call that `remate.record` recorded.
"""


def page() -> str:
    """The page in Markdown, independent of the width of the terminal and the version of argparse."""
    whole = parser()
    parts = [_HEAD, "## Commands\n\n| command | purpose |\n|---|---|"]
    listed, commands = _commands(whole)
    parts += [f"| [`{name}`](#remate-{name}) | {_cell(text)} |" for name, text in listed.items()]
    parts.append(f"\n## Exit status\n\n{_exit_status(whole.epilog or '')}")
    parts += ["\n".join(_command(name, command)) for name, command in commands.items()]
    return "\n".join(parts).rstrip() + "\n"


def _commands(whole: argparse.ArgumentParser) -> tuple[dict[str, str], dict[str, argparse.ArgumentParser]]:
    """Each command's line in `remate --help`, and its parser."""
    (commands,) = (action for action in whole._actions if isinstance(action, argparse._SubParsersAction))
    return {choice.dest: choice.help or "" for choice in commands._choices_actions}, dict(commands.choices)


def _exit_status(epilog: str) -> str:
    """The list in the epilog as a table."""
    rows = ["| status | meaning |", "|---|---|"]
    for line in epilog.splitlines()[1:]:
        if match := re.match(r"  (\d+)  (.+)", line):
            rows.append(f"| {match[1]} | {match[2]} |")
        elif line.startswith("     "):
            rows[-1] = f"{rows[-1][:-2]} {line.strip()} |"
        else:
            rows.append(f"\n{line[0].upper()}{line[1:]}.")
    return "\n".join(rows) + "\n"


def _command(name: str, command: argparse.ArgumentParser) -> Iterator[str]:
    actions = [action for action in command._actions if action.dest != "help" and action.help != argparse.SUPPRESS]
    arguments = [action for action in actions if not action.option_strings]
    options = [action for action in actions if action.option_strings]
    yield f"\n## remate {name}\n"
    usage = (
        command.usage or f"remate {name}{' [options]' if options else ''}{''.join(f' {_usage(a)}' for a in arguments)}"
    )
    yield f"```\n{usage}\n```\n"
    yield _prose((command.description or "").removeprefix(f"`remate {name}`: "))
    for title, group in (("argument", arguments), ("option", options)):
        if group:
            yield f"| {title} | meaning |\n|---|---|"
            yield from (
                f"| `{_name(action)}`{' **required**' * (action.required and bool(action.option_strings))} | "
                f"{_cell(_help(action))} |"
                for action in group
            )
            yield ""
    if command.epilog:
        yield _prose(command.epilog.replace("%%", "%"))  # as argparse prints it


def _usage(action: argparse.Action) -> str:
    word = _value(action)
    return {"?": f"[{word}]", "+": f"{word} [{word} ...]", "*": f"[{word} ...]"}.get(str(action.nargs), word)


def _name(action: argparse.Action) -> str:
    """Spellings of an option with its value, or the name of an argument."""
    if not action.option_strings:
        return _value(action)
    names = ", ".join(action.option_strings)
    if action.nargs == 0:
        return names
    value = _value(action)
    return f"{names} {value} [{value} ...]" if action.nargs == "+" else f"{names} {value}"


def _value(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.dest.upper() if action.option_strings else action.dest


def _help(action: argparse.Action) -> str:
    return (action.help or "") % {**vars(action), "prog": "remate"}


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


def _prose(text: str) -> str:
    """Paragraphs; indented lines become code."""
    parts = []
    for paragraph in text.strip().split("\n\n"):
        lines = paragraph.splitlines()
        if all(line.startswith("    ") for line in lines):
            parts.append("```\n" + "\n".join(line[4:] for line in lines) + "\n```")
        else:
            joined = " ".join(paragraph.split())
            parts.append(joined[0].upper() + joined[1:])
    return "\n\n".join(parts) + "\n"
