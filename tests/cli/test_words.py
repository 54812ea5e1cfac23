"""Misspelt commands and options, and shell completion."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from remate.cli import COMMANDS, parser
from remate.cli.completion import script
from remate.cli.words import options, subcommands

Remate = Callable[..., Any]
COMPLETE = """
eval "$1"
complete -p remate | grep -q _shtab_remate || exit 9
shift
COMP_WORDS=(remate "$@") COMP_CWORD=$#
_shtab_remate 2>/dev/null
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("chek", "mlp.json"), "unknown command 'chek'\nhint: did you mean remate check?\n"),
        (("xyz",), "unknown command 'xyz'\nhint: the commands: plan, "),
        (
            ("plan", "models.py:build", "--bugdet", "60%"),
            "remate plan has no option --bugdet\nhint: did you mean --budget?\n",
        ),
        (("check", "mlp.json", "--modle=x"), "remate check has no option --modle\nhint: did you mean --model?\n"),
        (("fmt", "--zzzzz"), "remate fmt has no option --zzzzz\nhint: `remate fmt --help` lists the options\n"),
    ],
)
def test_did_you_mean(remate: Remate, argv: tuple[str, ...], said: str) -> None:
    outcome = remate(*argv)
    assert outcome.status == 2
    assert outcome.err.startswith(f"error: {said}")


def test_an_option_may_be_cut_short_and_a_file_may_look_like_one(remate: Remate) -> None:
    assert remate("check", "mlp.json", "--qui").status == 0
    assert "no option" not in remate("check", "--", "--modle").err


def completed(*words: str) -> list[str]:
    call = ["bash", "-c", COMPLETE, "bash", script("bash"), *words]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes() -> None:
    assert completed("") == [*COMMANDS]
    assert completed("fr") == ["frontier"]
    assert completed("plan", "--bu") == ["--budget"]
    assert completed("check", "a.json", "--format", "") == ["text", "json", "github"]
    assert completed("completion", "z") == ["zsh"]
    assert completed("check", "mlp") == []  # then bash completes files on its own


@pytest.mark.parametrize("command", COMMANDS)
def test_bash_completes_every_option(command: str) -> None:
    flags = [flag for action in options(subcommands(parser())[command]) for flag in action.option_strings]
    assert completed(command, "-") == flags


@pytest.mark.slow("zsh")
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_have_everything(remate: Remate, shell: str) -> None:
    outcome = remate("completion", shell)
    assert outcome.status == 0
    for name, parsed in subcommands(parser()).items():
        assert name in outcome.out
        for action in options(parsed):
            for flag in action.option_strings:
                assert (flag.lstrip("-") if shell == "fish" else flag) in outcome.out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_parse(shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([program, "-n"], input=script(shell), text=True, check=True)
