"""`dray top`: shows device usage by class, node, pool and namespace."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from dray.cli.command import add_watch, cluster_parser, exit_on_read_error, run_table
from dray.cli.devices import usage_columns
from dray.cli.output import Column, bar, render
from dray.cli.usage_over_time import COURSES, print_courses, span
from dray.sim import usage
from dray.sim.claims import ChoiceCounts, choice_counts
from dray.sim.physical_devices import CounterUse, physical_devices
from dray.sim.snapshot import CLASSIC_CLAIM, Snapshot
from dray.sim.usage import ExtendedResourceRow, NamespaceRow, PoolRow, UsageRow

if TYPE_CHECKING:
    from dray.sim.headroom import KindHeadroom

PROG: Final = "dray top"
KINDS: Final = (
    "ResourceSlice",
    "ResourceClaim",
    "ResourceClaimTemplate",
    CLASSIC_CLAIM,
    "DeviceClass",
    "DeviceTaintRule",
    "Node",
    "Pod",
)
# With more nodes, fragmentation is counted only when it is asked for: it takes milliseconds for each node.
FRAGMENTATION_NODES_MAX: Final = 500
# Rows of each table if all are printed; the rest is counted.
OVERVIEW_ROWS_MAX: Final = 10
# Without rows, these say nothing.
_OPTIONAL: Final = ("pools", "counters", "fragmentation")
T = TypeVar("T")
# Tables that are computed from all physical devices, of which there may be very many.
_DEVICE_TABLES: Final = frozenset(("classes", "nodes", "counters"))
TABLES: Final = ("classes", "nodes", "pools", "counters", "namespaces", "fragmentation")

NAMESPACE_COLUMNS: Final[Sequence[Column[NamespaceRow]]] = (
    Column("NAMESPACE", lambda row: row.namespace),
    Column("CLAIMS", lambda row: str(row.claims)),
    Column("PENDING", lambda row: str(row.pending), colour=lambda row: "yellow" if row.pending else ""),
    Column("DEVICES", lambda row: str(row.devices)),
    Column("DEVICE-HOURS", lambda row: f"{row.device_hours:.1f}"),
)


POOL_COLUMNS: Final[Sequence[Column[PoolRow]]] = (
    Column("DRIVER", lambda row: row.driver),
    Column("POOL", lambda row: row.pool),
    Column("NODE", lambda row: row.node or "-"),
    Column("TOTAL", lambda row: _count(row.total)),
    Column("ALLOCATED", lambda row: _count(row.allocated)),
    Column("AVAILABLE", lambda row: _count(row.available)),
    Column("UNAVAILABLE", lambda row: _count(row.unavailable)),
    Column("ERROR", lambda row: row.error or "-", colour=lambda row: "red" if row.error else ""),
)


COUNTER_COLUMNS: Final[Sequence[Column[CounterUse]]] = (
    Column("DRIVER", lambda row: row.driver),
    Column("POOL", lambda row: row.pool),
    Column("DEVICE", lambda row: row.counter_set),
    Column("COUNTER", lambda row: row.counter),
    Column("TOTAL", lambda row: row.total),
    Column("USED", lambda row: row.used),
    Column("USAGE", lambda row: f"{bar(row.share)} {row.share:4.0%}"),
)


EXTENDED_RESOURCE_COLUMNS: Final[Sequence[Column[ExtendedResourceRow]]] = (
    Column("NODE", lambda row: row.node),
    Column("RESOURCE", lambda row: row.resource),
    Column("CLASS", lambda row: row.device_class or "-"),
    Column("DRIVER", lambda row: row.driver),
    Column("DEVICES", lambda row: str(row.total)),
    Column("IN USE", lambda row: str(row.held)),
    Column("FREE", lambda row: str(row.free)),
    Column("UNAVAILABLE", lambda row: str(row.out)),
)


def headroom_columns() -> list[Column[KindHeadroom]]:
    """Return the columns of the fragmentation table."""
    return [
        Column("REQUESTS", lambda row: row.requests),
        Column("FOR EXAMPLE", lambda row: row.example),
        Column("PODS", lambda row: str(row.pods)),
        Column("MORE FIT", lambda row: str(row.fit), colour=lambda row: "yellow" if row.stranded else ""),
        Column("AT MOST", lambda row: str(row.at_most)),
    ]


def _count(number: int | None) -> str:
    return "-" if number is None else str(number)


@dataclass(frozen=True, slots=True)
class Top:
    """The usage of the whole cluster."""

    classes: list[UsageRow]
    nodes: list[UsageRow]
    pools: list[PoolRow]
    counters: list[CounterUse]
    namespaces: list[NamespaceRow]
    # How many more Pods of each typical kind fit, and how many at most if packed ideally.
    fragmentation: list[KindHeadroom]
    choices: ChoiceCounts = field(default_factory=ChoiceCounts)


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    parser = cluster_parser(
        PROG,
        "Show the usage of physical devices by class, node, pool, counter and namespace, and how many more Pods of the "
        "typical kinds fit. Device-hours count from the allocation of devices that are held now; with --since, from "
        "the history that `dray up` records.",
        formats=("table", "json", "yaml", "csv"),
    )
    parser.add_argument(
        "what",
        nargs="?",
        choices=("all", *TABLES),
        default="all",
        help=f"which table to print; default: all, with up to {OVERVIEW_ROWS_MAX} rows each",
    )
    parser.add_argument(
        "--request",
        metavar="DRIVER",
        default="",
        help="with pools: let the cluster count the driver's devices, with a ResourcePoolStatusRequest that is deleted "
        "afterwards; this needs no permission to read claims",
    )
    parser.add_argument(
        "--extended-resources",
        action="store_true",
        help="with nodes: the devices that serve each extended resource, by class and driver or of a device plugin",
    )
    add_watch(parser)
    parser.add_argument(
        "--since",
        type=span,
        default=0.0,
        metavar="24h",
        help="usage over this time by class and by namespace, as `dray up` records it; also 30m, 7d",
    )
    arguments = parser.parse_args(argv)
    if arguments.output == "csv" and arguments.what == "all":
        parser.error(f"-o csv prints one table: specify {', '.join(TABLES[:-1])} or {TABLES[-1]}")
    if arguments.since:
        if arguments.watch or arguments.filename or arguments.request:
            parser.error("--since is for a cluster, printed once")
        if arguments.what not in ("all", *COURSES):
            parser.error(f"--since is for {' and '.join(COURSES)}")
        return print_courses(PROG, arguments)
    if arguments.request:
        if arguments.what != "pools" or arguments.watch or arguments.filename:
            parser.error("--request is for pools of a cluster, counted once")
        return _print_requested(arguments)

    if arguments.extended_resources and arguments.what != "nodes":
        parser.error("--extended-resources is for nodes")

    def show(snapshot: Snapshot, now: datetime, *, colour: bool) -> str:
        if arguments.extended_resources:
            rows = usage.by_extended_resource(physical_devices(snapshot), snapshot.classes)
            columns = EXTENDED_RESOURCE_COLUMNS
            return render(rows, columns, arguments.output, kind="ExtendedResourceUsageList", colour=colour)
        return render_top(measure(snapshot, now, arguments.what), arguments.what, arguments.output, colour=colour)

    return run_table(PROG, arguments, KINDS, show)


def measure(snapshot: Snapshot, now: datetime, what: str = "all") -> Top:
    """Return the tables of a snapshot that are shown; the others are empty."""
    shown = TABLES if what == "all" else (what,)
    devices = physical_devices(snapshot) if not _DEVICE_TABLES.isdisjoint(shown) else []
    return Top(
        usage.by_class(devices),
        usage.by_node(devices),
        usage.by_pool(snapshot) if "pools" in shown else [],
        usage.counter_rows(devices),
        usage.by_namespace(snapshot, now) if "namespaces" in shown else [],
        _fragmentation(snapshot) if _shows_fragmentation(what, len(snapshot.nodes)) else [],
        choice_counts(snapshot) if what == "all" else ChoiceCounts(),
    )


def _shows_fragmentation(what: str, node_count: int) -> bool:
    return what == "fragmentation" or (what == "all" and node_count <= FRAGMENTATION_NODES_MAX)


def _fragmentation(snapshot: Snapshot) -> list[KindHeadroom]:
    # Imported on use: other tables need no scheduler. Without nodes or devices there is nothing to count.
    if not snapshot.nodes or not snapshot.slices:
        return []
    from dray.sim.headroom import headroom

    return list(headroom(snapshot))


def _print_requested(arguments: argparse.Namespace) -> int:
    import asyncio

    from dray.cli.pool_requests import request_pools

    with exit_on_read_error(PROG):
        rows = asyncio.run(request_pools(arguments.kubeconfig, arguments.context, arguments.request))
    sys.stdout.write(render(rows, POOL_COLUMNS, arguments.output, kind="PoolUsageList", colour=sys.stdout.isatty()))
    return 0


def render_top(top: Top, what: str, output_format: str, *, colour: bool) -> str:
    """Render one table, or all of them."""
    if what == "all" and output_format != "table":
        return render([top], (), output_format, kind="TopList")
    shown: Sequence[_Table[Any]] = (
        _Table("classes", "UsageList", top.classes, usage_columns("class", top.classes), lambda row: row.share),
        _Table("nodes", "UsageList", top.nodes, usage_columns("node", top.nodes), lambda row: row.share),
        _Table("pools", "PoolUsageList", top.pools, POOL_COLUMNS, lambda row: row.allocated or 0),
        _Table("counters", "CounterUsageList", top.counters, COUNTER_COLUMNS, lambda row: row.share),
        _Table("namespaces", "NamespaceUsageList", top.namespaces, NAMESPACE_COLUMNS, lambda row: row.devices),
        _Table("fragmentation", "FragmentationList", top.fragmentation, headroom_columns(), lambda row: row.pods),
    )
    if what != "all":
        (table,) = [item for item in shown if item.name == what]
        return render(table.rows, table.columns, output_format, kind=table.kind, colour=colour)
    overview = [item._replace(rows=_with_errors(item.rows)) if item.name == "pools" else item for item in shown]
    tables = [_overview(item, colour=colour) for item in overview if item.rows or item.name not in _OPTIONAL]
    return "\n".join([*tables, *_choices_line(top.choices)])


def _choices_line(counts: ChoiceCounts) -> Iterator[str]:
    """Yield a line if claims have prioritized lists."""
    if counts.first or counts.fallback:
        got = f"{counts.first} got the first choice, {counts.fallback} a lower one"
        yield f"prioritized lists: {got}; see dray claims\n"


def _with_errors(rows: Sequence[PoolRow]) -> list[PoolRow]:
    """Return the pools that could not be counted: the numbers of the others are of published devices, not physical."""
    return [row for row in rows if row.error]


class _Table(NamedTuple, Generic[T]):
    name: str
    kind: str
    rows: Sequence[T]
    columns: Sequence[Column[T]]
    # Of too many rows, those with the largest are shown.
    size: Callable[[T], float]


def _overview(table: _Table[T], *, colour: bool) -> str:
    """Return a table of the most used rows, and the number of the others."""
    hidden = len(table.rows) - OVERVIEW_ROWS_MAX
    if hidden <= 0:
        return render(table.rows, table.columns, colour=colour)
    rows = sorted(table.rows, key=table.size, reverse=True)[:OVERVIEW_ROWS_MAX]
    return f"{render(rows, table.columns, colour=colour)}and {hidden} more; see {PROG} {table.name}\n"
