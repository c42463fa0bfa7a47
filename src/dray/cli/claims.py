"""`dray claims`: every claim with what it asks for, what it has, and who uses it since when."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from dray.cli import command
from dray.cli.command import add_namespace, add_watch, reading_parser
from dray.cli.output import Column, age, render
from dray.sim.claims import ClaimRow, ClaimState, claim_rows
from dray.sim.snapshot import Snapshot

PROG: Final = "dray claims"
KINDS: Final = ("ResourceClaim", "Pod")
COLOURS: Final = {
    ClaimState.PENDING: "yellow",
    ClaimState.ALLOCATED: "cyan",
    ClaimState.RESERVED: "green",
    ClaimState.DELETING: "red",
}


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    parser = reading_parser(PROG, "Show the claims of a cluster: what they ask for, what they have, who uses them.")
    parser.add_argument("--state", choices=[str(state) for state in ClaimState], help="only claims in this state")
    add_namespace(parser)
    add_watch(parser)
    arguments = parser.parse_args(argv)

    def show(snapshot: Snapshot, now: datetime, colour: bool) -> str:  # noqa: FBT001 - a callback's one switch
        rows = [
            row
            for row in claim_rows(snapshot, arguments.namespace)
            if not arguments.state or row.state == arguments.state
        ]
        if not rows and arguments.output not in ("json", "yaml"):
            return "No claims found.\n"
        return render(rows, columns(now), arguments.output, colour=colour)

    return command.run(PROG, arguments, KINDS, show)


def columns(now: datetime) -> list[Column[ClaimRow]]:
    """The columns of the list of claims."""
    return [
        Column("NAMESPACE", lambda row: row.namespace),
        Column("NAME", lambda row: row.name),
        Column("STATE", lambda row: str(row.state), colour=lambda row: COLOURS[row.state]),
        Column("ASKS FOR", lambda row: ", ".join(row.requests)),
        Column("HAS", lambda row: ", ".join(_short(device) for device in row.devices)),
        Column("NODE", lambda row: row.node),
        Column("PODS", lambda row: ", ".join(row.pods)),
        Column("HELD", lambda row: age(row.allocated, now)),
        Column("AGE", lambda row: age(row.created, now)),
        Column("CHOSEN", lambda row: ", ".join(row.chosen), wide=True),
        Column("DEVICES", lambda row: ", ".join(row.devices), wide=True),
    ]


def _short(device: str) -> str:
    return device.rpartition("/")[2]
