"""`dray explain KIND NAME`: explains why a Pod, claim or workload is pending or got its devices, and how to help."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from dray.api.document import NamespacedName
from dray.api.features import FeatureGates
from dray.cli.command import (
    Parser,
    add_feature_gates,
    add_scheduler_config,
    cluster_parser,
    current_namespace,
    exit_on_read_error,
    read_snapshot,
)
from dray.cli.decision_reader import add_scheduler_flags
from dray.cli.output import Column, paint, render, write_answer
from dray.runtime.system import SystemClock
from dray.sim.explain.answers import Answer, Change, NodeAnswer, ReasonGroup, Size, Standing
from dray.sim.explain.similar_names import did_you_mean, listed
from dray.sim.explain.subject import claim_subject, pod_subject
from dray.sim.explain.workload import KINDS as WORKLOADS
from dray.sim.explain.workload import find_workload
from dray.sim.snapshot import PATH_KINDS, Snapshot, SnapshotError

if TYPE_CHECKING:
    from dray.framework.evaluation import NodeScore
    from dray.sim.explain.subject import Subject

PROG: Final = "dray explain"
# What kubectl accepts, with the kind it means.
_ALIASES: Final = {
    "pod": ("pods", "po"),
    "claim": ("claims", "resourceclaim", "resourceclaims", "resourceclaims.resource.k8s.io"),
    "deployment": ("deployments", "deploy", "deployments.apps"),
    "replicaset": ("replicasets", "rs", "replicasets.apps"),
    "daemonset": ("daemonsets", "ds", "daemonsets.apps"),
    "statefulset": ("statefulsets", "sts", "statefulsets.apps"),
    "job": ("jobs", "jobs.batch"),
    "podgroup": ("podgroups", "podgroups.scheduling.k8s.io"),
    "workload": ("workloads", "workloads.scheduling.k8s.io"),
}
_KINDS: Final = {alias: kind for kind, aliases in _ALIASES.items() for alias in (kind, *aliases)}
# `-o name` of kubectl and of these tools prints the singular with its group.
_KINDS.update({f"{kind}.{group}": kind for alias, kind in [*_KINDS.items()] if (group := alias.partition(".")[2])})
_KINDS["resourceclaim.resource.k8s.io"] = "claim"
_SUBJECTS: Final[dict[str, Callable[[Snapshot, NamespacedName], Subject]]] = {
    "pod": pod_subject,
    "claim": claim_subject,
}
_GROUPS: Final = ("podgroup", "workload")
_COLOURS: Final = {Standing.PENDING: "yellow", Standing.PLACED: "green", Standing.DONE: "dim"}
# More groups and lines would hide the answer.
_GROUPS_MAX: Final = 8
_HOLDERS_MAX: Final = 3
_REASON_MAX: Final = 400


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    arguments = _parse(argv)
    with exit_on_read_error(PROG):
        arguments.namespace = arguments.namespace or current_namespace(arguments)
        if arguments.at_decision:
            return _print_decision(arguments)
        snapshot = read_snapshot(arguments, PATH_KINDS)
        answer = answer_of(snapshot, arguments, SystemClock().now())
    write_answer(
        "ExplanationList",
        [answer],
        arguments.output,
        partial(lines, answer, arguments.node, all_nodes=arguments.all_nodes),
    )
    return 0


def _print_decision(arguments: argparse.Namespace) -> int:
    """Print what the scheduler recorded when it decided about the Pod last."""
    # Imported on use: other explanations need no record.
    from dray.cli.decision_reader import read_decisions
    from dray.cli.decisions import decision_lines, not_recorded

    now = SystemClock().now()
    answer = read_decisions(arguments)
    for item in answer["decisions"]:
        if (item["namespace"], item["pod"]) == (arguments.namespace, arguments.name):
            write_answer("DecisionList", [item], arguments.output, partial(decision_lines, item, now))
            return 0
    raise SnapshotError(not_recorded(arguments.namespace, arguments.name, answer.get("hidden") or 0))


def answer_of(snapshot: Snapshot, arguments: argparse.Namespace, now: datetime) -> Answer:
    """Return the explanation of what the arguments name."""
    names = [node.metadata.name or "" for node in snapshot.nodes]
    if arguments.node and arguments.node not in names:
        raise SnapshotError(f'nodes "{arguments.node}" not found{did_you_mean(arguments.node, names)}')
    key = NamespacedName(arguments.namespace, arguments.name)
    if arguments.kind in WORKLOADS:
        workload = find_workload(snapshot, arguments.kind, key)
        # Imported when there is something to explain: it pulls in the scheduler.
        from dray.sim.explain.explainer import explain_workload

        return explain_workload(snapshot, workload, now, gates=arguments.feature_gates)
    if arguments.kind in _GROUPS:
        return _explain_group(snapshot, arguments.kind, key, now, arguments.feature_gates)
    subject = _SUBJECTS[arguments.kind](snapshot, key)
    from dray.sim.explain.explainer import explain

    answer = explain(snapshot, subject, now, node=arguments.node, gates=arguments.feature_gates)
    if arguments.kind != "pod" or not snapshot.documents.get("PodGroup"):
        return answer
    from dray.sim.explain.pod_group_explainer import explain_member

    return explain_member(snapshot, answer, now, gates=arguments.feature_gates)


def _explain_group(snapshot: Snapshot, kind: str, key: NamespacedName, now: datetime, gates: FeatureGates) -> Answer:
    from dray.sim.explain.pod_group import find_pod_group, groups_of_workload
    from dray.sim.explain.pod_group_explainer import explain_pod_group, explain_workload_groups

    if kind == "podgroup":
        return explain_pod_group(snapshot, find_pod_group(snapshot, key), now, gates=gates)
    return explain_workload_groups(snapshot, key, groups_of_workload(snapshot, key), now, gates=gates)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    description = (
        "Explain in one sentence why a Pod, claim or workload is pending, and what to do; then list the reasons of "
        "the nodes, grouped, and what would help. Every suggestion was tested. With --node, the reason for each device."
    )
    parser = explain_parser(PROG, description, formats=("text", "json", "yaml"))
    parser.add_argument("--node", default="", metavar="NODE", help="show the reason for every device of this node")
    parser.add_argument("--all-nodes", action="store_true", help="show the reason for every node, not grouped")
    parser.add_argument(
        "--at-decision",
        action="store_true",
        help="for a Pod: the last recorded decision of the scheduler, with its scores and reasons",
    )
    add_scheduler_flags(parser)
    arguments = parser.parse_args(argv)
    resolve_subject(parser, arguments)
    if arguments.at_decision and (arguments.kind != "pod" or arguments.filename):
        parser.error("--at-decision is for Pods of a cluster: the scheduler records what it decides about them")
    return arguments


def explain_parser(prog: str, description: str, *, formats: Sequence[str]) -> Parser:
    """Return a parser of commands about one Pod, claim or workload."""
    parser = cluster_parser(prog, description, formats=formats)
    parser.add_argument("kind", metavar="KIND", help=f"{', '.join(_ALIASES)}; also KIND/NAME")
    parser.add_argument("name", nargs="?", default="", metavar="NAME")
    parser.add_argument("-n", "--namespace", default="", help="default: the namespace of the kubeconfig context")
    add_scheduler_config(parser)
    add_feature_gates(parser)
    return parser


def resolve_subject(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Replace aliases and KIND/NAME by kind and name."""
    kind, slash, name = arguments.kind.partition("/")
    if slash and arguments.name:
        parser.error(f"there is a name already in {arguments.kind!r}: {arguments.name!r} is one too many")
    arguments.name = name or arguments.name
    found = _KINDS.get(kind.lower())
    if found is None:
        parser.error(f'unknown kind "{kind}"{did_you_mean(kind, _KINDS)}; known are {", ".join(_ALIASES)}')
    if not arguments.name:
        parser.error(f"which {kind}? specify a name: {parser.prog} {kind} NAME")
    arguments.kind = found


# --- Text. ---


def lines(answer: Answer, node: str = "", *, all_nodes: bool = False, colour: bool = False) -> Iterator[str]:
    """Return the text format: the verdict first."""
    yield paint(answer.sentence, _COLOURS[answer.standing] if colour else "")
    yield from (f"  claim {item.claim} {item.summary}" for item in answer.classic if answer.kind != "claim")
    yield from _given_lines(answer)
    if node:
        shown = [item for item in answer.nodes if item.node == node]
        yield ""
        yield from render(shown, _node_columns(), colour=colour).splitlines()
        yield from (line for item in shown for line in _device_lines(item))
    elif all_nodes and answer.nodes:
        yield ""
        yield from render(answer.nodes, _node_columns(), colour=colour).splitlines()
    elif answer.standing is Standing.PENDING and len(answer.groups) + bool(answer.fitting) > 1:
        # A single reason is in the verdict.
        yield ""
        yield from _group_lines(answer, colour=colour)
    if answer.scores and not node and not all_nodes:
        yield ""
        yield from _score_lines(answer, colour=colour)
    yield from _advice_lines(answer)
    if answer.notes:
        yield ""
        yield from (f"Note: {note}" for note in answer.notes)


def _score_lines(answer: Answer, *, colour: bool) -> Iterator[str]:
    yield f"{answer.fitting} nodes fit; their current scores (--at-decision shows those at the time of scheduling):"
    names = [name for name in answer.scores[0].by_plugin if any(item.by_plugin[name] for item in answer.scores)]
    columns: list[Column[NodeScore]] = [
        Column("NODE", lambda item: f"{item.node} (chosen)" if item.node == answer.node else item.node),
        Column("SCORE", lambda item: str(item.total)),
        *(Column(name, lambda item, name=name: str(item.by_plugin[name])) for name in names),  # type: ignore[misc]
    ]
    yield from render(answer.scores, columns, colour=colour).splitlines()


def _group_lines(answer: Answer, *, colour: bool) -> Iterator[str]:
    rows = list(answer.groups[:_GROUPS_MAX])
    if answer.fitting:
        fitting = [item for item in answer.nodes if item.fits]
        gets = f": {', '.join(fitting[0].would_get)}" if len(fitting) == 1 and fitting[0].would_get else ""
        rows.insert(0, ReasonGroup(len(fitting), f"fits{gets}", tuple(item.node for item in fitting[:3])))
    yield from render(rows, _group_columns(), colour=colour).splitlines()
    hidden = answer.groups[_GROUPS_MAX:]
    if hidden:
        count = sum(group.count for group in hidden)
        yield f"{count} more nodes for {len(hidden)} other reasons; see --all-nodes"


def _group_columns() -> list[Column[ReasonGroup]]:
    return [
        Column("NODES", lambda group: str(group.count)),
        Column("REASON", lambda group: _cut(group.text)),
        Column("FOR EXAMPLE", lambda group: ", ".join(group.examples[:2])),
    ]


def _cut(text: str) -> str:
    return text if len(text) <= _REASON_MAX else f"{text[: _REASON_MAX - 1]}…"


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


def _change_text(change: Change) -> str:
    is_named = len(change.nodes) == 1 and change.size in (Size.ADMIT_TO_NODE, Size.ADD_NODE)
    return change.text if is_named else f"{change.text}: fits on {listed(change.nodes)}"


def _advice_lines(answer: Answer) -> Iterator[str]:
    if len(answer.hints) > 1:
        # A single one is in the verdict.
        yield ""
        yield "What matches nothing:"
        yield from (f"  - {hint}" for hint in answer.hints)
    if answer.changes or answer.victims is not None:
        yield ""
        yield "What would help (each change was tested):"
        yield from (f"  - {_change_text(change)}" for change in answer.changes)
    if answer.victims is not None:
        from dray.sim.explain.verdict import victims_text

        yield f"  - {victims_text(answer.victims)}"
    if answer.holders:
        yield ""
        yield "Claims that hold the devices:"
        yield from (f"  - {holder}" for holder in answer.holders[:_HOLDERS_MAX])
        if len(answer.holders) > _HOLDERS_MAX:
            yield f"  - and on {len(answer.holders) - _HOLDERS_MAX} more nodes"
