"""`dray decisions`: lists what the scheduler decided, with scores, runners-up and the reasons of rejected nodes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

from dray.api.timestamps import age, parse_time
from dray.cli.command import Parser, add_namespace, add_output, add_source, exit_on_read_error
from dray.cli.decision_reader import add_scheduler_flags, read_decisions
from dray.cli.output import Column, render
from dray.cli.tables import Table, add_row_flags, render_table, selection
from dray.runtime.logs import wants_colour
from dray.runtime.system import SystemClock
from dray.sim.snapshot import SnapshotError

PROG: Final = "dray decisions"
SCHEDULED: Final = "Scheduled"
RESULTS: Final = (SCHEDULED, "Unschedulable", "SchedulerError")
_COLOURS: Final = {SCHEDULED: "green", "Unschedulable": "yellow", "SchedulerError": "red"}
_SUMMARY_MAX: Final = 100

# A decision as the scheduler serves it.
Decision = Mapping[str, Any]


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    arguments = _parse(argv)
    with exit_on_read_error(PROG):
        answer = read_decisions(arguments)
        found = [item for item in answer["decisions"] if _is_wanted(item, arguments)]
        selected = selection(arguments)
        found = [item for item in found if selected.selects(item, {})][: arguments.limit or None]
        if arguments.pod and not found:
            raise SnapshotError(not_recorded(arguments.namespace, arguments.pod, answer.get("hidden") or 0))
        text = _rendered(found, arguments, hidden=bool(answer.get("hidden")))
    if answer.get("hidden"):
        sys.stderr.write(f"{PROG}: note: {_hidden_text(answer['hidden'])}\n")
    sys.stdout.write(text)
    return 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        PROG,
        "List what the scheduler decided, the newest first: the chosen node with its scores and runners-up, or why no "
        "node was feasible, as it was at that time. The scheduler keeps the last 1024 decisions in memory: of each Pod "
        "its last placement and its last rejection. With the name of a Pod, its decisions in full.",
    )
    add_source(parser)
    add_output(parser)
    parser.add_argument("pod", nargs="?", default="", metavar="POD", help="only this Pod, in full; also pod/NAME")
    parser.add_argument("--result", choices=RESULTS, default="", help="only decisions with this result")
    parser.add_argument("--node", default="", metavar="NODE", help="only Pods that were placed on this node")
    parser.add_argument("--limit", type=int, default=0, metavar="N", help="at most N decisions")
    add_row_flags(parser)
    add_namespace(parser)
    add_scheduler_flags(parser)
    arguments = parser.parse_args(argv)
    kind, slash, name = arguments.pod.partition("/")
    if slash and kind not in ("pod", "pods", "po"):
        parser.error(f"{arguments.pod}: decisions are about Pods")
    arguments.pod = name if slash else kind
    return arguments


def _is_wanted(item: Decision, arguments: argparse.Namespace) -> bool:
    namespace = "" if arguments.all_namespaces else arguments.namespace
    wanted = (
        (namespace, item["namespace"]),
        (arguments.pod, item["pod"]),
        (arguments.result, item["result"]),
        (arguments.node, item["node"]),
    )
    return all(not value or value == found for value, found in wanted)


def not_recorded(namespace: str, pod: str, hidden: int) -> str:
    """Return why there may be no decision about a Pod; `hidden` are about Pods that the user may not list."""
    where = f" in namespace {namespace}" if namespace else ""
    if hidden:
        return f'no decision about pod "{pod}"{where} that you may see: {_hidden_text(hidden)}'
    return (
        f'no decision about pod "{pod}"{where} is recorded: it was not tried yet, it is older than the last 1024 '
        "decisions, or the scheduler was restarted since"
    )


def _hidden_text(count: int) -> str:
    decisions = "1 decision is" if count == 1 else f"{count} decisions are"
    return f"{decisions} hidden: you may not list the Pods in question"


def _rendered(found: Sequence[Decision], arguments: argparse.Namespace, *, hidden: bool) -> str:
    colour = wants_colour(sys.stdout, os.environ)
    now = SystemClock().now()
    if arguments.pod and arguments.output == "table":
        blocks = ["\n".join(decision_lines(item, now, colour=colour)) for item in found]
        return "\n\n".join(blocks) + "\n"
    nothing = "No decisions that you may see.\n" if hidden else "No decisions are recorded yet.\n"
    table = Table("DecisionList", found, columns(now), lambda item: f"pod/{item['pod']}", nothing)
    return render_table(table, arguments, colour=colour)


def columns(now: datetime) -> list[Column[Decision]]:
    """Return the columns of the table."""
    return [
        Column("AGE", lambda item: age(parse_time(item["time"]), now)),
        Column("NAMESPACE", lambda item: str(item["namespace"])),
        Column("POD", lambda item: str(item["pod"])),
        Column("RESULT", lambda item: str(item["result"]), colour=lambda item: _COLOURS[item["result"]]),
        Column("NODE", lambda item: str(item["node"])),
        Column("NODES", _node_counts),
        Column("ATTEMPTS", lambda item: str(item["attempts"])),
        Column("WHY", _why),
        Column("SCHEDULER", lambda item: str(item["scheduler"]), wide=True),
        Column("MILLISECONDS", lambda item: f"{item['milliseconds']:.1f}", wide=True),
    ]


def _node_counts(item: Decision) -> str:
    """Return how many nodes were feasible, evaluated and there."""
    found = item.get("evaluation")
    return f"{found['feasible']}/{found['evaluated']}/{found['nodeCount']}" if found else ""


def _why(item: Decision) -> str:
    if item["message"]:
        text = str(item["message"])
        return text if len(text) <= _SUMMARY_MAX else f"{text[: _SUMMARY_MAX - 1]}…"
    evaluation = item.get("evaluation") or {}
    scores = evaluation.get("scores") or []
    if not scores:
        return "the only feasible node" if evaluation.get("feasible") == 1 else ""
    first = f"score {scores[0]['total']}"
    return f"{first}, next {_node_name(scores[1])} with {scores[1]['total']}" if len(scores) > 1 else first


def _node_name(score: Mapping[str, Any]) -> str:
    return score["node"] or "another node"


# --- One decision in full. ---


def decision_lines(item: Decision, now: datetime, *, colour: bool = False) -> Iterator[str]:
    """Return the text of one decision: the sentence first, then scores and rejected nodes."""
    yield _sentence(item, now)
    evaluation = item.get("evaluation") or {}
    scores = evaluation.get("scores") or []
    if scores:
        yield ""
        names = [name for name in scores[0]["byPlugin"] if any(score["byPlugin"][name] for score in scores)]
        shown: list[Column[Mapping[str, Any]]] = [
            Column("NODE", partial(_score_name, item["node"])),
            Column("SCORE", lambda score: str(score["total"])),
            *(Column(name, partial(_plugin_score, name)) for name in names),
        ]
        yield from render(scores, shown, colour=colour).splitlines()
    rejections = evaluation.get("rejections") or []
    if rejections:
        yield ""
        yield from render(rejections, _REJECTION_COLUMNS, colour=colour).splitlines()
    if evaluation.get("unlisted"):
        yield f"{evaluation['unlisted']} more nodes were ruled out without a recorded reason."


def _sentence(item: Decision, now: datetime) -> str:
    subject = f"{age(parse_time(item['time']), now)} ago, pod {item['namespace']}/{item['pod']}"
    evaluation = item.get("evaluation")
    if item["result"] == SCHEDULED:
        text = f"{subject} was placed on {item['node']}"
        if evaluation is None:
            return text
        total, evaluated = evaluation["nodeCount"], evaluation["evaluated"]
        of = f"{evaluated} evaluated" if evaluated == total else f"{evaluated} evaluated, {total} in all"
        return f"{text}: {evaluation['feasible']} feasible nodes ({of}), attempt {item['attempts']}"
    nominated = f"; it is nominated to {item['node']}" if item["node"] else ""
    return f"{subject} got no node at attempt {item['attempts']}{nominated}: {item['message']}"


def _score_name(chosen: str, score: Mapping[str, Any]) -> str:
    name = _node_name(score)
    return f"{name} (chosen)" if name == chosen else name


def _plugin_score(name: str, score: Mapping[str, Any]) -> str:
    return str(score["byPlugin"][name])


_REJECTION_COLUMNS: Final[Sequence[Column[Mapping[str, Any]]]] = (
    Column("NODES", lambda group: str(group["count"])),
    Column("PLUGIN", lambda group: str(group["plugin"])),
    Column("REASON", lambda group: ", ".join(group["reasons"])),
    Column("FOR EXAMPLE", lambda group: str(group["example"])),
)
