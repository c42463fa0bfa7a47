"""`dray rebalance`: plans moves of Pods that let others fit, and carries them out."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from dray.api.document import NamespacedName
from dray.api.pod_groups import group_key_of
from dray.cli.command import EXIT_FAILURE, exit_on_read_error
from dray.cli.manifests import read_documents
from dray.cli.output import Column, ProgressLine, paint, render, write_answer
from dray.cli.planning import namespace_of, planning_input, planning_parser, profile_of
from dray.cli.top import headroom_columns
from dray.sim.explain.similar_names import did_you_mean
from dray.sim.snapshot import Snapshot, SnapshotError

if TYPE_CHECKING:
    from dray.client.interface import Client
    from dray.scheduler.config import ProfileConfig
    from dray.sim.headroom import KindHeadroom
    from dray.sim.rebalance.moves import Move, RebalancePlan
    from dray.sim.rebalance.planner import RebalanceOptions

PROG: Final = "dray rebalance"
# More lines would hide the answer.
_NOT_HELPED_MAX: Final = 10


def main(argv: Sequence[str]) -> int:
    """Run the command; with --apply it writes to the cluster. Return 1 if some Pods are still pending then."""
    arguments = _parse(argv)
    if arguments.action == "release":
        return _release(arguments)
    with planning_input(PROG, arguments) as (snapshot, progress):
        options = _options(snapshot, arguments)
        plan = _plan(snapshot, options, arguments, progress)
    write_answer("RebalancePlanList", [plan], arguments.output, partial(lines, plan, applies=arguments.apply))
    left = EXIT_FAILURE if plan.not_helped else 0
    if not arguments.apply or not plan.steps:
        return left
    with exit_on_read_error(PROG):
        return asyncio.run(_apply(arguments, plan, options)) or left


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    description = (
        "Plan which Pods to move so that pending Pods fit, with as few evictions as possible; if none is pending, so "
        "that more Pods of the typical kinds fit. Every move was tried with the scheduler's own code. With --apply, "
        "the Pods are evicted one after the other. `release` ends what an interrupted run left behind."
    )
    parser = planning_parser(PROG, description)
    parser.add_argument("action", nargs="?", choices=("plan", "release"), default="plan", help="default: plan")
    target = parser.add_mutually_exclusive_group()
    target.add_argument(
        "--for", dest="pod", default="", metavar="POD", help="make room for this pending Pod only; also NAMESPACE/POD"
    )
    target.add_argument("--shape", default="", metavar="FILE", help="make room for the Pod of this file")
    parser.add_argument("--count", type=int, default=1, metavar="N", help="with --shape: for so many of them")
    parser.add_argument("-n", "--namespace", default="", help="of POD; default: that of the kubeconfig context")
    parser.add_argument("--max-moves", type=int, default=50, metavar="N", help="move at most N Pods; default: 50")
    parser.add_argument("--move-jobs", action="store_true", help="also move Pods of Jobs, which start again")
    parser.add_argument("--apply", action="store_true", help="carry the plan out")
    parser.add_argument("--dry-run", action="store_true", help="with --apply: only ask whether evictions are allowed")
    parser.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="for each eviction and each replacement",
    )
    arguments = parser.parse_args(argv)
    if arguments.apply and arguments.filename:
        parser.error("--apply needs a cluster; files do not change")
    if arguments.dry_run and not arguments.apply:
        parser.error("--dry-run belongs to --apply; without it nothing is written anyway")
    if arguments.max_moves < 1 or arguments.count < 1 or arguments.timeout <= 0:
        parser.error("--max-moves, --count and --timeout must be positive")
    return arguments


def _options(snapshot: Snapshot, arguments: argparse.Namespace) -> RebalanceOptions:
    # Imported after parsing, as in `dray simulate`.
    from dray.sim.rebalance.planner import RebalanceOptions

    return RebalanceOptions(
        _profile(snapshot, arguments), arguments.feature_gates, arguments.max_moves, arguments.move_jobs
    )


def _profile(snapshot: Snapshot, arguments: argparse.Namespace) -> ProfileConfig:
    """Return the profile for all Pods, also while the plan is carried out: then the cluster is read without files."""
    from dray.sim.scheduler_profiles import default_profile

    return profile_of(arguments) or default_profile(snapshot)


def _plan(
    snapshot: Snapshot, options: RebalanceOptions, arguments: argparse.Namespace, progress: ProgressLine
) -> RebalancePlan:
    from dray.sim.rebalance.planner import RebalancePlanner, pending_targets, shape_targets

    planner = RebalancePlanner(snapshot, options, progress)
    cluster = planner.cluster
    if arguments.shape:
        from dray.sim.manifest_pods import shape_pod

        namespace = namespace_of(arguments)
        found = shape_pod(read_documents(arguments.shape), snapshot, namespace)
        for template in found.templates:
            cluster.add_template(template)
        return planner.plan_for(shape_targets(cluster.prepare(found.pods[0]), arguments.count))
    if arguments.pod:
        # Also as the plan prints it, with the namespace.
        namespace, _, name = arguments.pod.removeprefix("pod/").rpartition("/")
        key = NamespacedName(namespace or namespace_of(arguments), name)
        wanted = [pod for pod in cluster.pending if pod.key == key]
        if not wanted:
            names = [pod.key.name for pod in cluster.pending if pod.key.namespace == key.namespace]
            raise SnapshotError(f"no pending pod {key}{did_you_mean(name, names)}")
        group = group_key_of(wanted[0].pod)
        if group is not None:
            # It is scheduled together with the others, or not at all.
            wanted = [pod for pod in cluster.pending if group_key_of(pod.pod) == group]
        return planner.plan_for(pending_targets(cluster, wanted))
    if cluster.pending or cluster.blocked:
        return planner.plan_for(pending_targets(cluster))
    return planner.plan_headroom()


# --- Applying. ---


async def _apply(arguments: argparse.Namespace, plan: RebalancePlan, options: RebalanceOptions) -> int:
    from dray.cli.cluster import connect
    from dray.cli.rebalance_apply import RebalanceExecutor, StoppedError
    from dray.runtime.tasks import on_signals

    async with connect(arguments.kubeconfig, arguments.context) as client:
        executor = RebalanceExecutor(client, options, _report, arguments.timeout)
        await _release_held(client)
        task = asyncio.current_task()
        assert task is not None
        # So that held nodes are released also when the process is asked to end; asked again, it still releases them.
        on_signals(lambda _number: task.cancelling() or task.cancel())
        try:
            await (executor.dry_run(plan) if arguments.dry_run else executor.apply(plan))
        except StoppedError as error:
            sys.stderr.write(f"{PROG}: stopped, the cluster differs from the plan: {error}\n")
            sys.stderr.write(f"{PROG}: no node is held any more; run the command again for a new plan\n")
            return EXIT_FAILURE
        except asyncio.CancelledError:
            sys.stderr.write(f"{PROG}: interrupted; no node is held any more; run the command again to go on\n")
            return EXIT_FAILURE
    _report("done" if not arguments.dry_run else "dry run: nothing was changed")
    return 0


def _report(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _release(arguments: argparse.Namespace) -> int:
    from dray.cli.cluster import connect

    async def run() -> None:
        async with connect(arguments.kubeconfig, arguments.context) as client:
            if not await _release_held(client):
                _report("no node is held")

    with exit_on_read_error(PROG):
        asyncio.run(run())
    return 0


async def _release_held(client: Client) -> bool:
    """Release the nodes that an interrupted run left held; return whether there were any."""
    from dray.cli.rebalance_apply import set_hold
    from dray.sim.cluster_reader import read_cluster
    from dray.sim.rebalance.execution import held_nodes

    held = held_nodes(await read_cluster(client, ("Node",)))
    for name in held:
        await set_hold(client, name, held=False)
        _report(f"released node {name}, which an earlier run left held")
    return bool(held)


# --- Text. ---


def lines(plan: RebalancePlan, *, applies: bool = False, colour: bool = False) -> Iterator[str]:
    """Return the text format: the verdict first."""
    yield paint(_verdict(plan), _colour(plan) if colour else "")
    if plan.steps:
        yield ""
        moves = [move for step in plan.steps for move in step.moves]
        yield from render(moves, _move_columns(), colour=colour).splitlines()
    if plan.not_helped:
        yield ""
        yield "Still pending:"
        yield from (f"  - {item.pod}: {item.why}" for item in plan.not_helped[:_NOT_HELPED_MAX])
        if len(plan.not_helped) > _NOT_HELPED_MAX:
            yield f"  - and {len(plan.not_helped) - _NOT_HELPED_MAX} more"
    if plan.before:
        yield ""
        yield from _headroom_lines(plan, colour=colour)
    if plan.unmovable:
        yield ""
        yield f"{sum(count for _, count in plan.unmovable)} of {plan.pods} Pods must stay:"
        yield from (f"  - {count}: {reason}" for reason, count in plan.unmovable)
    yield from _advice(plan, applies=applies)
    yield from (f"Note: {note}" for note in plan.notes)


def _verdict(plan: RebalancePlan) -> str:
    helped = [step for step in plan.steps if step.is_pod]
    pending = len(helped) + len(plan.not_helped)
    moves = _number(plan.move_count, "move")
    if plan.steps and helped:
        return f"{moves} let{'s' * (plan.move_count == 1)} {len(helped)} of {_number(pending, 'pending Pod')} fit"
    if plan.steps:
        return f"{moves} make{'s' * (plan.move_count == 1)} room for {_number(len(plan.helping), 'more Pod')}"
    if plan.not_helped:
        return f"No moves were found that let {_number(len(plan.not_helped), 'pending Pod')} fit"
    if plan.fitting:
        return f"No move is needed: {_number(len(plan.fitting), 'Pod')} fit{'s' * (len(plan.fitting) == 1)} as it is"
    return "No move is needed: no Pod is pending, and no move lets more typical Pods fit"


def _colour(plan: RebalancePlan) -> str:
    return "yellow" if plan.not_helped else "green"


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _move_columns() -> list[Column[Move]]:
    return [
        Column("MOVE", lambda move: move.pod),
        Column("FROM", lambda move: move.from_node),
        Column("TO", lambda move: move.to_node),
        Column("OF", lambda move: move.controller),
        Column("WHY", lambda move: move.why),
    ]


def _headroom_lines(plan: RebalancePlan, *, colour: bool) -> Iterator[str]:
    if plan.before == plan.after:
        yield from render(plan.after, headroom_columns(), colour=colour).splitlines()
        return
    yield "More Pods of each typical kind that fit, before and after:"
    rows = list(zip(plan.before, plan.after, strict=True))
    columns: list[Column[tuple[KindHeadroom, KindHeadroom]]] = [
        Column("REQUESTS", lambda row: row[0].requests),
        Column("FOR EXAMPLE", lambda row: row[0].example),
        Column("FIT", lambda row: f"{row[0].fit} → {row[1].fit}"),
        Column("AT MOST", lambda row: f"{row[0].at_most} → {row[1].at_most}"),
    ]
    yield from render(rows, columns, colour=colour).splitlines()


def _advice(plan: RebalancePlan, *, applies: bool) -> Iterator[str]:
    if plan.steps and not applies:
        yield ""
        yield f"To carry it out: {PROG} plan --apply with the same flags"
    elif plan.not_helped and not plan.steps:
        yield ""
        yield "To see which nodes to add: dray plan"
