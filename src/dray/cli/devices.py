"""`dray devices`: lists devices with their state and claims, or counts them by node, class or driver."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from dray.api.timestamps import age
from dray.cli.command import add_namespace, add_watch, cluster_parser, run_table
from dray.cli.output import Column, bar
from dray.cli.tables import Table, add_row_flags, render_table, selection
from dray.sim import usage
from dray.sim.devices import PLUGIN_DRIVER, DeviceRow, DeviceState
from dray.sim.explain.similar_names import did_you_mean
from dray.sim.physical_devices import PhysicalDevice, all_rows, physical_devices
from dray.sim.snapshot import Snapshot, SnapshotError
from dray.sim.usage import UsageRow

PROG: Final = "dray devices"
KINDS: Final = ("ResourceSlice", "ResourceClaim", "DeviceClass", "DeviceTaintRule", "Node", "Pod")
COLOURS: Final = {
    DeviceState.FREE: "green",
    DeviceState.SHARED: "cyan",
    DeviceState.HELD: "yellow",
    DeviceState.TAINTED: "red",
    DeviceState.BLOCKED: "dim",
    DeviceState.UNUSABLE: "red",
    DeviceState.UNHEALTHY: "red",
    DeviceState.WITHHELD: "dim",
}
_GROUPS: Final[dict[str, Callable[[Sequence[PhysicalDevice]], list[UsageRow]]]] = {
    "node": usage.by_node,
    "class": usage.by_class,
    "driver": usage.by_driver,
}


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    parser = cluster_parser(PROG, "List the devices of a cluster with their state and the claims that hold them.")
    parser.add_argument("--by", choices=tuple(_GROUPS), help="count physical devices by node, class or driver")
    parser.add_argument("--node", default="", help="only devices of this node")
    parser.add_argument("--driver", default="", help="only devices of this driver")
    parser.add_argument("--class", dest="device_class", default="", metavar="CLASS", help="only devices of this class")
    parser.add_argument("--state", choices=[str(state) for state in DeviceState], help="only devices in this state")
    add_row_flags(parser)
    add_namespace(parser)
    add_watch(parser)
    arguments = parser.parse_args(argv)

    def show(snapshot: Snapshot, now: datetime, *, colour: bool) -> str:
        _check_slices(snapshot)
        everything = all_rows(snapshot)
        _check_names(everything, snapshot, arguments)
        selected = selection(arguments)
        rows = [row for row in everything if _is_selected(row, arguments) and selected.selects(row, {})]
        if arguments.by:
            found = _GROUPS[arguments.by](_physical(snapshot, rows))
            counts = Table("UsageList", found, usage_columns(arguments.by, found), lambda row: row.name)
            return render_table(counts, arguments, colour=colour)
        table = Table("DeviceList", rows, columns(now, rows), lambda row: f"device/{row.key}", "No devices found.\n")
        return render_table(table, arguments, colour=colour)

    return run_table(PROG, arguments, KINDS, show)


def _physical(snapshot: Snapshot, rows: Sequence[DeviceRow]) -> list[PhysicalDevice]:
    """Return the physical devices of the rows."""
    wanted = {(row.driver, row.pool, row.name) for row in rows}
    return [
        device
        for device in physical_devices(snapshot)
        if any((device.driver, device.pool, name) in wanted for name in (*device.published, device.name))
    ]


def _check_slices(snapshot: Snapshot) -> None:
    """Raise `SnapshotError` if the devices were not read."""
    if reason := snapshot.unread("ResourceSlice"):
        what = "without ResourceSlices there are no devices to list; dray claims shows those of your claims"
        raise SnapshotError(f"{reason}: {what}" if "ResourceSlice" in snapshot.absent else what)


def _check_names(rows: Sequence[DeviceRow], snapshot: Snapshot, arguments: argparse.Namespace) -> None:
    """Raise `SnapshotError` if a flag names what does not exist."""
    nodes = {row.node for row in rows} | {node.metadata.name or "" for node in snapshot.nodes}
    classes = {item.metadata.name or "" for item in snapshot.classes}
    for what, name, known in (
        ("node", arguments.node, nodes),
        ("driver", arguments.driver, {row.driver for row in rows}),
        ("class", arguments.device_class, classes),
    ):
        if name and name not in known:
            raise SnapshotError(f'{what} "{name}" not found{did_you_mean(name, known)}')


def _is_selected(row: DeviceRow, arguments: argparse.Namespace) -> bool:
    names = (name for holder in row.holders for name in ((holder.claim,) if holder.claim else holder.pods))
    namespaces = {name.partition("/")[0] for name in names}
    return (
        (not arguments.node or row.node == arguments.node)
        and (not arguments.driver or row.driver == arguments.driver)
        and (not arguments.device_class or arguments.device_class in row.classes)
        and (not arguments.state or row.state == arguments.state)
        and (not arguments.namespace or arguments.namespace in namespaces)
    )


def columns(now: datetime, rows: Sequence[DeviceRow] = ()) -> list[Column[DeviceRow]]:
    """Return the columns of the list of devices; those that say nothing of any row are left out."""
    also: list[Column[DeviceRow]] = [Column("ALSO OFFERED BY", lambda row: row.also)]
    # A row of a device plugin stands for several devices.
    amount: list[Column[DeviceRow]] = [Column("AMOUNT", lambda row: row.note if row.driver == PLUGIN_DRIVER else "")]
    return [
        Column("NODE", lambda row: row.node),
        Column("DRIVER", lambda row: row.driver),
        Column("POOL", lambda row: row.pool, wide=True),
        Column("DEVICE", lambda row: row.name),
        Column("STATE", lambda row: str(row.state), colour=lambda row: COLOURS[row.state]),
        *(amount if any(row.driver == PLUGIN_DRIVER for row in rows) else ()),
        Column("CLAIM", lambda row: ", ".join(holder.claim for holder in row.holders if holder.claim)),
        Column("PODS", lambda row: ", ".join(pod for holder in row.holders for pod in holder.pods)),
        Column("ALLOCATED", lambda row: ", ".join(age(holder.since, now) for holder in row.holders)),
        *(also if any(row.also for row in rows) else ()),
        Column("CLASSES", lambda row: ",".join(row.classes)),
        Column("NOTE", lambda row: row.note, wide=True),
        Column("CAPACITY", lambda row: _pairs(row.capacity), wide=True),
        Column("ATTRIBUTES", lambda row: _pairs(row.attributes), wide=True),
    ]


_WHY: Final[Column[UsageRow]] = Column(
    "WHY UNAVAILABLE", lambda row: ", ".join(f"{count} {why}" for why, count in row.reasons.items())
)


def usage_columns(title: str, rows: Iterable[UsageRow]) -> list[Column[UsageRow]]:
    """Return the columns of a table of counts; why devices are unavailable only if some are."""
    columns = [
        Column(title.upper(), lambda row: row.name),
        Column("DEVICES", lambda row: str(row.total)),
        Column("IN USE", lambda row: str(row.held)),
        Column("FREE", lambda row: str(row.free)),
        Column("UNAVAILABLE", lambda row: str(row.out)),
        Column("USAGE", lambda row: f"{bar(row.share)} {row.share:4.0%}", colour=_usage_colour),
    ]
    return [*columns, _WHY] if any(row.reasons for row in rows) else columns


def _usage_colour(row: UsageRow) -> str:
    return "red" if not row.free and row.total else "yellow" if row.held else "green"


def _pairs(values: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in values.items())
