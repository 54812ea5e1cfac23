"""Completion scripts for shells, made from the parser: what it takes, they complete."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NamedTuple

from .words import options, subcommands


class CommandOption(NamedTuple):
    """An option of a command, or its first argument where that has choices (flags: none). value: whether one
    follows."""

    flags: tuple[str, ...]
    about: str
    value: bool
    choices: tuple[str, ...]


class Command(NamedTuple):
    name: str
    about: str
    options: tuple[CommandOption, ...]


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """shell: bash, zsh or fish."""
    commands = [_command(name, made) for name, made in subcommands(parser).items()]
    return "\n".join({"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](commands))


def _command(name: str, parser: argparse.ArgumentParser) -> Command:
    first = [a for a in parser._actions if not a.option_strings and a.choices]
    found = tuple(_option(action) for action in (*options(parser), *first))
    about = (parser.description or "").partition(": ")[2].strip().splitlines() or [""]
    return Command(name, about[0].partition(". ")[0].rstrip(".:;,"), found)


def _option(action: argparse.Action) -> CommandOption:
    about = (action.help or "").replace("%%", "%").partition(";")[0]
    choices = tuple(str(choice) for choice in action.choices or ())
    return CommandOption(tuple(action.option_strings), about, action.nargs != 0, choices)


def _bash(commands: list[Command]) -> Iterator[str]:
    yield from (
        "_remate() {",
        "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}",
        "  local words=",
    )
    yield '  if [ "$COMP_CWORD" = 1 ]; then'
    yield f'    words="{" ".join(command.name for command in commands)} --help --version"'
    yield "  else"
    yield '    case "${COMP_WORDS[1]} $before" in'
    for command in commands:
        for option in command.options:
            if option.choices:
                flags = "|".join(f'"{command.name} {flag}"' for flag in option.flags or (command.name,))
                yield f'      {flags}) words="{" ".join(option.choices)}";;'
    yield "    esac"
    yield "    if [[ $word == -* ]]; then"
    yield '      case "${COMP_WORDS[1]}" in'
    for command in commands:
        yield f'        {command.name}) words="{" ".join(f for o in command.options for f in o.flags)}";;'
    yield from ("      esac", "    fi", "  fi", '  COMPREPLY=($(compgen -W "$words" -- "$word"))', "}")
    yield "complete -o default -F _remate remate"


def _zsh(commands: list[Command]) -> Iterator[str]:
    yield from ("#compdef remate", "_remate() {", "  if (( CURRENT == 2 )); then", "    local -a commands=(")
    for command in commands:
        yield f"      {_quoted(f'{command.name}:{command.about}')}"
    yield from ("    )", "    _describe command commands", "    return", "  fi", "  case $words[2] in")
    for command in commands:
        yield f"    {command.name})"
        yield "      shift words; (( CURRENT-- ))"
        yield "      _arguments -s \\"
        for option in command.options:
            for flag in option.flags:
                yield f"        {_quoted(flag + f'[{_plain(option.about)}]' + _zsh_value(option))} \\"
        first = next((option.choices for option in command.options if not option.flags), ())
        yield f"        {_quoted('*:argument:(' + ' '.join(first) + ')' if first else '*:file:_files')} ;;"
    yield from ("  esac", "}", '_remate "$@"')


def _zsh_value(option: CommandOption) -> str:
    if not option.value:
        return ""
    return f":value:({' '.join(option.choices)})" if option.choices else ":value:_files"


def _fish(commands: list[Command]) -> Iterator[str]:
    for command in commands:
        yield f"complete -c remate -f -n __fish_use_subcommand -a {command.name} -d {_quoted(command.about)}"
    for command in commands:
        here = f"complete -c remate -n '__fish_seen_subcommand_from {command.name}'"
        for option in command.options:
            names = " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags)
            value = f" -x -a {_quoted(' '.join(option.choices))}" if option.choices else " -r" if option.value else ""
            yield " ".join(part for part in (here, names) if part) + f"{value} -d {_quoted(option.about)}"


def _plain(text: str) -> str:
    """Without what zsh gives a meaning inside of an option's description."""
    return text.replace("[", "(").replace("]", ")").replace(":", " -")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "’") + "'"
