"""`dray doctor`: finds stuck, orphaned and inconsistent objects, and suggests or applies fixes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from dray.api.errors import APIError
from dray.cli.command import EXIT_FAILURE, cluster_parser, exit_on_read_error, print_hidden, read_snapshot
from dray.cli.output import paint, write_answer
from dray.node.checkpoint_file import read_checkpoint
from dray.node.devices import checkpoint as device_checkpoint
from dray.node.dra import checkpoint as claim_checkpoint
from dray.runtime.system import SystemClock
from dray.sim.doctor.checkpoints import check_claims, check_devices
from dray.sim.doctor.drivers import check_drivers
from dray.sim.doctor.findings import Finding, Fix, Severity, grouped
from dray.sim.doctor.rules import examine
from dray.sim.explain.similar_names import listed
from dray.sim.snapshot import PATH_KINDS, Snapshot, SnapshotError

PROG: Final = "dray doctor"
_COLOURS: Final = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
# The time that a plugin on a node has to answer.
_PLUGIN_SECONDS: Final = 2.0
# Where node agents store checkpoints, below their root directory.
_CHECKPOINT_DIRECTORIES: Final = (".", "plugins", "device-plugins")


def main(argv: Sequence[str]) -> int:
    """Run the command; return 0 if there are no problems, 1 if there are errors or warnings."""
    arguments = _parse(argv)
    with exit_on_read_error(PROG):
        snapshot = read_snapshot(arguments, PATH_KINDS)
        print_hidden(PROG, snapshot)
        findings = [*examine(snapshot, SystemClock().now()), *_node_findings(arguments, snapshot)]
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


def _node_findings(arguments: argparse.Namespace, snapshot: Snapshot) -> Iterator[Finding]:
    if not arguments.node_root_dir:
        return
    name = arguments.node_name or os.uname().nodename
    for path, content in _checkpoints(Path(arguments.node_root_dir), claim_checkpoint.FILE_NAME):
        try:
            prepared = claim_checkpoint.decode(content)
        except claim_checkpoint.CheckpointError as error:
            advice = "restart the node agent: it reads the claims in use from the containers that run"
            yield _damaged(name, path, error, advice)
        else:
            yield from check_claims(name, prepared, snapshot)
    for path, content in _checkpoints(Path(arguments.node_root_dir), device_checkpoint.FILE_NAME):
        try:
            allocated = device_checkpoint.decode(content)
        except device_checkpoint.CheckpointError as error:
            advice = "restart the node agent: it reads who has which devices from the containers that run"
            yield _damaged(name, path, error, advice)
        else:
            yield from check_devices(name, allocated, snapshot)
    yield from check_drivers(name, _running_drivers(Path(arguments.node_root_dir)), snapshot)


def _running_drivers(root: Path) -> list[str]:
    """Return the DRA drivers that answer on their registration sockets."""
    # Imported on use: only a check on a node needs gRPC.
    import asyncio

    from dray.node.plugins.plugin_manager import find_plugins
    from dray.rpc.dra_services import DRA_PLUGIN

    plugins = asyncio.run(find_plugins(str(root / "plugins_registry"), _PLUGIN_SECONDS))
    return [plugin.name for plugin in plugins if plugin.type == DRA_PLUGIN]


def _checkpoints(root: Path, name: str) -> Iterator[tuple[Path, bytes]]:
    if not root.is_dir():
        raise SnapshotError(f"{root}: no such directory")
    for path in (root / directory / name for directory in _CHECKPOINT_DIRECTORIES):
        content = read_checkpoint(str(path))
        if content is not None:
            yield path, content


def _damaged(node: str, path: Path, error: ValueError, advice: str) -> Finding:
    return Finding(Severity.ERROR, "damaged-checkpoint", f"node {node}", f"{path}: {error}", advice)


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
