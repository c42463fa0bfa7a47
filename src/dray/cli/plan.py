"""`dray plan`: which nodes to add or remove, and where Pods go if they are placed together."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from dray.cli.command import EXIT_FAILURE
from dray.cli.manifests import read_documents
from dray.cli.output import Column, ProgressLine, paint, render, write_answer
from dray.cli.planning import namespace_of, planning_input, planning_parser, profile_of
from dray.sim.explain.similar_names import did_you_mean
from dray.sim.snapshot import Snapshot, SnapshotError

if TYPE_CHECKING:
    from dray.sim.capacity.plans import (
        AddedNode,
        CapacityPlan,
        JointPlan,
        PendingPod,
        Placement,
        RemovableNode,
        RemovalPlan,
    )
    from dray.sim.capacity.shapes import NodeShape
    from dray.sim.trial_cluster import TrialCluster, TrialPod

PROG: Final = "dray plan"
# More lines would hide the answer; -o json has all.
_LINES_MAX: Final = 20


def main(argv: Sequence[str]) -> int:
    """Run the command; nothing is written to the cluster. Return 1 if some Pods fit nowhere."""
    arguments = _parse(argv)
    with planning_input(PROG, arguments) as (snapshot, progress):
        if arguments.remove:
            removal = _removal(snapshot, arguments, progress)
        else:
            plan = _placement_plan(snapshot, arguments, progress)
    if arguments.remove:
        write_answer(
            "RemovalPlanList", [removal], arguments.output, partial(removal_lines, removal, everything=arguments.all)
        )
        return 0
    write_answer("PlanList", [plan], arguments.output, partial(lines, plan, everything=arguments.all))
    return EXIT_FAILURE if plan.unplaced or plan.blocked else 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    description = (
        "Plan which nodes to add, at the lowest price, so that all pending Pods fit, and those of --pods; or which "
        "nodes can be removed; or where Pods go if they are placed together. Every placement was tried with the "
        "scheduler's own code. The cluster itself is only read."
    )
    parser = planning_parser(PROG, description)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--remove", action="store_true", help="which nodes can be removed?")
    what.add_argument("--joint", action="store_true", help="place the Pods together on the nodes that there are")
    demand = parser.add_argument_group("Pods")
    demand.add_argument("--pods", action="append", default=[], metavar="FILE", help="Pods or workloads that will come")
    demand.add_argument("--times", type=int, default=1, metavar="N", help="with --pods: so many times")
    demand.add_argument("--no-pending", action="store_true", help="leave out the Pods that are pending now")
    demand.add_argument("--group", default="", metavar="NAME", help="only the pending Pods of this PodGroup")
    demand.add_argument("-n", "--namespace", default="", help="of NAME and of Pods in files without a namespace")
    demand.add_argument(
        "--fallback",
        action="append",
        default=[],
        metavar="CLASS=OTHER",
        help="what if requests for devices of CLASS could fall back to OTHER?",
    )
    nodes = parser.add_argument_group("node shapes; default: like the nodes that there are, at the same price")
    nodes.add_argument("--catalogue", default="", metavar="FILE", help="shapes with prices")
    nodes.add_argument(
        "--node-template", action="append", default=[], metavar="FILE", help="a Node with its ResourceSlices"
    )
    parser.add_argument("--move-jobs", action="store_true", help="with --remove: Pods of Jobs may be moved")
    parser.add_argument("--solver-seconds", type=float, default=10.0, metavar="N", help="time for the exact solver")
    parser.add_argument("--no-solver", action="store_true", help="use the heuristic only")
    parser.add_argument("--all", action="store_true", help="show where every Pod goes")
    arguments = parser.parse_args(argv)
    if arguments.times < 1 or arguments.solver_seconds <= 0:
        parser.error("--times and --solver-seconds must be positive")
    if arguments.times > 1 and not arguments.pods:
        parser.error("--times needs --pods: it repeats the Pods of the file")
    if arguments.catalogue and arguments.node_template:
        parser.error("--catalogue and --node-template cannot be combined: a catalogue can have shapes like nodes")
    if arguments.remove and (arguments.pods or arguments.group or arguments.fallback):
        parser.error("--remove is about the Pods that run; --pods, --group and --fallback are not for it")
    return arguments


# --- Planning. ---


def _cluster(snapshot: Snapshot, arguments: argparse.Namespace) -> TrialCluster:
    # Imported after parsing, as in `dray simulate`.
    from dray.sim.trial_cluster import TrialCluster

    return TrialCluster(snapshot, profile_of(arguments), arguments.feature_gates)


def _removal(snapshot: Snapshot, arguments: argparse.Namespace, progress: ProgressLine) -> RemovalPlan:
    from dray.sim.capacity.removal import plan_removal

    return plan_removal(lambda: _cluster(snapshot, arguments), snapshot, jobs=arguments.move_jobs, progress=progress)


def _placement_plan(
    snapshot: Snapshot, arguments: argparse.Namespace, progress: ProgressLine
) -> CapacityPlan | JointPlan:
    from dray.sim.capacity.addition import AdditionPlanner, PlanOptions
    from dray.sim.capacity.joint import JointPlanner

    cluster = _cluster(snapshot, arguments)
    pods = _pods(cluster, arguments)
    options = PlanOptions(arguments.solver_seconds, not arguments.no_solver)
    plan: CapacityPlan | JointPlan
    if arguments.joint:
        plan = JointPlanner(cluster, options).plan(pods)
    else:
        plan = AdditionPlanner(cluster, _shapes(snapshot, arguments), options, progress).plan(pods)
    plan = replace(plan, blocked=_blocked(cluster, arguments), notes=(*plan.notes, *_unusable_notes(plan, snapshot)))
    gated = [str(pod.key) for pod in pods if pod.pod.spec.scheduling_gates]
    if gated:
        note = f"not scheduled until their scheduling gates are removed: {_listed(gated)}"
        plan = replace(plan, notes=(*plan.notes, note))
    return plan


def _blocked(cluster: TrialCluster, arguments: argparse.Namespace) -> tuple[PendingPod, ...]:
    """Return the pending Pods of the plan's scope that no node would help."""
    from dray.api.pod_groups import group_name_of
    from dray.sim.capacity.plans import PendingPod
    from dray.sim.movable_pods import label

    if arguments.no_pending:
        return ()
    wanted = arguments.group
    found = [(pod, why) for pod, why in cluster.blocked if not wanted or group_name_of(pod) == wanted]
    return tuple(PendingPod(label(pod), why) for pod, why in found)


def _unusable_notes(plan: CapacityPlan | JointPlan, snapshot: Snapshot) -> Iterator[str]:
    """Yield how many devices nobody uses because their nodes take no Pods: they cost less than new ones."""
    from dray.sim.physical_devices import PhysicalState, physical_devices

    if not (plan.unplaced or getattr(plan, "added", ())):
        return
    counts: dict[str, int] = {}
    for device in physical_devices(snapshot):
        if device.state is PhysicalState.UNAVAILABLE and device.reason.startswith("node "):
            counts[device.reason] = counts.get(device.reason, 0) + device.count
    if counts:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items(), key=lambda item: -item[1]))
        yield f"nobody uses these devices, but their nodes take no new Pods: {reasons} (dray top nodes)"


def _shapes(snapshot: Snapshot, arguments: argparse.Namespace) -> list[NodeShape]:
    from dray.sim.capacity.shapes import existing_shapes, read_catalogue, template_shape

    if arguments.catalogue:
        return read_catalogue(read_documents(arguments.catalogue), snapshot)
    if arguments.node_template:
        return [template_shape(read_documents(path), path) for path in arguments.node_template]
    return existing_shapes(snapshot)


def _pods(cluster: TrialCluster, arguments: argparse.Namespace) -> list[TrialPod]:
    """Return the Pods to place: pending ones, and those of files, with fallbacks."""
    from dray.api.pod_groups import group_name_of
    from dray.sim.capacity.demand import parse_fallback, with_fallbacks
    from dray.sim.manifest_pods import manifest_pods

    found = [] if arguments.no_pending else list(cluster.pending)
    if arguments.group:
        namespace = namespace_of(arguments)
        groups = {group_name_of(pod.pod) for pod in found if pod.key.namespace == namespace} - {""}
        found = [pod for pod in found if pod.key.namespace == namespace and group_name_of(pod.pod) == arguments.group]
        if not found:
            similar = did_you_mean(arguments.group, groups)
            raise SnapshotError(f"no pending Pods of PodGroup {namespace}/{arguments.group}{similar}")
    for path in arguments.pods:
        namespace = namespace_of(arguments)
        planned = manifest_pods(read_documents(path), cluster.snapshot, times=arguments.times, namespace=namespace)
        for template in planned.templates:
            cluster.add_template(template)
        found += [cluster.prepare(pod) for pod in planned.pods]
    fallbacks = dict(parse_fallback(text) for text in arguments.fallback)
    classes = {item.metadata.name or "" for item in cluster.snapshot.classes}
    for name in (*fallbacks, *fallbacks.values()):
        if name not in classes:
            raise SnapshotError(f'no device class "{name}"{did_you_mean(name, classes)}')
    return [with_fallbacks(pod, fallbacks) for pod in found] if fallbacks else found


# --- Text. ---


def lines(plan: CapacityPlan | JointPlan, *, everything: bool = False, colour: bool = False) -> Iterator[str]:
    """Return the text format: the verdict first."""
    from dray.sim.capacity.plans import CapacityPlan

    if isinstance(plan, CapacityPlan):
        yield from _addition_lines(plan, everything=everything, colour=colour)
    else:
        yield from _joint_lines(plan, everything=everything, colour=colour)
    if plan.notes:
        yield ""
        yield from (f"Note: {note}" for note in plan.notes)


def _addition_lines(plan: CapacityPlan, *, everything: bool, colour: bool) -> Iterator[str]:
    yield paint(_addition_verdict(plan), ("yellow" if plan.unplaced else "green") if colour else "")
    if plan.added:
        yield _bound_text(plan)
        yield ""
        yield from render(plan.added[:_LINES_MAX], _node_columns(), colour=colour).splitlines()
        yield from _more(len(plan.added), "nodes")
    yield from _pending_lines(plan)
    yield from _blocked_lines(plan)
    yield from _placement_lines(plan.placements, everything=everything, colour=colour)


def _addition_verdict(plan: CapacityPlan) -> str:
    total = len(plan.placements) + len(plan.unplaced)
    if not total:
        waits = f"no Pod waits for room ({len(plan.blocked)} wait for something else)" if plan.blocked else ""
        return f"No node is needed: {waits}" if waits else "No Pod is pending: no node is needed"
    if plan.unplaced and not plan.added:
        rest = f", the other {len(plan.placements)} fit on the nodes that there are" if plan.placements else ""
        fit = "fits" if len(plan.unplaced) == 1 else "fit"
        return f"{_number(len(plan.unplaced), 'Pod')} of {total} {fit} on no node that could be added{rest}"
    if not plan.added:
        fit = "the Pod fits" if total == 1 else f"all {total} Pods fit"
        return f"No node is needed: {fit} on the nodes that there are"
    rest = f"; {len(plan.unplaced)} fit on no node that could be added" if plan.unplaced else ""
    nodes = f"{_number(len(plan.added), 'node')} ({_shapes_text(plan)})"
    return f"Add {nodes}: {len(plan.placements)} of {_number(total, 'Pod')} fit then{rest}"


def _shapes_text(plan: CapacityPlan) -> str:
    counts: dict[str, int] = {}
    for node in plan.added:
        counts[node.shape] = counts.get(node.shape, 0) + 1
    return _listed([f"{count} {shape}" for shape, count in sorted(counts.items())])


def _bound_text(plan: CapacityPlan) -> str:
    if plan.is_optimal:
        return f"Price {plan.price:g}: no other plan is cheaper"
    return f"Price {plan.price:g}: found by a heuristic, every plan costs at least {plan.bound:g}"


def _node_columns() -> list[Column[AddedNode]]:
    return [
        Column("ADD", lambda row: row.name),
        Column("SHAPE", lambda row: row.shape),
        Column("PRICE", lambda row: f"{row.price:g}"),
        Column("PODS", lambda row: _listed(row.pods)),
        Column("WHY", lambda row: row.why),
    ]


def _listed(names: Sequence[str], few: int = 3) -> str:
    return ", ".join(names[:few]) + (f" and {len(names) - few} more" if len(names) > few else "")


def _pending_lines(plan: CapacityPlan | JointPlan) -> Iterator[str]:
    return _reason_lines("Pending:", plan.unplaced)


def _blocked_lines(plan: CapacityPlan | JointPlan) -> Iterator[str]:
    return _reason_lines("Not planned, because no node would help:", plan.blocked)


def _reason_lines(title: str, pods: Sequence[PendingPod]) -> Iterator[str]:
    if not pods:
        return
    reasons: dict[str, list[str]] = {}
    for item in pods:
        reasons.setdefault(item.why, []).append(item.pod)
    yield ""
    yield title
    for why, names in list(reasons.items())[:_LINES_MAX]:
        yield f"  - {_listed(names)}: {why}"
    yield from _more(len(reasons), "reasons")


def _more(count: int, what: str) -> Iterator[str]:
    if count > _LINES_MAX:
        yield f"and {count - _LINES_MAX} more {what}; see -o json"


def _placement_lines(placements: Sequence[Placement], *, everything: bool, colour: bool) -> Iterator[str]:
    if not placements:
        return
    yield ""
    if not everything:
        new = sum(1 for item in placements if item.is_new_node)
        where = f", {new} on new nodes" if new else ""
        yield f"{_number(len(placements), 'Pod')} placed{where}; --all shows where each goes"
        return
    yield from render(placements, _placement_columns(), colour=colour).splitlines()


def _placement_columns() -> list[Column[Placement]]:
    return [
        Column("POD", lambda row: row.pod),
        Column("NODE", lambda row: f"{row.node} (new)" if row.is_new_node else row.node),
        Column("DEVICES", lambda row: _listed([device.rpartition("/")[2] for device in row.devices], 8)),
    ]


def _joint_lines(plan: JointPlan, *, everything: bool, colour: bool) -> Iterator[str]:
    total = len(plan.placements) + len(plan.unplaced)
    if plan.unplaced:
        how = "no placement of all of them exists" if plan.is_proved else "no placement of all of them was found"
        yield paint(f"{len(plan.unplaced)} of {total} Pods do not fit: {how}", "yellow" if colour else "")
    elif not plan.pending_alone:
        yield paint(f"All {total} Pods fit, also one by one", "green" if colour else "")
    else:
        alone = f"one by one, {len(plan.pending_alone)} would stay pending"
        yield paint(f"All {total} Pods fit if they are placed together; {alone}", "green" if colour else "")
    yield from _pending_lines(plan)
    yield from _blocked_lines(plan)
    yield from _placement_lines(plan.placements, everything=everything or bool(plan.pending_alone), colour=colour)
    if plan.pending_alone and not plan.unplaced:
        yield ""
        if plan.is_order:
            yield "What to do: create them in this order, or give the first ones a higher priority"
        else:
            yield "What to do: bind each of them to its node by a node selector on kubernetes.io/hostname"


def removal_lines(plan: RemovalPlan, *, everything: bool = False, colour: bool = False) -> Iterator[str]:
    """Return the text format of a removal."""
    total = len(plan.removable) + len(plan.kept)
    if plan.removable:
        text = f"{_number(len(plan.removable), 'node')} of {total} can be removed"
    else:
        text = f"None of {_number(total, 'node')} can be removed"
    bound = "not more" if plan.is_optimal else f"{plan.at_most} at most"
    yield paint(f"{text} ({bound})", ("green" if plan.removable else "yellow") if colour else "")
    if plan.removable:
        yield ""
        shown = plan.removable if everything else plan.removable[:_LINES_MAX]
        yield from render(shown, _removable_columns(), colour=colour).splitlines()
        if not everything:
            yield from _more(len(plan.removable), "nodes")
    if plan.kept:
        yield ""
        yield "Must stay:"
        yield from (f"  - {node.name}: {node.why}" for node in plan.kept[: None if everything else _LINES_MAX])
        if not everything:
            yield from _more(len(plan.kept), "nodes")
    if plan.removable:
        yield ""
        yield f"What to do: kubectl drain {plan.removable[0].name} --ignore-daemonsets, then the next one"


def _removable_columns() -> list[Column[RemovableNode]]:
    return [
        Column("REMOVE", lambda row: row.name),
        Column("PODS", lambda row: str(len(row.placements))),
        Column("THEY GO TO", lambda row: _listed(list(dict.fromkeys(item.node for item in row.placements)))),
    ]


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
