"""`dray completion bash|zsh|fish`: prints a shell completion script for all commands and flags.

`kubectl_complete-dray` is what kubectl (1.26 and newer) runs to complete `kubectl dray ...`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from dray.cli.command import Parser

# Written by `make reference`.
FLAGS: Final = Path(__file__).with_name("completion_flags.json")
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
        -*=*)
            local names=$(dray complete "${{COMP_WORDS[@]:1:COMP_CWORD}}" 2>/dev/null)
            COMPREPLY=($(compgen -W "$names" -- "$current"))
            ;;
        -*) COMPREPLY=($(compgen -W "$flags" -- "$current")) ;;
        *)
            local IFS=$'\\n' found
            if found=$(dray complete "${{COMP_WORDS[@]:1:COMP_CWORD}}" 2>/dev/null); then
                COMPREPLY=($(compgen -W "$found" -- "$current"))
            else
                COMPREPLY=($(compgen -f -- "$current"))
            fi
            ;;
    esac
}}
complete -o filenames -F _dray dray
"""
# kubectl's directives.
_NO_FILE: Final = ":4"
_ANYTHING: Final = ":0"
_BASH_CASE: Final = '        {name}) local flags="{flags}" ;;'

_ZSH: Final = """\
#compdef dray
autoload -U +X bashcompinit && bashcompinit
"""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser(
        prog="dray completion", description="Print a completion script. In bash: source <(dray completion bash)"
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    shell = parser.parse_args(argv).shell
    from dray.cmd.main import PROCESSES, TOOLS

    summaries = {name: item.summary for table in (PROCESSES, TOOLS) for name, item in table.items()}
    # The shell completes the first word.
    summaries = {name: summary for name, summary in summaries.items() if " " not in name}
    sys.stdout.write(script(shell, flags_of_commands(), summaries))
    return 0


def kubectl_complete() -> int:
    """Print what the last of the words can be, each with what it means, and whether it may also be a file."""
    words = sys.argv[1:] or [""]
    found = _words(words)
    sys.stdout.write("".join(f"{item}\n" for item in found or ()))
    sys.stdout.write(f"{_ANYTHING if found is None else _NO_FILE}\n")
    return 0


def _words(words: Sequence[str]) -> list[str] | None:
    # Imported on use, as above.
    from dray.cli.complete import candidates
    from dray.cmd.main import PROCESSES, TOOLS

    current, tables = words[-1], (PROCESSES, TOOLS)
    if len(words) == 1:
        known = sorted((name, item.summary) for table in tables for name, item in table.items() if " " not in name)
        return [f"{name}\t{summary}" for name, summary in known if name.startswith(current)]
    if current.startswith("-") and "=" not in current:
        return [flag for flag in flags_of_commands().get(words[0], ()) if flag.startswith(current)]
    return candidates(words)


def flags_of_commands() -> Mapping[str, Sequence[str]]:
    """Return the flags of each command, from a generated file: to ask all commands would take half a second."""
    return dict(json.loads(FLAGS.read_text(encoding="utf-8")))


def script(shell: str, commands: Mapping[str, Sequence[str]], summaries: Mapping[str, str]) -> str:
    """Return the completion script for commands with their flags."""
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
        condition = f"complete -c dray -n '__fish_seen_subcommand_from {name}'"
        lines += [f"{condition} -l {flag[2:]}" for flag in flags if flag.startswith("--")]
    lines.append(
        "complete -c dray -n 'not __fish_use_subcommand' -a '(dray complete (commandline -opc)[2..] (commandline -ct))'"
    )
    return "\n".join(lines) + "\n"
