"""`dray status`: lists the clusters of `dray up` on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

from dray.cli.command import Parser, add_output
from dray.cli.output import Column
from dray.cli.tables import Table, add_row_flags, render_table, selection
from dray.cmd.local_clusters import DEFAULT_DIRECTORY, LocalCluster, find_clusters
from dray.runtime.logs import wants_colour

PROG: Final = "dray status"


def _state(cluster: LocalCluster) -> str:
    return "running" if cluster.is_running else "stopped"


_COLUMNS: Final[Sequence[Column[LocalCluster]]] = (
    Column("NAME", lambda cluster: cluster.name),
    Column("STATE", _state, colour=lambda cluster: "green" if cluster.is_running else "dim"),
    Column("SERVER", lambda cluster: cluster.server),
    Column("NODES", lambda cluster: str(cluster.nodes)),
    Column("PID", lambda cluster: str(cluster.pid) if cluster.is_running else ""),
    Column("CONTEXT", lambda cluster: cluster.context if cluster.merged else ""),
    Column("DATA", lambda cluster: cluster.data_dir),
)


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser(PROG, "List the clusters of `dray up` on this machine.")
    parser.add_argument("--data-dir", default=DEFAULT_DIRECTORY, metavar="DIR", help=f"default: {DEFAULT_DIRECTORY}")
    add_output(parser)
    add_row_flags(parser)
    arguments = parser.parse_args(argv)
    chosen = selection(arguments)
    rows = [cluster for cluster in find_clusters(arguments.data_dir) if chosen.selects(cluster, {})]
    table = Table(
        "ClusterList", rows, _COLUMNS, lambda cluster: f"cluster/{cluster.context}", "No clusters were started here.\n"
    )
    sys.stdout.write(render_table(table, arguments, colour=wants_colour(sys.stdout, os.environ)))
    return 0
