"""`dray down`: stops clusters of `dray up` on this machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dray.cli.command import EXIT_FAILURE, Parser
from dray.cmd.local_clusters import (
    DEFAULT_DIRECTORY,
    LocalCluster,
    LocalClusterError,
    find_cluster,
    find_clusters,
    remove_cluster,
    stop_cluster,
)

PROG: Final = "dray down"


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser(
        PROG,
        "Stop a cluster of `dray up` on this machine, and the containers of its node. Its data stays, and `dray up` "
        "with the same name or data directory continues with it; --delete removes it, and its kubeconfig context.",
    )
    parser.add_argument("--name", default="", help="the cluster's name; default: the cluster in --data-dir")
    parser.add_argument("--data-dir", default=DEFAULT_DIRECTORY, metavar="DIR", help=f"default: {DEFAULT_DIRECTORY}")
    parser.add_argument("--all", action="store_true", help="all named clusters, and the one in --data-dir")
    parser.add_argument("--delete", action="store_true", help="also remove all data of the cluster")
    arguments = parser.parse_args(argv)
    try:
        if arguments.all:
            found = find_clusters(arguments.data_dir)
        else:
            found = [find_cluster(arguments.name, arguments.data_dir)]
        for cluster in found:
            _stop(cluster, delete=arguments.delete)
    except (LocalClusterError, OSError) as error:
        sys.stderr.write(f"{PROG}: {error}\n")
        return EXIT_FAILURE
    return 0


def _stop(cluster: LocalCluster, *, delete: bool) -> None:
    label = cluster.name or cluster.data_dir
    was_running = stop_cluster(cluster)
    if delete:
        if cluster.merged:
            # Imported on use: slow to import, rarely needed.
            from dray.cmd.kubeconfig_merge import MergeError, remove_context

            try:
                remove_context(Path(cluster.merged), cluster.context)
            except MergeError as error:
                sys.stderr.write(f"{PROG}: its kubeconfig context was not removed: {error}\n")
        remove_cluster(cluster)
    state = "stopped" if was_running else "was not running"
    sys.stdout.write(f"{label} {state}{'; its data was removed' if delete else ''}\n")
