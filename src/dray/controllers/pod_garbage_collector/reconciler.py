"""Force-deletes Pods that no node will finish, and finished Pods above a threshold."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dray.api.document import NamespacedName
from dray.api.errors import APIError
from dray.api.types.core_v1 import Node, Pod
from dray.client.controller import Requeue, Result
from dray.client.errors import ignore_not_found
from dray.client.interface import DeleteOptions, Patch, PatchType, WriteOptions
from dray.client.objects import key_of
from dray.client.resources import NODES, PODS
from dray.controllers.disruption_target import FINISHED_PHASES, disruption_patch
from dray.controllers.pod_garbage_collector import plan
from dray.controllers.reconciler import (
    PODS_BY_NODE,
    ControllerContext,
    NodeKey,
    PodKey,
    Reconciler,
    newest,
    node_name_values,
)
from dray.runtime.logs import fields
from dray.runtime.metrics import Metrics

_log = logging.getLogger(__name__)

# As in Kubernetes: how often finished Pods are counted, and how long a Node must have been missing.
CHECK_SECONDS: Final = 20.0
QUARANTINE_SECONDS: Final = 40.0
FINISHED_MAX: Final = 12_500
_STATUS: Final = WriteOptions(subresource="status")


@dataclass(frozen=True, slots=True)
class FinishedKey:
    """All finished Pods: there may be too many."""


class PodGarbageCollector(Reconciler[NodeKey | PodKey | FinishedKey]):
    """Collects Pods.

    A `NodeKey` is a Node that is missing or out of service, a `PodKey` a Pod that was deleted before it was scheduled.
    """

    name = "pod_garbage_collector"
    workers = 4

    def __init__(
        self,
        context: ControllerContext,
        *,
        finished_max: int = FINISHED_MAX,
        quarantine_seconds: float = QUARANTINE_SECONDS,
    ) -> None:
        super().__init__(context)
        self._finished_max = finished_max
        self._quarantine = quarantine_seconds
        metrics = context.metrics or Metrics()
        labels = ("namespace", "reason")
        self._deleted = metrics.counter(
            "pod_gc_collector_force_delete_pods_total", "Pods force-deleted by the Pod garbage collector", labels
        )
        self._errors = metrics.counter(
            "pod_gc_collector_force_delete_pod_errors_total", "Errors when force-deleting Pods", labels
        )
        # Name of a missing Node that Pods refer to -> when it was first found missing.
        self._missing: dict[str, float] = {}
        self._finished: set[NamespacedName] = set()
        self._nodes = context.informers.informer(NODES)
        self._pods = context.informers.informer(PODS, indexes={PODS_BY_NODE: node_name_values})
        self.controller.follow(self._nodes, self._node_changed)
        self.controller.follow(self._pods, self._pod_changed)

    # --- Event handlers. ---

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        name = newest(old, new).metadata.name or ""
        if new is not None:
            self._missing.pop(name, None)
        if new is None or plan.is_out_of_service(new):
            self.controller.queue.add(NodeKey(name))

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            assert old is not None
            self._finished.discard(key_of(old))
            return
        if plan.is_finished(new) and self._finished_max > 0:
            self._finished.add(key_of(new))
            if len(self._finished) > self._finished_max:
                self.controller.queue.add_after(FinishedKey(), CHECK_SECONDS)
        if plan.is_unscheduled_and_terminating(new):
            self.controller.queue.add(PodKey(key_of(new)))
        elif new.spec.node_name and self._is_lost(new, old):
            self.controller.queue.add(NodeKey(new.spec.node_name))

    def _is_lost(self, pod: Pod, old: Pod | None) -> bool:
        """Return whether this event shows that the Pod's node will not finish it."""
        node = self._nodes.lister.get(pod.spec.node_name or "")
        if node is None:
            return old is None or not old.spec.node_name
        return plan.is_terminating(pod) and plan.is_out_of_service(node)

    # --- Deletion. ---

    async def reconcile(self, key: NodeKey | PodKey | FinishedKey) -> Result:
        """Collect the Pods of one node, one unscheduled Pod, or surplus finished Pods."""
        if isinstance(key, NodeKey):
            return await self._reconcile_node(key.name)
        if isinstance(key, PodKey):
            pod = self._pods.lister.get_key(key.key)
            if pod is not None and plan.is_unscheduled_and_terminating(pod):
                await self._delete_all((pod,), plan.TERMINATING_UNSCHEDULED)
            return None
        finished = [pod for pod in map(self._pods.lister.get_key, self._finished) if pod is not None]
        await self._delete_all(plan.surplus(finished, self._finished_max), plan.TERMINATED)
        return None

    async def _reconcile_node(self, name: str) -> Result:
        pods = self._pods.lister.by_index(PODS_BY_NODE, name)
        node = self._nodes.lister.get(name)
        if node is not None:
            if plan.is_out_of_service(node):
                terminating = [pod for pod in pods if plan.is_terminating(pod)]
                await self._delete_all(terminating, plan.TERMINATING_OUT_OF_SERVICE)
            return None
        if not pods:
            self._missing.pop(name, None)
            return None
        now = self._clock.monotonic()
        remaining = self._missing.setdefault(name, now) + self._quarantine - now
        if remaining > 0:
            return Requeue(remaining)
        if not await self._exists(name):
            await self._delete_all(pods, plan.ORPHANED)
        self._missing.pop(name, None)
        return None

    async def _exists(self, name: str) -> bool:
        """Read the Node from the API server, since Pods are deleted on the answer."""
        return await ignore_not_found(self._client.get(NODES, name)) is not None

    async def _delete_all(self, pods: Iterable[Pod], reason: str) -> None:
        """Delete all Pods; one failure does not stop the others."""
        failure: APIError | None = None
        for pod in pods:
            labels = (pod.metadata.namespace or "", reason)
            try:
                await self._delete(pod, reason)
            except APIError as error:
                self._errors.labels(*labels).inc()
                failure = error
            else:
                self._deleted.labels(*labels).inc()
        if failure is not None:
            raise failure

    async def _delete(self, pod: Pod, reason: str) -> None:
        key = key_of(pod)
        _log.info("force-deleting Pod", extra=fields(pod=str(key), reason=reason))
        why = (plan.CONDITION_REASON, plan.NODE_GONE_MESSAGE) if reason == plan.ORPHANED else ("", "")
        body = disruption_patch(pod, *why, self._clock.now(), fail=True)
        if body is not None and pod.status.phase not in FINISHED_PHASES:
            patch = Patch(PatchType.STRATEGIC, body)
            await ignore_not_found(self._client.patch(PODS, key.name, key.namespace, patch, _STATUS))
        options = DeleteOptions(uid=pod.metadata.uid or "", grace_period_seconds=0)
        await ignore_not_found(self._client.delete(PODS, key.name, key.namespace, options))
