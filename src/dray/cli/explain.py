"""`dray explain pod|claim NAME`: explains why it is pending or which devices it got, and suggests changes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from dray.api.document import NamespacedName
from dray.cli.command import add_feature_gates, cluster_parser, exit_on_read_error, read_snapshot
from dray.cli.output import Column, paint, render, write_answer
from dray.runtime.system import SystemClock
from dray.sim.explain.answers import Answer, NodeAnswer, Standing
from dray.sim.explain.subject import claim_subject, pod_subject
from dray.sim.snapshot import PLACEMENT_KINDS

PROG: Final = "dray explain"
_SUBJECTS: Final = {
    "pod": pod_subject,
    "pods": pod_subject,
    "claim": claim_subject,
    "resourceclaim": claim_subject,
    "resourceclaims": claim_subject,
}
_COLOURS: Final = {Standing.PENDING: "yellow", Standing.PLACED: "green", Standing.DONE: "dim"}


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    arguments = _parse(argv)
    # Imported after parsing: it pulls in the API server and the scheduler, which --help does not need.
    from dray.sim.explain.explainer import explain

    with exit_on_read_error(PROG):
        snapshot = read_snapshot(arguments, PLACEMENT_KINDS)
        subject = _SUBJECTS[arguments.kind](snapshot, NamespacedName(arguments.namespace, arguments.name))
        now = SystemClock().now()
        answer = explain(snapshot, subject, now, node=arguments.node, gates=arguments.feature_gates)
    write_answer([answer], arguments.output, partial(lines, answer, arguments.node))
    return 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    description = (
        "Explain why a Pod or claim is pending, or why it got its devices: the reason per node, suggested changes, "
        "and with --node the reason per device."
    )
    parser = cluster_parser(PROG, description, formats=("text", "json", "yaml"))
    parser.add_argument("kind", choices=tuple(_SUBJECTS), metavar="pod|claim")
    parser.add_argument("name")
    parser.add_argument("-n", "--namespace", default="default", help="default: default")
    parser.add_argument("--node", default="", metavar="NODE", help="show the reason for every device of this node")
    add_feature_gates(parser)
    return parser.parse_args(argv)


def lines(answer: Answer, node: str = "", *, colour: bool = False) -> Iterator[str]:
    """Return the text format."""
    if answer.kind == "claim" and answer.classic:
        yield from (f"claim {item.claim} {item.summary}" for item in answer.classic)
        return
    yield _headline(answer, colour=colour)
    if answer.obstacle:
        yield f"  {answer.obstacle}"
    yield from (f"  claim {item.claim} {item.summary}" for item in answer.classic)
    if answer.obstacle and not answer.nodes:
        return
    yield from _given_lines(answer)
    shown = [item for item in answer.nodes if not node or item.node == node]
    if not shown:
        yield f"  node {node} not found" if node else "  the cluster has no nodes"
        return
    yield ""
    yield from render(shown, _node_columns(), colour=colour).splitlines()
    if node:
        yield from _device_lines(shown[0])
    yield from _advice_lines(answer)
    if answer.notes:
        yield ""
        yield from (f"Note: {note}" for note in answer.notes)


def _headline(answer: Answer, *, colour: bool) -> str:
    state = paint(_state(answer), _COLOURS[answer.standing] if colour else "")
    headline = f"{answer.kind} {answer.namespace}/{answer.name} {state}"
    if answer.standing is Standing.PLACED and answer.node:
        return f"{headline} {'to' if answer.kind == 'pod' else 'on'} {answer.node}"
    if answer.standing is Standing.PENDING and not answer.obstacle:
        return f"{headline}: {answer.fitting} of {len(answer.nodes)} nodes fit"
    return headline


def _state(answer: Answer) -> str:
    if answer.standing is Standing.PLACED:
        return "is scheduled" if answer.kind == "pod" else "is allocated"
    return "is pending" if answer.standing is Standing.PENDING else "has finished"


def _given_lines(answer: Answer) -> Iterator[str]:
    for item in answer.given:
        yield f"  {item.request}: {item.device} (claim {item.claim})"
        for better in item.passed_over:
            yield f"    instead of {better}"


def _node_columns() -> list[Column[NodeAnswer]]:
    return [
        Column("NODE", lambda item: item.node),
        Column("FITS", _fits, colour=lambda item: "green" if item.fits else "red"),
        Column("REASON", lambda item: item.why),
    ]


def _fits(item: NodeAnswer) -> str:
    return "yes" if item.fits else "no"


def _device_lines(item: NodeAnswer) -> Iterator[str]:
    for request in item.requests:
        yield ""
        yield f"request {request.request} of claim {request.claim}: {request.usable} usable, {request.needed} needed"
        if request.note:
            yield f"  {request.note}"
        for reason in request.reasons:
            yield f"  {reason.device}: {reason.text}"


def _advice_lines(answer: Answer) -> Iterator[str]:
    if not answer.changes and not answer.holders:
        return
    yield ""
    yield "Suggestions:"
    for change in answer.changes:
        yield f"  - {change.text}: fits on {_some(change.nodes)}"
    for holder in answer.holders[:3]:
        yield f"  - {holder}"


def _some(names: Sequence[str]) -> str:
    few = 3
    more = f" and {len(names) - few} more" if len(names) > few else ""
    return ", ".join(names[:few]) + more
