"""`dray top`: how full the cluster is, and which namespaces have how much of it since when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from dray.cli import command
from dray.cli.command import add_watch, reading_parser
from dray.cli.devices import usage_columns
from dray.cli.output import Column, render
from dray.sim import usage
from dray.sim.devices import device_rows
from dray.sim.snapshot import Snapshot
from dray.sim.usage import NamespaceRow, UsageRow

PROG: Final = "dray top"
KINDS: Final = ("ResourceSlice", "ResourceClaim", "DeviceClass", "DeviceTaintRule")

NAMESPACE_COLUMNS: Final[Sequence[Column[NamespaceRow]]] = (
    Column("NAMESPACE", lambda row: row.namespace),
    Column("CLAIMS", lambda row: str(row.claims)),
    Column("PENDING", lambda row: str(row.pending), colour=lambda row: "yellow" if row.pending else ""),
    Column("DEVICES", lambda row: str(row.devices)),
    Column("DEVICE-HOURS", lambda row: f"{row.device_hours:.1f}"),
)


@dataclass(frozen=True, slots=True)
class Top:
    """Everything `dray top` shows."""

    classes: list[UsageRow]
    nodes: list[UsageRow]
    namespaces: list[NamespaceRow]


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    parser = reading_parser(
        PROG,
        "Show how full each class and node is, and what each namespace has. Device-hours count from the allocation of "
        "what is held now; what was given back is not in the API.",
        forms=("table", "json", "yaml", "csv"),
    )
    parser.add_argument(
        "what", nargs="?", choices=("all", "classes", "nodes", "namespaces"), default="all", help="default: all three"
    )
    add_watch(parser)
    arguments = parser.parse_args(argv)
    if arguments.output == "csv" and arguments.what == "all":
        parser.error("-o csv prints one table: say classes, nodes or namespaces")

    def show(snapshot: Snapshot, now: datetime, colour: bool) -> str:  # noqa: FBT001 - a callback's one switch
        return text(gather(snapshot, now), arguments.what, arguments.output, colour=colour)

    return command.run(PROG, arguments, KINDS, show)


def gather(snapshot: Snapshot, now: datetime) -> Top:
    """Count everything once."""
    rows = device_rows(snapshot)
    return Top(usage.by_class(rows), usage.by_node(rows), usage.by_namespace(snapshot, now))


def text(top: Top, what: str, form: str, *, colour: bool) -> str:
    """What was asked for, in the form asked for."""
    if what == "all" and form != "table":
        return render([top], (), form)
    parts = []
    if what in ("all", "classes"):
        parts.append(render(top.classes, usage_columns("class"), form, colour=colour))
    if what in ("all", "nodes"):
        parts.append(render(top.nodes, usage_columns("node"), form, colour=colour))
    if what in ("all", "namespaces"):
        parts.append(render(top.namespaces, NAMESPACE_COLUMNS, form, colour=colour))
    return "\n".join(parts)
