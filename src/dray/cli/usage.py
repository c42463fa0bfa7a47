"""`dray usage`: prints device-hours by namespace and class, for accounting."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

from dray.cli.command import Parser, add_namespace, add_output, add_source
from dray.cli.output import Column, render
from dray.cli.usage_over_time import read_window, span
from dray.runtime.logs import wants_colour
from dray.sim.usage_window import NamespaceHours, namespace_hours

PROG: Final = "dray usage"

COLUMNS: Final[Sequence[Column[NamespaceHours]]] = (
    Column("NAMESPACE", lambda row: row.namespace),
    Column("CLASS", lambda row: row.device_class),
    Column("DEVICE-HOURS", lambda row: f"{row.device_hours:.3f}"),
)


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser(
        PROG,
        "Print the device-hours of each namespace by requested class, from the history that `dray up` records: a "
        "physical device for an hour is one, half of it is a half. Time in which nothing was recorded is not counted.",
    )
    add_source(parser)
    add_output(parser, ("table", "csv", "json", "yaml"))
    add_namespace(parser)
    parser.add_argument(
        "--since",
        type=span,
        default="24h",
        metavar="24h",
        help="the time until now, up to 30d; also 30m, 7d; default: 24h",
    )
    arguments = parser.parse_args(argv)
    namespace = "" if arguments.all_namespaces else arguments.namespace
    rows = [row for row in namespace_hours(read_window(PROG, arguments)) if namespace in ("", row.namespace)]
    sys.stdout.write(
        render(rows, COLUMNS, arguments.output, kind="NamespaceHoursList", colour=wants_colour(sys.stdout, os.environ))
    )
    return 0
