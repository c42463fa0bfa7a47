"""Shared code of `dray plan` and `dray rebalance`: flags, and the snapshot that is planned on."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Final

from dray.api.pod_claims import is_pod_done
from dray.cli.command import (
    Parser,
    add_feature_gates,
    add_scheduler_config,
    check_nodes,
    cluster_parser,
    current_namespace,
    exit_on_read_error,
    print_hidden,
    read_snapshot,
)
from dray.cli.output import ProgressLine
from dray.scheduler.config import ProfileConfig
from dray.scheduler.named_profiles import NAMED_PROFILES, SPREAD
from dray.sim.snapshot import PLACEMENT_KINDS, Snapshot

# What decides whether and where Pods go, and the owners that create a Pod again.
KINDS: Final = (*PLACEMENT_KINDS, "ReplicaSet", "StatefulSet", "ResourceQuota", "Event")


def planning_parser(prog: str, description: str) -> Parser:
    """Return a parser with the flags of both commands."""
    parser = cluster_parser(prog, description, formats=("text", "json", "yaml"))
    profile = parser.add_mutually_exclusive_group()
    profile.add_argument(
        "--profile",
        choices=sorted(NAMED_PROFILES),
        default="",
        help=f"the scheduler's profile; default: that of the configuration, or {SPREAD} without one",
    )
    add_scheduler_config(profile)
    add_feature_gates(parser)
    return parser


@contextmanager
def planning_input(prog: str, arguments: argparse.Namespace) -> Iterator[tuple[Snapshot, ProgressLine]]:
    """Read the snapshot; errors of reading and planning end the process with one line."""
    with exit_on_read_error(prog), closing(ProgressLine()) as progress:
        snapshot = read_snapshot(arguments, KINDS)
        check_nodes(snapshot)
        print_hidden(prog, replace(snapshot, hidden=(*snapshot.hidden, *_notes(snapshot))))
        yield snapshot, progress


def _notes(snapshot: Snapshot) -> tuple[str, ...]:
    """Return what is not evaluated of the scheduler's configuration, and for Pods that wait."""
    from dray.sim.notes import notes_on
    from dray.sim.scheduler_profiles import evaluated_profiles

    waiting = [pod for pod in snapshot.pods if not pod.spec.node_name and not is_pod_done(pod)]
    return notes_on(snapshot, waiting, evaluated_profiles(snapshot))


def profile_of(arguments: argparse.Namespace) -> ProfileConfig | None:
    """Return the profile for all Pods; None for those of the cluster."""
    return NAMED_PROFILES[arguments.profile] if arguments.profile else None


def namespace_of(arguments: argparse.Namespace) -> str:
    """Return the namespace of the flag, or that of the kubeconfig context."""
    return arguments.namespace or current_namespace(arguments)
