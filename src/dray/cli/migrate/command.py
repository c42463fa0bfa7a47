"""`dray migrate plan`: what serves a resource where, what to do, and afterwards whether it is done."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Final

import yaml

from dray.api.errors import APIError
from dray.cli import command
from dray.cli.command import reading_parser
from dray.cli.migrate.check import Finding, findings
from dray.cli.migrate.plan import Migration, MigrationError, NodeRow, PodRow, QuotaRow, Server, ground, plan_migration
from dray.cli.output import Column, paint, plain, render
from dray.client.kubeconfig import KubeconfigError
from dray.runtime.logs import wants_colour
from dray.sim.snapshot import SnapshotError

PROG: Final = "dray migrate plan"
KINDS: Final = ("Node", "Pod", "DeviceClass", "ResourceSlice", "ResourceClaim", "ResourceQuota", "DeviceTaintRule")
EXIT_NOT_DONE: Final = 1
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
    Column("PODS OF PLUGIN", lambda row: str(row.from_plugin)),
    Column("PODS OF DEVICES", lambda row: str(row.from_devices)),
    Column("NEW PODS GET", lambda row: row.after),
]
POD_COLUMNS: Final[list[Column[PodRow]]] = [
    Column("POD", lambda row: row.pod),
    Column("NODE", lambda row: row.node),
    Column("COUNT", lambda row: str(row.count)),
    Column("SERVED BY", lambda row: row.now),
    Column("AFTERWARDS", lambda row: row.after),
]
QUOTA_COLUMNS: Final[list[Column[QuotaRow]]] = [
    Column("QUOTA", lambda row: row.quota),
    Column("HAS", lambda row: f"{row.key}: {row.hard}"),
    Column("NEEDS", lambda row: f"{row.other_key}: {row.hard}"),
    Column("NOW", lambda row: row.other_hard or "missing"),
]
FINDING_COLUMNS: Final[list[Column[Finding]]] = [
    Column("WHAT", lambda row: row.about),
    Column("WRONG", lambda row: row.reason),
]


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    if not argv or argv[0] != "plan":
        asked = bool(argv) and argv[0] in ("-h", "--help")
        (sys.stdout if asked else sys.stderr).write(USAGE)
        return 0 if asked else command.EXIT_USAGE
    arguments = _parser().parse_args(argv[1:])
    try:
        found = ground(command.read(arguments, KINDS), arguments.resource, arguments.driver)
    except (SnapshotError, KubeconfigError, APIError, MigrationError) as error:
        sys.stderr.write(f"{PROG}: {error}\n")
        return command.EXIT_USAGE if isinstance(error, MigrationError) else command.EXIT_FAILURE
    migration = plan_migration(found)
    wrong = findings(found, migration) if arguments.check else ()
    sys.stdout.write(_shown(arguments, migration, wrong))
    return EXIT_NOT_DONE if wrong else 0


def _parser() -> argparse.ArgumentParser:
    parser = reading_parser(
        PROG,
        "Show what serves an extended resource on each node and what a move to a driver takes.",
        forms=("table", "json", "yaml"),
    )
    parser.add_argument("--resource", required=True, metavar="NAME", help="the extended resource, as Pods ask for it")
    parser.add_argument("--driver", default="", help="whose devices the class is to have, when several drivers publish")
    parser.add_argument("--check", action="store_true", help="say what is wrong; the exit code is 1 if anything is")
    return parser


def _shown(arguments: argparse.Namespace, migration: Migration, wrong: Sequence[Finding]) -> str:
    if arguments.output == "table":
        colour = wants_colour(sys.stdout, os.environ)
        if arguments.check:
            return check_text(migration, wrong, colour=colour)
        return plan_text(migration, colour=colour)
    document = plain(migration) | {"quotas": [plain(quota) for quota in migration.quotas]}
    if arguments.check:
        document["findings"] = [plain(finding) for finding in wrong]
        document["done"] = not wrong
    if arguments.output == "json":
        return json.dumps(document, indent=2) + "\n"
    return str(yaml.safe_dump(document, sort_keys=False))


def plan_text(migration: Migration, *, colour: bool = False) -> str:
    """The plan for people."""
    parts = [f"{migration.resource}\n", _class_text(migration)]
    parts.append(render(migration.nodes, NODE_COLUMNS, colour=colour) if migration.nodes else "No node has it.\n")
    if migration.pods:
        parts.append(render(migration.pods, POD_COLUMNS, colour=colour))
    if migration.quotas:
        title = "These quotas must have both limits, of the same size:\n"
        parts.append(title + render(migration.quotas, QUOTA_COLUMNS, colour=colour))
    else:
        parts.append("Quotas: nothing to change.\n")
    return "\n".join(parts)


def _class_text(migration: Migration) -> str:
    if not migration.class_action:
        others = f" ({', '.join(migration.claimants[1:])} would like to)" if len(migration.claimants) > 1 else ""
        return f"Class {migration.device_class} serves it{others}.\n"
    verb = "Create" if migration.class_action == "create" else "Change"
    document = yaml.safe_dump(migration.class_document, sort_keys=False)
    return f"{verb} the class {migration.device_class}:\n\n{document}"


def check_text(migration: Migration, wrong: Sequence[Finding], *, colour: bool = False) -> str:
    """The verdict for people."""
    if not wrong:
        text = "ok: nothing counts twice, every running Pod has its devices, quotas agree\n"
        return f"{migration.resource}: " + (paint(text, "green") if colour else text)
    return render(wrong, FINDING_COLUMNS, colour=colour)
