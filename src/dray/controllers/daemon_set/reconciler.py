"""Creates and deletes the Pods of DaemonSets, keeps their revisions and reports their status."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dray.api.document import NamespacedName
from dray.api.errors import APIError
from dray.api.types.apps_v1 import DaemonSet, DaemonSetStatus
from dray.api.types.core_v1 import Node, Pod
from dray.client.controller import Result
from dray.client.errors import ignore_not_found
from dray.client.event_recorder import NORMAL, WARNING
from dray.client.objects import key_of
from dray.client.resources import DAEMON_SETS, NODES
from dray.controllers.daemon_set import plan
from dray.controllers.daemon_set.backoff import FailureBackoff
from dray.controllers.daemon_set.placement import (
    HASH_LABEL,
    KIND,
    Placement,
    hash_of,
    make_daemon_pod,
    owner_of,
    revised_of,
)
from dray.controllers.pod_control.ownership import Owner, enqueue_owners
from dray.controllers.pod_control.pod_control import NewPod, PodControl
from dray.controllers.pod_control.pod_status import next_available_seconds
from dray.controllers.pod_control.revision_control import RevisionControl
from dray.controllers.pod_control.revisions import History
from dray.controllers.reconciler import ControllerContext, Reconciler, own_key


class DaemonSetController(Reconciler[NamespacedName]):
    """Runs one Pod of each DaemonSet on every node it selects."""

    name = "daemonset"
    component = "daemonset-controller"
    workers = 2

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._backoff = FailureBackoff()
        self._control = PodControl(context, DAEMON_SETS, self._recorder)
        self._daemon_sets = context.informers.informer(DAEMON_SETS)
        self._revisions = RevisionControl(context, DAEMON_SETS)
        self._nodes = context.informers.informer(NODES)
        enqueue = enqueue_owners(self._daemon_sets, owner_of, self.controller.queue.add)
        self.controller.watch(self._daemon_sets, own_key, keeps_backoff=True)
        existing = self._daemon_sets.lister.namespaces
        self.controller.follow(self._control.pods, enqueue, needed_while=existing)
        self.controller.follow(self._revisions.revisions, enqueue, needed_while=existing)
        self.controller.follow(self._nodes, self._node_changed)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        """Enqueue the DaemonSets whose placement changes; most Node events are heartbeats."""
        if old is not None and new is not None and _scheduling_fields(old) == _scheduling_fields(new):
            return
        for daemon_set in self._daemon_sets.lister.list():
            placement = Placement(daemon_set)
            before = placement.evaluate(old) if old is not None else None
            after = placement.evaluate(new) if new is not None else None
            if before != after:
                self.controller.queue.add(key_of(daemon_set))

    async def reconcile(self, key: NamespacedName) -> Result:
        """Create and delete Pods until every selected node runs one, and update the status."""
        daemon_set = self._daemon_sets.lister.get_key(key)
        if daemon_set is None or daemon_set.metadata.deletion_timestamp is not None:
            return None
        owner = owner_of(daemon_set)
        history = await self._history(owner, daemon_set)
        if history is None:
            return None
        pods = await self._control.claim(owner)
        nodes = self._nodes.lister.list()
        state = plan.make_state(daemon_set, nodes, pods, hash_of(history), self._clock.now())
        wanted = plan.plan_pods(state, lambda node: self._backoff_seconds(daemon_set, node))
        error = await self._write(owner, daemon_set, wanted, hash_of(history))
        await self._delete_surplus(daemon_set, history, pods)
        await self._report(daemon_set, plan.status_of(state))
        if error is not None:
            raise error
        ready = next_available_seconds(pods, daemon_set.spec.min_ready_seconds or 0, state.now)
        wait = min((item for item in (ready, wanted.requeue_seconds) if item is not None), default=None)
        return self._control.requeue_after(owner, wait)

    async def _write(
        self, owner: Owner, daemon_set: DaemonSet, wanted: plan.Plan, revision_hash: str
    ) -> APIError | None:
        for found in wanted.replaced:
            self._record_replaced(daemon_set, found)
        new = [NewPod(make_daemon_pod(owner, daemon_set, node, revision_hash), node) for node in wanted.create]
        failed = await self._control.create(owner, daemon_set, new) if new else None
        refused = await self._control.delete(daemon_set, wanted.delete) if wanted.delete else None
        return failed or refused

    def _record_replaced(self, daemon_set: DaemonSet, found: plan.FinishedPod) -> None:
        if found.failed:
            self._backoff.next(_backoff_key(daemon_set, found.node), self._clock.monotonic())
        event_type, reason = (WARNING, plan.FAILED_POD) if found.failed else (NORMAL, plan.SUCCEEDED_POD)
        self._recorder.event(KIND, daemon_set, event_type, reason, found.message)

    def _backoff_seconds(self, daemon_set: DaemonSet, node: str) -> float:
        return self._backoff.remaining(_backoff_key(daemon_set, node), self._clock.monotonic())

    async def _report(self, daemon_set: DaemonSet, status: DaemonSetStatus) -> None:
        if daemon_set.status != status:
            await ignore_not_found(
                self._client.update_status(DAEMON_SETS, msgspec.structs.replace(daemon_set, status=status))
            )

    # --- Revisions. ---

    async def _history(self, owner: Owner, daemon_set: DaemonSet) -> History | None:
        """Write the current revision and return all; None on a name collision, which the next attempt avoids."""
        history = await self._revisions.history(owner, revised_of(daemon_set))
        if history is None:
            count = (daemon_set.status.collision_count or 0) + 1
            await self._report(daemon_set, msgspec.structs.replace(daemon_set.status, collision_count=count))
        return history

    async def _delete_surplus(self, daemon_set: DaemonSet, history: History, pods: Sequence[Pod]) -> None:
        live = {pod.metadata.labels.get(HASH_LABEL, "") for pod in pods}
        await self._revisions.delete_surplus(revised_of(daemon_set), history, live)


def _scheduling_fields(node: Node) -> tuple[object, ...]:
    return node.metadata.uid, node.metadata.labels, node.spec.taints


def _backoff_key(daemon_set: DaemonSet, node: str) -> tuple[object, ...]:
    # A new template resets the backoff.
    return daemon_set.metadata.uid, daemon_set.status.observed_generation, node
