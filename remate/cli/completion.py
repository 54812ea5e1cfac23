"""`remate completion bash|zsh|fish`: a script that completes commands, options and files.

bash: add `source <(remate completion bash)` to ~/.bashrc. zsh: `remate completion zsh > ~/.zfunc/_remate`, with
~/.zfunc in fpath. fish: `remate completion fish > ~/.config/fish/completions/remate.fish`.
"""

from __future__ import annotations

import argparse
from typing import Any

from . import exit_codes


def configure(commands: Any) -> None:
    parser = commands.add_parser(
        "completion",
        help="print a script that completes commands in a shell",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="name of the shell")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    print(script(args.shell))
    return exit_codes.FINE


def script(shell: str) -> str:
    """The completion script of a shell. Options without fixed choices complete file names."""
    import shtab

    from . import parser
    from .words import subcommands

    command_line = parser()
    for command in subcommands(command_line).values():
        for action in command._actions:
            if action.nargs != 0 and not action.choices:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(command_line, shell=shell)
