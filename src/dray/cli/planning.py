"""Shared code of `dray plan` and `dray rebalance`: flags, and the snapshot that is planned on."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final

from dray.cli.command import (
    Parser,
    add_feature_gates,
    check_nodes,
    cluster_parser,
    current_namespace,
    exit_on_read_error,
    print_hidden,
    read_snapshot,
)
from dray.cli.output import ProgressLine
from dray.scheduler.named_profiles import NAMED_PROFILES, SPREAD
from dray.sim.snapshot import PLACEMENT_KINDS, Snapshot

# What decides whether and where Pods go, and the owners that create a Pod again.
KINDS: Final = (*PLACEMENT_KINDS, "ReplicaSet", "StatefulSet", "ResourceQuota", "Event")


def planning_parser(prog: str, description: str) -> Parser:
    """Return a parser with the flags of both commands."""
    parser = cluster_parser(prog, description, formats=("text", "json", "yaml"))
    parser.add_argument(
        "--profile",
        choices=sorted(NAMED_PROFILES),
        default=SPREAD,
        help=f"the scheduler's profile; default: {SPREAD}",
    )
    add_feature_gates(parser)
    return parser


@contextmanager
def planning_input(prog: str, arguments: argparse.Namespace) -> Iterator[tuple[Snapshot, ProgressLine]]:
    """Read the snapshot; errors of reading and planning end the process with one line."""
    with exit_on_read_error(prog), closing(ProgressLine()) as progress:
        snapshot = read_snapshot(arguments, KINDS)
        check_nodes(snapshot)
        print_hidden(prog, snapshot)
        yield snapshot, progress


def namespace_of(arguments: argparse.Namespace) -> str:
    """Return the namespace of the flag, or that of the kubeconfig context."""
    return arguments.namespace or current_namespace(arguments)
