"""`dray doctor`: finds stuck, orphaned and inconsistent objects, and suggests or applies fixes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from platform import node as hostname
from typing import Final

from dray.api.errors import APIError
from dray.cli.command import EXIT_FAILURE, cluster_parser, exit_on_read_error, print_hidden, read_snapshot
from dray.cli.output import paint, write_answer
from dray.runtime.system import SystemClock
from dray.sim.doctor.findings import Finding, Fix, Severity, grouped
from dray.sim.doctor.rules import examine
from dray.sim.explain.similar_names import listed
from dray.sim.snapshot import PATH_KINDS

PROG: Final = "dray doctor"
_COLOURS: Final = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


def main(argv: Sequence[str]) -> int:
    """Run the command; return 0 if there are no problems, 1 if there are errors or warnings."""
    arguments = _parse(argv)
    with exit_on_read_error(PROG):
        snapshot = read_snapshot(arguments, PATH_KINDS)
        print_hidden(PROG, snapshot)
        findings = examine(snapshot, SystemClock().now())
        if arguments.node_root_dir:
            # Imported on use: node agents run on Linux only, and the cluster is looked at from anywhere.
            from dray.cli.doctor_on_node import node_findings

            findings += node_findings(Path(arguments.node_root_dir), arguments.node_name or hostname(), snapshot)
        if arguments.fix:
            _apply_fixes(arguments, [finding.fix for finding in findings if finding.fix is not None])
    if arguments.manifests:
        return _print_manifests(findings)
    write_answer("FindingList", findings, arguments.output, partial(lines, findings, is_complete=not snapshot.hidden))
    return EXIT_FAILURE if any(finding.severity is not Severity.NOTE for finding in findings) else 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    description = (
        "Find stuck, orphaned and inconsistent objects: claims that are not deleted, reservations of deleted Pods, "
        "devices allocated twice, unusable pools, failed prepares, missing images, crash loops, quotas that stop "
        "workloads, and with --node-root-dir differences to a node's checkpoints and drivers."
    )
    parser = cluster_parser(PROG, description, formats=("text", "json", "yaml"))
    parser.add_argument("--fix", action="store_true", help="fix what a single safe write can fix")
    parser.add_argument(
        "--manifests", action="store_true", help="print only the manifests that findings advise to apply, as YAML"
    )
    parser.add_argument(
        "--node-root-dir",
        default="",
        metavar="DIR",
        help="check the node agent's root directory on this machine, e.g. /var/lib/kubelet",
    )
    parser.add_argument("--node-name", default="", metavar="NODE", help="the node's name; default: the hostname")
    arguments = parser.parse_args(argv)
    if arguments.fix and arguments.filename:
        parser.error("--fix needs a cluster; files are read-only")
    return arguments


def _print_manifests(findings: Sequence[Finding]) -> int:
    # Imported on use: the text needs no YAML.
    import yaml

    manifests = {str(item.manifest): item.manifest for item in findings if item.manifest is not None}
    sys.stdout.write(yaml.safe_dump_all(manifests.values(), sort_keys=False) if manifests else "")
    return 0


def _apply_fixes(arguments: argparse.Namespace, fixes: Sequence[Fix]) -> None:
    # Imported on use: only --fix writes to a cluster.
    import asyncio

    asyncio.run(_apply(arguments, fixes))


async def _apply(arguments: argparse.Namespace, fixes: Sequence[Fix]) -> None:
    """Apply the fixes; one that no longer applies was made by another client."""
    # Imported on use, as above.
    from dray.cli.cluster import connect
    from dray.client.interface import Patch, PatchType, WriteOptions
    from dray.sim.cluster_reader import best_resources

    async with connect(arguments.kubeconfig, arguments.context) as client:
        served = best_resources(await client.resources())
        for fix in fixes:
            patch = Patch(PatchType.JSON, list(fix.operations))
            try:
                await client.patch(served[fix.kind], fix.name, fix.namespace, patch, WriteOptions(subresource="status"))
            except APIError as error:
                sys.stderr.write(f"{PROG}: {fix.kind} {fix.namespace}/{fix.name} not fixed: {error}\n")
            else:
                sys.stderr.write(f"{PROG}: {fix.kind} {fix.namespace}/{fix.name} fixed\n")


def lines(findings: Sequence[Finding], *, is_complete: bool = True, colour: bool = False) -> Iterator[str]:
    """Return the text format: how much was found, then what and how to fix it."""
    if not findings:
        yield "No problems found." if is_complete else "No problems found in what could be read."
        return
    counts = {severity: sum(item.severity is severity for item in findings) for severity in Severity}
    shown = [f"{count} {severity}{'' if count == 1 else 's'}" for severity, count in counts.items() if count]
    yield f"{', '.join(shown)}\n"
    for group in grouped(findings):
        finding = group.first
        severity = paint(f"{finding.severity:<8}", _COLOURS[finding.severity] if colour else "")
        mark = " (--fix)" if finding.fix is not None else ""
        yield f"{severity} {finding.subject} {finding.what}"
        yield f"         → {finding.advice}{mark}"
        if group.others:
            yield f"         the same for {listed(group.others)}"
