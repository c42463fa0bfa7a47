"""`dray recover`: finds acknowledged writes that a database has lost, and lets its server go on without them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from dray.cli.command import Parser
from dray.store.interface import StoreError
from dray.store.sqlite_file import accept_lost_writes, lock, lost_revisions


def main(argv: Sequence[str]) -> int:
    """Print what is lost; exit with 1 if there is anything and it was not accepted."""
    parser = Parser(
        "dray recover",
        description="Find acknowledged writes that the database of a stopped server has lost. Without --accept-loss, "
        "nothing is changed. Copy the data directory first: what is left of a damaged write-ahead log is deleted.",
    )
    parser.add_argument("--data-dir", default=".dray", help="the server's data directory")
    parser.add_argument(
        "--accept-loss", action="store_true", help="go on without the lost writes; their revisions are not used again"
    )
    arguments = parser.parse_args(argv)
    try:
        return _run(Path(arguments.data_dir) / "state.db", accept=arguments.accept_loss)
    except StoreError as error:
        sys.stderr.write(f"dray recover: {error}\n")
        return 1


def _run(path: Path, *, accept: bool) -> int:
    if not path.exists():
        sys.stderr.write(f"dray recover: {path} does not exist\n")
        return 1
    with lock(path):
        lost = lost_revisions(path)
        if not lost:
            sys.stdout.write(f"{path} is complete: it has all acknowledged writes, up to revision {lost.start - 1}.\n")
            return 0
        sys.stdout.write(f"{path} has lost the acknowledged writes of revisions {lost[0]} to {lost[-1]}.\n")
        if not accept:
            sys.stdout.write("Nothing was changed. Run again with --accept-loss to go on without them.\n")
            return 1
        sys.stdout.write(f"The server goes on after revision {accept_lost_writes(path, lost)}. Clients list again.\n")
        return 0
