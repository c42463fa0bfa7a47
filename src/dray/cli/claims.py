"""`dray claims`: lists claims with their requests, allocated devices and Pods."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from dray.api.timestamps import age
from dray.cli.command import add_namespace, add_watch, cluster_parser, run_table
from dray.cli.output import Column
from dray.cli.tables import Table, add_row_flags, render_table, selection
from dray.sim.claims import ClaimRow, ClaimState, claim_rows
from dray.sim.snapshot import CLASSIC_CLAIM, Snapshot

PROG: Final = "dray claims"
KINDS: Final = ("ResourceClaim", CLASSIC_CLAIM, "Pod")
COLOURS: Final = {
    ClaimState.PENDING: "yellow",
    ClaimState.ALLOCATED: "cyan",
    ClaimState.RESERVED: "green",
    ClaimState.DELETING: "red",
}


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    parser = cluster_parser(PROG, "List the claims of a cluster with their requests, allocated devices and Pods.")
    parser.add_argument("--state", choices=[str(state) for state in ClaimState], help="only claims in this state")
    add_row_flags(parser, labels=True)
    add_namespace(parser)
    add_watch(parser)
    arguments = parser.parse_args(argv)

    def show(snapshot: Snapshot, now: datetime, *, colour: bool) -> str:
        selected = selection(arguments)
        namespace = "" if arguments.all_namespaces else arguments.namespace
        rows = [
            row
            for row in claim_rows(snapshot, namespace)
            if (not arguments.state or row.state == arguments.state) and selected.selects(row, row.labels)
        ]
        reason = snapshot.unread("ResourceClaim")
        nothing = f"No claims are known: {reason}.\n" if reason else "No claims found.\n"
        table = Table("ClaimList", rows, columns(now), lambda row: f"resourceclaim.{row.group}/{row.name}", nothing)
        return render_table(table, arguments, colour=colour)

    return run_table(PROG, arguments, KINDS, show)


def columns(now: datetime) -> list[Column[ClaimRow]]:
    """Return the columns of the table."""
    return [
        Column("NAMESPACE", lambda row: row.namespace),
        Column("NAME", lambda row: row.name),
        Column("STATE", lambda row: str(row.state), colour=lambda row: COLOURS[row.state]),
        Column("REQUESTS", lambda row: ", ".join(row.requests)),
        Column("CHOICE", lambda row: ", ".join(row.choices)),
        Column("DEVICES", lambda row: ", ".join(_device_name(device) for device in row.devices)),
        Column("NODE", lambda row: row.node),
        Column("PODS", lambda row: ", ".join(row.pods)),
        Column("ALLOCATED", lambda row: age(row.allocated, now)),
        Column("AGE", lambda row: age(row.created, now)),
        Column("GROUP", lambda row: row.group, wide=True),
        Column("DEVICE IDS", lambda row: ", ".join(row.devices), wide=True),
    ]


def _device_name(device: str) -> str:
    return device.rpartition("/")[2]
