"""`dray top`: shows device usage by class, node and namespace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from dray.cli.command import add_watch, cluster_parser, run_table
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
    """The usage of the whole cluster."""

    classes: list[UsageRow]
    nodes: list[UsageRow]
    namespaces: list[NamespaceRow]


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    parser = cluster_parser(
        PROG,
        "Show device usage by class, node and namespace. Device-hours count from the allocation of devices that are "
        "held now; Kubernetes stores no history of released devices.",
        formats=("table", "json", "yaml", "csv"),
    )
    parser.add_argument(
        "what",
        nargs="?",
        choices=("all", "classes", "nodes", "namespaces"),
        default="all",
        help="which table to print; default: all",
    )
    add_watch(parser)
    arguments = parser.parse_args(argv)
    if arguments.output == "csv" and arguments.what == "all":
        parser.error("-o csv prints one table: specify classes, nodes or namespaces")

    def show(snapshot: Snapshot, now: datetime, *, colour: bool) -> str:
        return render_top(measure(snapshot, now), arguments.what, arguments.output, colour=colour)

    return run_table(PROG, arguments, KINDS, show)


def measure(snapshot: Snapshot, now: datetime) -> Top:
    """Return the usage of a snapshot."""
    rows = device_rows(snapshot)
    return Top(usage.by_class(rows), usage.by_node(rows), usage.by_namespace(snapshot, now))


def render_top(top: Top, what: str, output_format: str, *, colour: bool) -> str:
    """Render one table, or all of them."""
    if what == "all" and output_format != "table":
        return render([top], (), output_format)
    parts = []
    if what in ("all", "classes"):
        parts.append(render(top.classes, usage_columns("class"), output_format, colour=colour))
    if what in ("all", "nodes"):
        parts.append(render(top.nodes, usage_columns("node"), output_format, colour=colour))
    if what in ("all", "namespaces"):
        parts.append(render(top.namespaces, NAMESPACE_COLUMNS, output_format, colour=colour))
    return "\n".join(parts)
