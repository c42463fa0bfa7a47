"""Carries out a rebalancing on a cluster: evicts one Pod after the other, and stops when the cluster differs."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import msgspec

from dray.api.document import Document
from dray.api.errors import APIError, ConflictError, NotFoundError, TooManyRequestsError
from dray.api.types.core_v1 import Node, Pod, Taint
from dray.client.interface import Bookmark, Client, EventType, WatchOptions
from dray.client.resources import NODES, PODS
from dray.runtime.tasks import run_to_completion
from dray.sim.cluster_reader import read_cluster
from dray.sim.rebalance.execution import (
    difference,
    is_replacement,
    pods_of_controller,
    released,
    replay,
    why_pending,
)
from dray.sim.rebalance.moves import Move, RebalancePlan, Step
from dray.sim.rebalance.planner import RebalanceOptions
from dray.sim.snapshot import PLACEMENT_KINDS
from dray.sim.usable_nodes import HOLD_TAINT

# How long an eviction may be refused by a budget, a replacement may be pending, and the Pod for which room was made.
WAIT_SECONDS: Final = 300.0
# Between two attempts to evict a Pod that a budget protects, or to write a node that others write too.
RETRY_SECONDS: Final = 1.0
# While a Pod is not scheduled although there is room for it: how often it is checked whether there still is.
CHECK_SECONDS: Final = 5.0
NODE_WRITES_MAX: Final = 10
KINDS: Final = (*PLACEMENT_KINDS, "ReplicaSet", "StatefulSet")
replace = msgspec.structs.replace

Report = Callable[[str], None]


class StoppedError(Exception):
    """The cluster differs from the plan; what was done is complete, what is left was not begun."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What was done."""

    moves: int
    pods_scheduled: int


class RebalanceExecutor:
    """Applies one plan."""

    def __init__(
        self, client: Client, options: RebalanceOptions, report: Report, wait_seconds: float = WAIT_SECONDS
    ) -> None:
        self._client = client
        self._options = options
        self._report = report
        self._wait_seconds = wait_seconds
        self._moves = 0
        self._scheduled = 0
        # Nodes in the order in which they were held.
        self._held: dict[str, None] = {}
        # Steps whose moves are made, and whose Pods wait for their nodes to be released.
        self._waiting: list[Step] = []

    async def apply(self, plan: RebalancePlan) -> Applied:
        """Carry out all steps; raises `StoppedError`."""
        try:
            for index, step in enumerate(plan.steps):
                await self._apply_step(step, plan.steps[index + 1 :])
        finally:
            # Also if the command is interrupted: nobody else would release the nodes.
            await run_to_completion(self._release_except(()))
        return Applied(self._moves, self._scheduled)

    async def dry_run(self, plan: RebalancePlan) -> None:
        """Ask the API server whether it would evict each Pod; raises `StoppedError`."""
        for move in (move for step in plan.steps for move in step.moves):
            try:
                await self._evict(move, dry_run=True)
            except (NotFoundError, ConflictError, TooManyRequestsError) as error:
                raise StoppedError(f"pod {move.pod} could not be evicted: {error}") from error
            self._report(f"pod {move.pod} could be evicted")

    async def _apply_step(self, step: Step, later: Sequence[Step]) -> None:
        await self._check(step, later)
        for name in (*step.also_held, step.node):
            # Not interrupted, since a write in doubt could reach the node after its release.
            await run_to_completion(self._hold(name))
        for index, move in enumerate(step.moves):
            if index:
                await self._check(replace_moves(step, step.moves[index:]), later)
            node_name = await self._move(move)
            self._moves += 1
            if node_name != move.to_node:
                self._report(f"  the plan said {move.to_node}: checking the rest of the plan again")
                await self._check(replace_moves(step, step.moves[index + 1 :]), later)
        if step.is_pod:
            self._waiting.append(step)
        await run_to_completion(self._release_except(later[0].also_held if later else ()))
        for reached in released(self._waiting, later):
            self._waiting.remove(reached)
            await self._wait_for_target(reached)

    async def _check(self, step: Step, later: Sequence[Step]) -> None:
        """Stop if the cluster differs from what the rest of the plan expects."""
        snapshot = await read_cluster(self._client, KINDS)
        options = self._options
        problem = difference(snapshot, step, jobs=options.jobs) or replay(
            snapshot, [step, *later], options.profile, options.gates, self._waiting
        )
        if problem:
            raise StoppedError(problem)

    async def _hold(self, name: str) -> None:
        if name not in self._held:
            self._held[name] = None
            await set_hold(self._client, name, held=True)

    async def _release_except(self, kept: Sequence[str]) -> None:
        failures: list[APIError] = []
        for name in [name for name in self._held if name not in kept]:
            try:
                await set_hold(self._client, name, held=False)
            except APIError as error:
                # The others are released all the same.
                failures.append(error)
            else:
                del self._held[name]
        if failures:
            raise failures[0]

    # --- One Pod. ---

    async def _move(self, move: Move) -> str:
        """Evict a Pod, and return the node of its replacement."""
        page = await self._client.list(PODS, move.namespace)
        known = pods_of_controller(page.items, move)
        await self._evict_when_allowed(move)
        self._report(f"evicted pod {move.pod} from {move.from_node}")
        latest: list[Pod] = []

        def is_placed(pod: Pod) -> bool:
            if not is_replacement(pod, move, known):
                return False
            latest[:] = [pod]
            return bool(pod.spec.node_name)

        pod = await self._wait_for_pod(move.namespace, is_placed, self._wait_seconds)
        if pod is None:
            what = f"is pending: {why_pending(latest[0])}" if latest else "was not created"
            raise StoppedError(f"the replacement of pod {move.pod} {what}")
        self._report(f"  {move.controller} replaced it by {pod.metadata.name} on {pod.spec.node_name}")
        return pod.spec.node_name or ""

    async def _evict_when_allowed(self, move: Move) -> None:
        """Evict a Pod, and retry while its budget forbids it."""
        waited = 0.0
        while True:
            try:
                await self._evict(move)
            except TooManyRequestsError as error:
                if waited >= self._wait_seconds:
                    raise StoppedError(f"pod {move.pod} could not be evicted: {error}") from error
                if not waited:
                    self._report(f"waiting until pod {move.pod} may be evicted: {error}")
                await asyncio.sleep(RETRY_SECONDS)
                waited += RETRY_SECONDS
            except (NotFoundError, ConflictError) as error:
                raise StoppedError(f"pod {move.pod} does not exist any more") from error
            else:
                return

    async def _evict(self, move: Move, *, dry_run: bool = False) -> None:
        options: Document = {"preconditions": {"uid": move.uid}}
        body: Document = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": move.name, "namespace": move.namespace},
            "deleteOptions": options | ({"dryRun": ["All"]} if dry_run else {}),
        }
        await self._client.create_subresource(PODS, move.name, move.namespace, "eviction", body)

    async def _wait_for_target(self, step: Step) -> None:
        latest: list[Pod] = []

        def is_placed(pod: Pod) -> bool:
            if pod.metadata.uid != step.uid:
                return False
            latest[:] = [pod]
            return bool(pod.spec.node_name)

        waited = 0.0
        pod = None
        while pod is None and waited < self._wait_seconds:
            seconds = min(CHECK_SECONDS, self._wait_seconds - waited)
            pod = await self._wait_for_pod(step.namespace, is_placed, seconds, step.uid)
            waited += seconds
            if pod is None and waited < self._wait_seconds:
                await self._check_target(step)
        if pod is None:
            raise StoppedError(f"pod {step.description} was not scheduled: {why_pending(latest[0])}")
        self._scheduled += 1
        self._report(f"pod {step.description} is scheduled on {pod.spec.node_name}")

    async def _check_target(self, step: Step) -> None:
        """Stop if the Pod for which room was made would not fit any more, and waiting does not help."""
        snapshot = await read_cluster(self._client, KINDS)
        target = snapshot.pods_by_uid.get(step.uid)
        if target is None or not target.spec.node_name:
            problem = replay(snapshot, (), self._options.profile, self._options.gates, [step])
            if problem:
                raise StoppedError(problem)

    async def _wait_for_pod(
        self, namespace: str, wanted: Callable[[Pod], bool], seconds: float, uid: str = ""
    ) -> Pod | None:
        """Return the first Pod that is wanted; None after the deadline. Stops if the Pod with the uid is gone."""
        try:
            return await asyncio.wait_for(self._watch_for_pod(namespace, wanted, uid), seconds)
        except TimeoutError:
            return None

    async def _watch_for_pod(self, namespace: str, wanted: Callable[[Pod], bool], uid: str) -> Pod:
        while True:
            page = await self._client.list(PODS, namespace)
            found = next((pod for pod in page.items if wanted(pod)), None)
            if found is not None:
                return found
            if uid and all(pod.metadata.uid != uid for pod in page.items):
                raise StoppedError("the pod for which room was made does not exist any more")
            options = WatchOptions(resource_version=page.resource_version)
            try:
                async with aclosing(self._client.watch(PODS, namespace, options)) as events:
                    async for event in events:
                        if isinstance(event, Bookmark):
                            continue
                        if event.type is EventType.DELETED:
                            if uid and event.object.metadata.uid == uid:
                                # The list says so too.
                                break
                        elif wanted(event.object):
                            return event.object
            except APIError:
                # The watch expired: the list says what happened since.
                await asyncio.sleep(RETRY_SECONDS)


def replace_moves(step: Step, moves: Sequence[Move]) -> Step:
    """Return the step with fewer moves."""
    return dataclasses.replace(step, moves=tuple(moves))


async def set_hold(client: Client, name: str, *, held: bool) -> None:
    """Add or remove the taint that keeps new Pods from a node; other changes to the node are kept."""
    for attempt in range(NODE_WRITES_MAX):
        try:
            node = await client.get(NODES, name)
            changed = _with_hold(node, held=held)
            if changed is not node:
                await client.update(NODES, changed)
        except ConflictError:
            if attempt + 1 == NODE_WRITES_MAX:
                raise
            await asyncio.sleep(0)
        except NotFoundError:
            return
        else:
            return


def _with_hold(node: Node, *, held: bool) -> Node:
    is_held = any(taint.key == HOLD_TAINT for taint in node.spec.taints)
    if is_held == held:
        return node
    taints = tuple(taint for taint in node.spec.taints if taint.key != HOLD_TAINT)
    if held:
        taints = (*taints, Taint(key=HOLD_TAINT, effect="NoSchedule"))
    return replace(node, spec=replace(node.spec, taints=taints))
