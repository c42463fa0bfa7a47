"""The flags of all commands, for shell completion."""

from __future__ import annotations

import contextlib
import io
import json
import re

from dray.cmd.main import PROCESSES, TOOLS
from dray.cmd.main import main as run

_FLAG = re.compile(r"(?<![\w-])(--[a-zA-Z][\w-]*|-[a-zA-Z](?![\w-]))")


def completion_flags() -> str:
    """Return src/dray/cmd/completion_flags.json: the shell completes the first word, so names have one."""
    names = [name for name in (*PROCESSES, *TOOLS) if " " not in name and name != "completion"]
    return json.dumps({name: flags_of(name) for name in names}, indent=1) + "\n"


def flags_of(name: str) -> list[str]:
    """Return the flags in a command's help."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        run([*name.split(), "--help-all" if name in PROCESSES else "--help"])
    # The first line is the usage, and examples may pipe into other programs.
    page = text.getvalue().partition("\n")[2].partition("\nExamples:")[0]
    return sorted(set(_FLAG.findall(page)))
