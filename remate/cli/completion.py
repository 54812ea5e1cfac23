"""`remate completion bash|zsh|fish`: a script that completes commands, options and files.

bash: add `source <(remate completion bash)` to ~/.bashrc. zsh: `remate completion zsh > ~/.zfunc/_remate`, where fpath
has ~/.zfunc. fish: `remate completion fish > ~/.config/fish/completions/remate.fish`.
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
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell to print it for")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    print(script(args.shell))
    return exit_codes.FINE


def script(shell: str) -> str:
    """The completion script of a shell. Where an option takes anything, it completes files."""
    import shtab

    from . import parser
    from .words import subcommands

    made = parser()
    for command in subcommands(made).values():
        for action in command._actions:
            if action.nargs != 0 and not action.choices:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(made, shell=shell)
