"""`dray devices`: every device with its state and who holds it, or how full each node, class or driver is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from dray.cli import command
from dray.cli.command import add_namespace, add_watch, reading_parser
from dray.cli.output import Column, age, bar, render
from dray.sim import usage
from dray.sim.devices import DeviceRow, DeviceState, device_rows
from dray.sim.snapshot import Snapshot
from dray.sim.usage import UsageRow

PROG: Final = "dray devices"
KINDS: Final = ("ResourceSlice", "ResourceClaim", "DeviceClass", "DeviceTaintRule")
COLOURS: Final = {
    DeviceState.FREE: "green",
    DeviceState.SHARED: "cyan",
    DeviceState.HELD: "yellow",
    DeviceState.TAINTED: "red",
    DeviceState.BLOCKED: "dim",
    DeviceState.UNUSABLE: "red",
}
_GROUPS: Final[dict[str, Callable[[Sequence[DeviceRow]], list[UsageRow]]]] = {
    "node": usage.by_node,
    "class": usage.by_class,
    "driver": usage.by_driver,
}


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    parser = reading_parser(PROG, "Show the devices of a cluster: free, held by whom, tainted, blocked.")
    parser.add_argument("--by", choices=tuple(_GROUPS), help="count instead of listing")
    parser.add_argument("--node", default="", help="only devices of this node")
    parser.add_argument("--driver", default="", help="only devices of this driver")
    parser.add_argument("--class", dest="device_class", default="", metavar="CLASS", help="only devices of this class")
    parser.add_argument("--state", choices=[str(state) for state in DeviceState], help="only devices in this state")
    add_namespace(parser)
    add_watch(parser)
    arguments = parser.parse_args(argv)

    def show(snapshot: Snapshot, now: datetime, colour: bool) -> str:  # noqa: FBT001 - a callback's one switch
        rows = [row for row in device_rows(snapshot) if _wanted(row, arguments)]
        if arguments.by:
            return render(_GROUPS[arguments.by](rows), usage_columns(arguments.by), arguments.output, colour=colour)
        return render(rows, columns(now), arguments.output, colour=colour) if rows else _nothing(arguments.output)

    return command.run(PROG, arguments, KINDS, show)


def _nothing(form: str) -> str:
    return render([], [], form) if form in ("json", "yaml") else "No devices found.\n"


def _wanted(row: DeviceRow, arguments: object) -> bool:
    given = vars(arguments)
    held_by = {holder.claim.partition("/")[0] for holder in row.holders}
    return (
        (not given["node"] or row.node == given["node"])
        and (not given["driver"] or row.driver == given["driver"])
        and (not given["device_class"] or given["device_class"] in row.classes)
        and (not given["state"] or row.state == given["state"])
        and (not given["namespace"] or given["namespace"] in held_by)
    )


def columns(now: datetime) -> list[Column[DeviceRow]]:
    """The columns of the list of devices."""
    return [
        Column("NODE", lambda row: row.node),
        Column("DRIVER", lambda row: row.driver),
        Column("POOL", lambda row: row.pool, wide=True),
        Column("DEVICE", lambda row: row.name),
        Column("STATE", lambda row: str(row.state), colour=lambda row: COLOURS[row.state]),
        Column("CLAIM", lambda row: ", ".join(holder.claim for holder in row.holders)),
        Column("PODS", lambda row: ", ".join(pod for holder in row.holders for pod in holder.pods)),
        Column("SINCE", lambda row: ", ".join(age(holder.since, now) for holder in row.holders)),
        Column("CLASSES", lambda row: ",".join(row.classes)),
        Column("NOTE", lambda row: row.note, wide=True),
        Column("CAPACITY", lambda row: _pairs(row.capacity), wide=True),
        Column("ATTRIBUTES", lambda row: _pairs(row.attributes), wide=True),
    ]


def usage_columns(title: str) -> list[Column[UsageRow]]:
    """The columns of a table of counts."""
    return [
        Column(title.upper(), lambda row: row.name),
        Column("DEVICES", lambda row: str(row.total)),
        Column("HELD", lambda row: str(row.held)),
        Column("FREE", lambda row: str(row.free)),
        Column("OUT", lambda row: str(row.out)),
        Column("USE", lambda row: f"{bar(row.share)} {row.share:4.0%}", colour=_fullness),
    ]


def _fullness(row: UsageRow) -> str:
    return "red" if not row.free and row.total else "yellow" if row.held else "green"


def _pairs(values: object) -> str:
    assert isinstance(values, dict)
    return ",".join(f"{name}={value}" for name, value in values.items())
