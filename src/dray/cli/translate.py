"""`dray translate TABLE [FILE]`: puts the names of a cluster back into what was said about its anonymized snapshot."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dray.cli.command import Parser, exit_on_read_error
from dray.cli.snapshot import read_table, restrict_standard_output
from dray.sim.snapshot import SnapshotError

PROG: Final = "dray translate"


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser(
        PROG,
        "Print a text with the names that `dray snapshot --anonymize` has replaced: an answer of a command, a message, "
        "or a whole file. Only who has the table can do that.",
    )
    parser.add_argument("table", metavar="TABLE", help="the private file of `dray snapshot --anonymize`")
    parser.add_argument("file", metavar="FILE", nargs="?", default="-", help="the text; default: standard input")
    arguments = parser.parse_args(argv)
    with exit_on_read_error(PROG):
        table = read_table(Path(arguments.table))
        try:
            text = sys.stdin.read() if arguments.file == "-" else Path(arguments.file).read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            raise SnapshotError(f"{arguments.file}: {error}") from error
    restrict_standard_output()
    sys.stdout.write(table.translated(text))
    return 0
