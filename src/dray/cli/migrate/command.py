"""`dray migrate plan`: plans and checks the migration of an extended resource from a device plugin to a DRA driver."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final

import yaml

from dray.api.errors import APIError
from dray.cli import command
from dray.cli.command import cluster_parser
from dray.cli.migrate.check import Finding, findings
from dray.cli.migrate.plan import (
    Migration,
    MigrationError,
    NodeRow,
    PodRow,
    QuotaRow,
    Server,
    migration_context,
    plan_migration,
)
from dray.cli.output import API_VERSION, Column, paint, render, render_document, to_plain
from dray.client.kubeconfig import KubeconfigError
from dray.runtime.logs import wants_colour
from dray.sim.snapshot import SnapshotError

PROG: Final = "dray migrate plan"
KINDS: Final = ("Node", "Pod", "DeviceClass", "ResourceSlice", "ResourceClaim", "ResourceQuota", "DeviceTaintRule")
EXIT_INCOMPLETE: Final = 1
USAGE: Final = "usage: dray migrate plan --resource NAME [--check] [-o table|json|yaml]\n"

NODE_COLUMNS: Final[list[Column[NodeRow]]] = [
    Column("NODE", lambda row: row.node),
    Column(
        "SERVED BY", lambda row: str(row.served_by), colour=lambda row: "red" if row.served_by is Server.BOTH else ""
    ),
    Column("CAPACITY", lambda row: str(row.capacity)),
    Column("ALLOCATABLE", lambda row: str(row.allocatable)),
    Column("DEVICES", lambda row: str(row.devices)),
    Column("IN USE", lambda row: str(row.devices_in_use)),
    Column("PLUGIN USAGE", lambda row: str(row.from_plugin)),
    Column("DEVICE USAGE", lambda row: str(row.from_devices)),
    Column("NEW PODS", lambda row: row.after),
]
POD_COLUMNS: Final[list[Column[PodRow]]] = [
    Column("POD", lambda row: row.pod),
    Column("NODE", lambda row: row.node),
    Column("COUNT", lambda row: str(row.count)),
    Column("SERVED BY", lambda row: row.now),
    Column("AFTER MIGRATION", lambda row: row.after),
]
QUOTA_COLUMNS: Final[list[Column[QuotaRow]]] = [
    Column("QUOTA", lambda row: row.quota),
    Column("LIMIT", lambda row: f"{row.key}: {row.hard}"),
    Column("ALSO NEEDED", lambda row: f"{row.other_key}: {row.hard}"),
    Column("CURRENT", lambda row: row.other_hard or "missing"),
]
FINDING_COLUMNS: Final[list[Column[Finding]]] = [
    Column("OBJECT", lambda row: row.about),
    Column("PROBLEM", lambda row: row.reason),
]


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    if argv and argv[0] in ("-h", "--help"):
        _parser().print_help()
        return 0
    if not argv or argv[0] != "plan":
        sys.stderr.write(USAGE)
        return command.EXIT_USAGE
    arguments = _parser().parse_args(argv[1:])
    try:
        context = migration_context(command.read_snapshot(arguments, KINDS), arguments.resource, arguments.driver)
    except (SnapshotError, KubeconfigError, APIError, MigrationError) as error:
        sys.stderr.write(f"{PROG}: {error}\n")
        return command.EXIT_USAGE if isinstance(error, MigrationError) else command.EXIT_FAILURE
    migration = plan_migration(context)
    problems = findings(context, migration) if arguments.check else ()
    sys.stdout.write(_render(arguments, migration, problems))
    return EXIT_INCOMPLETE if problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = cluster_parser(
        PROG,
        "Show what serves an extended resource on each node, and how to migrate it from a device plugin to a driver.",
        formats=("table", "json", "yaml"),
    )
    parser.add_argument("--resource", required=True, metavar="NAME", help="the extended resource that Pods request")
    parser.add_argument("--driver", default="", help="the driver of the class, if several drivers publish devices")
    parser.add_argument("--check", action="store_true", help="check the migration; the exit code is 1 on problems")
    return parser


def _render(arguments: argparse.Namespace, migration: Migration, problems: Sequence[Finding]) -> str:
    if arguments.output == "table":
        colour = wants_colour(sys.stdout, os.environ)
        if arguments.check:
            return check_text(migration, problems, colour=colour)
        return plan_text(migration, colour=colour)
    found = {"apiVersion": API_VERSION, "kind": "Migration", **to_plain(migration)}
    if arguments.check:
        found |= {"findings": to_plain(problems), "done": not problems}
    return render_document(found, arguments.output)


# Without it, a driver that could report until Kubernetes 1.35 gets errors.
_ROLE_TEXT: Final = (
    "To report device status, the role of the driver needs patch for resourceclaims/status and associated-node:patch "
    "for resourceclaims/driver.\n"
)


def plan_text(migration: Migration, *, colour: bool = False) -> str:
    """Return the plan as text."""
    parts = [f"{migration.resource}\n", _class_text(migration)]
    parts.append(render(migration.nodes, NODE_COLUMNS, colour=colour) if migration.nodes else "No node provides it.\n")
    if migration.pods:
        parts.append(render(migration.pods, POD_COLUMNS, colour=colour))
    if migration.quotas:
        title = "These quotas need both limits, with the same value:\n"
        parts.append(title + render(migration.quotas, QUOTA_COLUMNS, colour=colour))
    else:
        parts.append("No quotas to change.\n")
    parts.append(_ROLE_TEXT)
    return "\n".join(parts)


def _class_text(migration: Migration) -> str:
    if not migration.class_action:
        others = migration.candidates[1:]
        note = f" (ignored: {', '.join(others)}, with the same extendedResourceName)" if others else ""
        return f"DeviceClass {migration.device_class} serves it{note}.\n"
    verb = "Create" if migration.class_action == "create" else "Change"
    document = yaml.safe_dump(migration.class_document, sort_keys=False)
    return f"{verb} the DeviceClass {migration.device_class}:\n\n{document}"


def check_text(migration: Migration, problems: Sequence[Finding], *, colour: bool = False) -> str:
    """Return the result of the check as text."""
    if not problems:
        text = "ok: nothing is counted twice, every running Pod has its devices, quotas agree\n"
        return f"{migration.resource}: " + (paint(text, "green") if colour else text)
    return render(problems, FINDING_COLUMNS, colour=colour)
