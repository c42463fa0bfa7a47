"""`dray completion`: knows every command and its flags by asking each for its help."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Sequence
from typing import Final

from dray.cli.completion import main_with

_FLAG: Final = re.compile(r"(?<![\w-])(--?[a-zA-Z][\w-]*)")


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    from dray.cmd.main import PROCESSES, TOOLS

    summaries = {name: item.summary for table in (PROCESSES, TOOLS) for name, item in table.items()}
    return main_with(argv, {name: flags_of(name) for name in summaries if name != "completion"}, summaries)


def flags_of(name: str) -> list[str]:
    """The flags that a command's help names."""
    from dray.cmd.main import main as run

    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        run([name, "--help"])
    # The first line only says how flags look.
    return sorted(set(_FLAG.findall(text.getvalue().partition("\n")[2])))
