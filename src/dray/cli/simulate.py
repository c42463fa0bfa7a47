"""`dray simulate`: shows which Pods would be scheduled, moved or pending after a change, and the resulting usage."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from dray.api.document import Document
from dray.cli.command import (
    add_feature_gates,
    add_scheduler_config,
    check_nodes,
    cluster_parser,
    exit_on_read_error,
    print_hidden,
    read_snapshot,
)
from dray.cli.manifests import read_documents
from dray.cli.output import Column, ProgressLine, bar, render, write_answer
from dray.runtime.system import SystemClock
from dray.sim.snapshot import PLACEMENT_KINDS, Snapshot, SnapshotError
from dray.sim.whatif.changes import (
    Changed,
    DeviceTaintChange,
    add_nodes,
    drain,
    remove_driver,
    remove_node,
    taint_devices,
)
from dray.sim.whatif.outcome import FIT_MAX, Fit, Growth, Outcome, PodOutcome, UsageChange

if TYPE_CHECKING:
    from dray.sim.whatif.preemption import Eviction

PROG: Final = "dray simulate"
KINDS: Final = (*PLACEMENT_KINDS, "ResourceQuota")


def main(argv: Sequence[str]) -> int:
    """Run the command; nothing is written to the cluster."""
    arguments = _parse(argv)
    # Conflicts between components are retried; their log lines would only confuse here.
    logging.getLogger("dray").addHandler(logging.NullHandler())
    logging.getLogger("dray").propagate = False
    with exit_on_read_error(PROG), closing(ProgressLine()) as progress:
        result = _simulate(arguments, progress)
    write_answer("SimulationList", [result], arguments.output, partial(lines, result, everything=arguments.all))
    return 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    description = (
        "Take a snapshot of a cluster, change it, and run the real scheduler and claim controller on it. Shows which "
        "Pods would be scheduled, moved or pending, and the resulting usage. The cluster itself is only read."
    )
    parser = cluster_parser(PROG, description, formats=("text", "json", "yaml"))
    change = parser.add_argument_group("changes (applied in this order; each can be repeated)")
    change.add_argument("--remove-driver", action="append", default=[], metavar="DRIVER", help="remove its devices")
    change.add_argument(
        "--remove-node", action="append", default=[], metavar="NODE", help="remove it with its Pods and devices"
    )
    change.add_argument("--drain", action="append", default=[], metavar="NODE", help="cordon it and evict its Pods")
    change.add_argument(
        "--taint-device",
        action="append",
        default=[],
        metavar="DRIVER[/POOL[/DEVICE]]=KEY[=VALUE]:EFFECT",
        help="taint devices; NoExecute evicts the Pods that use them",
    )
    change.add_argument("--add-nodes", type=int, default=0, metavar="N", help="add copies of --node-template")
    change.add_argument("--apply", action="append", default=[], metavar="FILE", help="manifests to apply")
    preempt = parser.add_mutually_exclusive_group()
    preempt.add_argument(
        "--preempt",
        dest="preemption",
        action="store_const",
        const="always",
        default="by-priority",
        help="let pending Pods and those of --apply evict any other Pod of users, to see who would go",
    )
    preempt.add_argument(
        "--no-preempt",
        dest="preemption",
        action="store_const",
        const="never",
        help="evict nobody for a higher priority",
    )
    parser.add_argument("--all", action="store_true", help="also show Pods, classes and nodes that do not change")
    count = parser.add_argument_group("capacity planning")
    count.add_argument("--count-fit", default="", metavar="FILE", help="count how many copies of this file's Pod fit")
    count.add_argument(
        "--count-max", type=int, default=FIT_MAX, metavar="N", help=f"upper limit of --count-fit; default: {FIT_MAX}"
    )
    count.add_argument(
        "--node-template",
        default="",
        metavar="FILE",
        help="a Node with its ResourceSlices; without --add-nodes: count how many to add until no Pod is pending",
    )
    add_scheduler_config(parser)
    add_feature_gates(parser)
    arguments = parser.parse_args(argv)
    if arguments.add_nodes and not arguments.node_template:
        parser.error("--add-nodes needs --node-template")
    if arguments.count_fit and arguments.node_template and not arguments.add_nodes:
        parser.error("--count-fit and --node-template cannot be combined without --add-nodes")
    return arguments


def changed(before: Snapshot, arguments: argparse.Namespace) -> Changed:
    """Return the snapshot after all changes."""
    state = Changed(before)
    for driver in arguments.remove_driver:
        state = state.then(remove_driver(state.snapshot, driver))
    for name in arguments.remove_node:
        state = state.then(remove_node(state.snapshot, name))
    for name in arguments.drain:
        state = state.then(drain(state.snapshot, name))
    for text in arguments.taint_device:
        state = state.then(taint_devices(state.snapshot, DeviceTaintChange.parse(text)))
    if arguments.add_nodes:
        pattern = _flat(read_documents(arguments.node_template))
        state = state.then(add_nodes(state.snapshot, pattern, arguments.add_nodes))
    return state


def _simulate(arguments: argparse.Namespace, progress: ProgressLine) -> Outcome | Fit | Growth:
    # Imported after parsing: they pull in the API server and the scheduler, which --help does not need.
    from dray.sim.whatif.preemption import Preemption
    from dray.sim.whatif.simulation import Run, count_fit, count_nodes, simulate

    before = read_snapshot(arguments, KINDS)
    check_nodes(before)
    print_hidden(PROG, before)
    preemption = Preemption(arguments.preemption)
    run = Run(before, changed(before, arguments), SystemClock().now(), arguments.feature_gates, progress, preemption)
    manifests = _flat(document for path in arguments.apply for document in read_documents(path))
    if arguments.count_fit:
        return count_fit(run, [*manifests, *_flat(read_documents(arguments.count_fit))], arguments.count_max)
    if arguments.node_template and not arguments.add_nodes:
        return count_nodes(run, manifests, _flat(read_documents(arguments.node_template)))
    return simulate(run, manifests)


def _flat(documents: Any) -> list[Document]:
    found: list[Document] = []
    for document in documents:
        found += document["items"] if document.get("kind") == "List" else [document]
    for document in found:
        if not isinstance(document.get("metadata"), dict):
            raise SnapshotError(f"a {document.get('kind')} has no metadata: it needs a name")
    return found


# --- Text output. ---


def lines(result: Outcome | Fit | Growth, *, everything: bool = False, colour: bool = False) -> Iterator[str]:
    """Return the text format."""
    if isinstance(result, Fit):
        yield f"{result.count} more fit; the next one does not: {result.why}"
        yield from _usage_lines(result.outcome, everything=everything, colour=colour)
    elif isinstance(result, Growth):
        yield _growth(result)
        yield from outcome_lines(result.outcome, everything=everything, colour=colour)
    else:
        yield from outcome_lines(result, everything=everything, colour=colour)


def _growth(result: Growth) -> str:
    pending = len(result.outcome.pending)
    if result.enough:
        return (
            f"Add {_nodes(result.nodes)}: no Pod is pending then" if result.nodes else "No Pod is pending: add no nodes"
        )
    return f"Adding nodes does not help: with {_nodes(result.nodes, 'more ')}, {pending} Pods are still pending"


def _nodes(count: int, more: str = "") -> str:
    return f"{count} {more}node" if count == 1 else f"{count} {more}nodes"


def outcome_lines(outcome: Outcome, *, everything: bool = False, colour: bool = False) -> Iterator[str]:
    """Return the Pods and the usage that change; the rest is counted."""
    waiting = [row for row in outcome.pending if row.waited]
    pending = f"{len(outcome.pending)} pending" + (f" ({len(waiting)} as before)" if waiting else "")
    evicted = f"{len(outcome.preempted)} preempted, " if outcome.preempted else ""
    yield (
        f"{len(outcome.placed)} scheduled, {len(outcome.moved)} moved, {evicted}{pending}, "
        f"{len(outcome.lost)} lost, {outcome.unchanged} unchanged"
    )
    rows = [*outcome.moved, *outcome.placed, *(row for row in outcome.pending if everything or not row.waited)]
    if rows:
        yield ""
        yield from render(rows, _pod_columns(), colour=colour).splitlines()
    if outcome.preempted:
        yield ""
        yield from render(outcome.preempted, _eviction_columns(), colour=colour).splitlines()
    if outcome.lost:
        yield ""
        yield f"Lost, because no controller recreates them: {', '.join(outcome.lost)}"
    yield from _usage_lines(outcome, everything=everything, colour=colour)
    if outcome.notes:
        yield ""
        yield from (f"Note: {note}" for note in outcome.notes)


def _pod_columns() -> list[Column[PodOutcome]]:
    return [
        Column("POD", lambda row: f"{row.namespace}/{row.name}"),
        Column("RESULT", _result, colour=lambda row: "green" if row.node else "yellow"),
        Column("NODE", lambda row: f"{row.before} → {row.node}" if row.before and row.node else row.node),
        Column("DEVICES", lambda row: ", ".join(device.rpartition("/")[2] for device in row.devices)),
        Column("REASON", lambda row: row.why),
    ]


def _eviction_columns() -> list[Column[Eviction]]:
    return [
        Column("PREEMPTED", lambda row: f"{row.namespace}/{row.name}", colour=lambda _: "red"),
        Column("NODE", lambda row: row.node),
        Column("FOR", lambda row: row.preemptor),
        Column("AFTERWARDS", _afterwards),
    ]


def _afterwards(row: Eviction) -> str:
    return f"its {row.controller} creates it again" if row.controller else "lost: no controller recreates it"


def _result(row: PodOutcome) -> str:
    if not row.node:
        return "pending"
    return "moved" if row.before else "scheduled"


def _usage_lines(outcome: Outcome, *, everything: bool, colour: bool) -> Iterator[str]:
    same = []
    for title, plural, rows in (("CLASS", "classes", outcome.classes), ("NODE", "nodes", outcome.nodes)):
        shown = [row for row in rows if everything or row.is_changed]
        if shown:
            yield ""
            yield from render(shown, _usage_columns(title), colour=colour).splitlines()
        if len(shown) < len(rows):
            count = len(rows) - len(shown)
            same.append(f"{count} {plural if count > 1 else title.lower()}")
    if same:
        yield ""
        yield f"The usage of {' and '.join(same)} does not change; see --all."


def _usage_columns(title: str) -> list[Column[UsageChange]]:
    return [
        Column(title, lambda row: row.name),
        Column("DEVICES", lambda row: _change(row.before.total, row.after.total)),
        Column("IN USE", lambda row: _change(row.before.held, row.after.held)),
        Column("FREE", lambda row: _change(row.before.free, row.after.free)),
        Column("USAGE", lambda row: f"{bar(row.after.share)} {row.after.share:4.0%}"),
    ]


def _change(before: int, after: int) -> str:
    return str(after) if before == after else f"{before} → {after}"
