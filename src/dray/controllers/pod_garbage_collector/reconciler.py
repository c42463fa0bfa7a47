"""The Pod garbage collector's hands."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dray.api.document import NamespacedName
from dray.api.errors import APIError
from dray.api.types.core_v1 import Node, Pod
from dray.client.controller import Controller, Requeue, Result
from dray.client.interface import Client, DeleteOptions, Patch, PatchType, WriteOptions, ignore_not_found
from dray.client.objects import key_of
from dray.client.resources import NODES, PODS
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.eviction import disruption_patch
from dray.controllers.kinds import PODS_BY_NODE, node_name_values
from dray.controllers.pod_garbage_collector import plan
from dray.lib.clock import Clock
from dray.runtime.logs import fields
from dray.runtime.metrics import Metrics

_log = logging.getLogger(__name__)

NAME: Final = "pod_garbage_collector"
WORKERS: Final = 4
# Kubernetes': how often finished Pods are counted, and how long a Node must have been gone.
CHECK_SECONDS: Final = 20.0
QUARANTINE_SECONDS: Final = 40.0
FINISHED_MAX: Final = 12_500
_STATUS: Final = WriteOptions(subresource="status")


@dataclass(frozen=True, slots=True)
class NodeKey:
    """A Node that is gone or out of service, with Pods on it."""

    name: str


@dataclass(frozen=True, slots=True)
class PodKey:
    """A Pod deleted before it had a node."""

    key: NamespacedName


@dataclass(frozen=True, slots=True)
class FinishedKey:
    """All finished Pods: there may be too many."""


class PodGarbageCollector:
    """Runs until cancelled."""

    def __init__(
        self,
        client: Client,
        informers: SharedInformerFactory,
        clock: Clock,
        *,
        finished_max: int = FINISHED_MAX,
        quarantine_seconds: float = QUARANTINE_SECONDS,
        metrics: Metrics | None = None,
    ) -> None:
        self._client = client
        self._clock = clock
        self._finished_max = finished_max
        self._quarantine = quarantine_seconds
        metrics = metrics or Metrics()
        labels = ("namespace", "reason")
        self._deleted = metrics.counter(
            "pod_gc_collector_force_delete_pods_total", "Pods that the garbage collector removed", labels
        )
        self._errors = metrics.counter(
            "pod_gc_collector_force_delete_pod_errors_total", "Pods that could not be removed", labels
        )
        self.controller: Controller[NodeKey | PodKey | FinishedKey] = Controller(
            NAME, self.reconcile, clock, metrics=metrics, workers=WORKERS
        )
        # Since when a Node that Pods name has been missing.
        self._missing: dict[str, float] = {}
        self._finished: set[NamespacedName] = set()
        self._nodes = informers.informer(NODES)
        self._pods = informers.informer(PODS, indexes={PODS_BY_NODE: node_name_values})
        self.controller.follow(self._nodes, self._node_changed)
        self.controller.follow(self._pods, self._pod_changed)

    async def run(self) -> None:
        """Collect until cancelled."""
        await self.controller.run()

    # --- What a change wakes. ---

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        node = new if new is not None else old
        assert node is not None
        name = node.metadata.name or ""
        if new is not None:
            self._missing.pop(name, None)
        if new is None or plan.is_out_of_service(new):
            self.controller.queue.add(NodeKey(name))

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new if new is not None else old
        assert pod is not None
        key = key_of(pod)
        if new is None:
            self._finished.discard(key)
            return
        if plan.is_finished(new) and self._finished_max > 0:
            self._finished.add(key)
            if len(self._finished) > self._finished_max:
                self.controller.queue.add_after(FinishedKey(), CHECK_SECONDS)
        if plan.is_never_placed(new):
            self.controller.queue.add(PodKey(key))
        elif new.spec.node_name and self._is_lost(new, old):
            self.controller.queue.add(NodeKey(new.spec.node_name))

    def _is_lost(self, pod: Pod, old: Pod | None) -> bool:
        """Whether the Pod's node will not finish it, as far as this change can tell."""
        node = self._nodes.lister.get(pod.spec.node_name or "")
        if node is None:
            return old is None or not old.spec.node_name
        return plan.is_terminating(pod) and plan.is_out_of_service(node)

    # --- Removing. ---

    async def reconcile(self, key: NodeKey | PodKey | FinishedKey) -> Result:
        """Remove what one node, one Pod or the number of finished Pods asks for."""
        if isinstance(key, NodeKey):
            return await self._reconcile_node(key.name)
        if isinstance(key, PodKey):
            pod = self._pods.lister.get_key(key.key)
            if pod is not None and plan.is_never_placed(pod):
                await self._remove_all((pod,), plan.TERMINATING_UNSCHEDULED)
            return None
        finished = [pod for pod in map(self._pods.lister.get_key, self._finished) if pod is not None]
        await self._remove_all(plan.too_many(finished, self._finished_max), plan.TERMINATED)
        return None

    async def _reconcile_node(self, name: str) -> Result:
        pods = self._pods.lister.by_index(PODS_BY_NODE, name)
        node = self._nodes.lister.get(name)
        if node is not None:
            if plan.is_out_of_service(node):
                terminating = [pod for pod in pods if plan.is_terminating(pod)]
                await self._remove_all(terminating, plan.TERMINATING_OUT_OF_SERVICE)
            return None
        if not pods:
            self._missing.pop(name, None)
            return None
        now = self._clock.monotonic()
        remaining = self._missing.setdefault(name, now) + self._quarantine - now
        if remaining > 0:
            return Requeue(remaining)
        if not await self._exists(name):
            await self._remove_all(pods, plan.ORPHANED)
        self._missing.pop(name, None)
        return None

    async def _exists(self, name: str) -> bool:
        """Ask past the cache: the answer costs Pods."""
        return await ignore_not_found(self._client.get(NODES, name)) is not None

    async def _remove_all(self, pods: Iterable[Pod], reason: str) -> None:
        """Remove every Pod; one that cannot be removed does not keep the others."""
        failure: APIError | None = None
        for pod in pods:
            labels = (pod.metadata.namespace or "", reason)
            try:
                await self._remove(pod, reason)
            except APIError as error:
                self._errors.labels(*labels).inc()
                failure = error
            else:
                self._deleted.labels(*labels).inc()
        if failure is not None:
            raise failure

    async def _remove(self, pod: Pod, reason: str) -> None:
        key = key_of(pod)
        _log.info("removing a Pod by force", extra=fields(pod=str(key), reason=reason))
        why = (plan.CONDITION_REASON, plan.NODE_GONE_MESSAGE) if reason == plan.ORPHANED else ("", "")
        body = disruption_patch(pod, *why, self._clock.now(), fail=True)
        if body is not None and pod.status.phase not in ("Succeeded", "Failed"):
            patch = Patch(PatchType.STRATEGIC, body)
            await ignore_not_found(self._client.patch(PODS, key.name, key.namespace, patch, _STATUS))
        options = DeleteOptions(uid=pod.metadata.uid or "", grace_period_seconds=0)
        await ignore_not_found(self._client.delete(PODS, key.name, key.namespace, options))
