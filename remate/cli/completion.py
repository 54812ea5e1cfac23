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
    from . import parser
    from .shells import script

    print(script(args.shell, parser()))
    return exit_codes.FINE
