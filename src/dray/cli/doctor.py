"""`dray doctor`: what is stuck, left over or contradictory in a cluster, and the fix."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from dray.api.errors import APIError
from dray.cli.command import EXIT_FAILURE, failing_in_one_line, read, reading_parser
from dray.cli.output import paint, write_answer
from dray.node.checkpoint_file import read_checkpoint
from dray.node.devices import checkpoint as device_checkpoint
from dray.node.dra import checkpoint as claim_checkpoint
from dray.runtime.clock import SystemClock
from dray.sim.doctor.checkpoints import claims_disagree, devices_disagree
from dray.sim.doctor.rules import Finding, Fix, Severity, examine
from dray.sim.snapshot import PLACEMENT_KINDS, Snapshot, SnapshotError

PROG: Final = "dray doctor"
_COLOURS: Final = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
_PLACES: Final = (".", "plugins", "device-plugins")


def main(argv: Sequence[str]) -> int:
    """Run the command; 0 when all is well, 1 when there are errors or warnings."""
    arguments = _parse(argv)
    with failing_in_one_line(PROG):
        snapshot = read(arguments, PLACEMENT_KINDS)
        findings = [*examine(snapshot, SystemClock().now()), *_of_node(arguments, snapshot)]
        if arguments.fix:
            _mend(arguments, [finding.fix for finding in findings if finding.fix is not None])
    write_answer(findings, arguments.output, partial(lines, findings))
    return EXIT_FAILURE if any(finding.severity is not Severity.NOTE for finding in findings) else 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    description = (
        "Find what is stuck, left over or contradictory: claims that do not go away, reservations of dead Pods, "
        "devices given twice, pools that are not usable, and with --node-root-dir what a node remembers differently."
    )
    parser = reading_parser(PROG, description, forms=("text", "json", "yaml"))
    parser.add_argument("--fix", action="store_true", help="mend what can be mended by one safe write")
    parser.add_argument(
        "--node-root-dir", default="", metavar="DIR", help="a node's root directory here, e.g. /var/lib/kubelet"
    )
    parser.add_argument("--node-name", default="", metavar="NODE", help="its name; default: this machine's")
    arguments = parser.parse_args(argv)
    if arguments.fix and arguments.filename:
        parser.error("--fix needs a cluster; files are only read")
    return arguments


def _of_node(arguments: argparse.Namespace, snapshot: Snapshot) -> Iterator[Finding]:
    if not arguments.node_root_dir:
        return
    name = arguments.node_name or os.uname().nodename
    for path, content in _checkpoints(Path(arguments.node_root_dir), claim_checkpoint.FILE_NAME):
        try:
            remembered = claim_checkpoint.decode(content)
        except claim_checkpoint.CheckpointError as error:
            yield _damaged(name, path, error, claim_checkpoint.recovery_advice(str(path)))
        else:
            yield from claims_disagree(name, remembered, snapshot)
    for path, content in _checkpoints(Path(arguments.node_root_dir), device_checkpoint.FILE_NAME):
        try:
            given = device_checkpoint.decode(content)
        except device_checkpoint.CheckpointError as error:
            yield _damaged(name, path, error, "drain the node, remove the file and start its agent again")
        else:
            yield from devices_disagree(name, given, snapshot)


def _checkpoints(root: Path, name: str) -> Iterator[tuple[Path, bytes]]:
    if not root.is_dir():
        raise SnapshotError(f"{root}: no such directory")
    for path in (root / place / name for place in _PLACES):
        content = read_checkpoint(str(path))
        if content is not None:
            yield path, content


def _damaged(node: str, path: Path, error: ValueError, advice: str) -> Finding:
    return Finding(Severity.ERROR, "damaged-checkpoint", f"node {node}", f"{path}: {error}", advice)


def _mend(arguments: argparse.Namespace, fixes: Sequence[Fix]) -> None:
    # Only this writes to a cluster.
    import asyncio

    asyncio.run(_apply(arguments, fixes))


async def _apply(arguments: argparse.Namespace, fixes: Sequence[Fix]) -> None:
    """Apply the fixes; one that no longer applies was mended by somebody else."""
    # As above: a doctor that only looks, at files even, needs none of it.
    from dray.cli.cluster import connected
    from dray.client.interface import Patch, PatchType, WriteOptions
    from dray.sim.cluster_reader import best_resources

    async with connected(arguments.kubeconfig, arguments.context) as client:
        served = best_resources(await client.resources())
        for fix in fixes:
            patch = Patch(PatchType.JSON, list(fix.operations))
            try:
                await client.patch(served[fix.kind], fix.name, fix.namespace, patch, WriteOptions(subresource="status"))
            except APIError as error:
                sys.stderr.write(f"{PROG}: {fix.kind} {fix.namespace}/{fix.name} was not changed: {error}\n")
            else:
                sys.stderr.write(f"{PROG}: {fix.kind} {fix.namespace}/{fix.name} mended\n")


def lines(findings: Sequence[Finding], *, colour: bool = False) -> Iterator[str]:
    """The findings in words."""
    if not findings:
        yield "All is well."
        return
    for finding in findings:
        severity = paint(f"{finding.severity:<8}", _COLOURS[finding.severity] if colour else "")
        mark = " (--fix)" if finding.fix is not None else ""
        yield f"{severity} {finding.subject} {finding.what}"
        yield f"         → {finding.advice}{mark}"
    counts = [f"{sum(item.severity is severity for item in findings)} {severity}s" for severity in Severity]
    yield f"\n{', '.join(counts)}"
