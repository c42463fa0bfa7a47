"""`dray completion bash|zsh|fish`: prints what a shell needs to complete commands and flags."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Final

PROG: Final = "dray completion"

_BASH: Final = """\
_dray() {{
    local current=${{COMP_WORDS[COMP_CWORD]}}
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{commands}" -- "$current"))
        return
    fi
    case ${{COMP_WORDS[1]}} in
{cases}
    esac
    case $current in
        -*) COMPREPLY=($(compgen -W "$flags" -- "$current")) ;;
        *) COMPREPLY=($(compgen -f -- "$current")) ;;
    esac
}}
complete -o filenames -F _dray dray
"""
_BASH_CASE: Final = '        {name}) local flags="{flags}" ;;'

_ZSH: Final = """\
#compdef dray
autoload -U +X bashcompinit && bashcompinit
"""


def script(shell: str, commands: Mapping[str, Sequence[str]], summaries: Mapping[str, str]) -> str:
    """The completion script for commands with their flags."""
    if shell == "fish":
        return _fish(commands, summaries)
    cases = "\n".join(_BASH_CASE.format(name=name, flags=" ".join(flags)) for name, flags in commands.items())
    bash = _BASH.format(commands=" ".join(commands), cases=cases)
    return bash if shell == "bash" else _ZSH + bash


def _fish(commands: Mapping[str, Sequence[str]], summaries: Mapping[str, str]) -> str:
    lines = []
    for name, flags in commands.items():
        summary = summaries.get(name, "").replace("'", "\\'")
        lines.append(f"complete -c dray -n __fish_use_subcommand -a {name} -d '{summary}'")
        seen = f"complete -c dray -n '__fish_seen_subcommand_from {name}'"
        lines += [f"{seen} -l {flag[2:]}" for flag in flags if flag.startswith("--")]
    return "\n".join(lines) + "\n"


def main_with(argv: Sequence[str], commands: Mapping[str, Sequence[str]], summaries: Mapping[str, str]) -> int:
    """Run the command; the caller knows which commands there are."""
    parser = argparse.ArgumentParser(
        prog=PROG, description="Print a completion script; for bash: source <(dray completion bash)"
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    arguments = parser.parse_args(argv)
    sys.stdout.write(script(arguments.shell, commands, summaries))
    return 0
