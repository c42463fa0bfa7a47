"""Evicts Pods from nodes with NoExecute taints that they do not tolerate, or no longer tolerate."""

from __future__ import annotations

from typing import Final

from dray.api.types.core_v1 import Node, Pod, Taint
from dray.client.controller import Requeue, Result
from dray.client.resources import NODES, PODS
from dray.controllers.eviction import EvictionKey, EvictionMetrics, EvictionReason, PodEvictor
from dray.controllers.reconciler import PODS_BY_NODE, ControllerContext, Reconciler, newest, node_name_values
from dray.controllers.taint_eviction import plan
from dray.runtime.metrics import Metrics

REASON: Final = EvictionReason(plan.EVENT_REASON, plan.CONDITION_REASON, plan.CONDITION_MESSAGE)


class TaintEvictionController(Reconciler[EvictionKey]):
    """Deletes each Pod when its tolerations of the node's NoExecute taints have run out."""

    name = "taint_eviction_controller"
    component = "taint-eviction-controller"
    workers = 8

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._metrics = EvictionMetrics(context.metrics or Metrics(), self.name)
        self._evictor = PodEvictor(context.client, self._recorder, REASON)
        self._evictions: plan.EvictionSchedule[EvictionKey] = plan.EvictionSchedule()
        # Only nodes with NoExecute taints: most Pod events need nothing but this lookup.
        self._tainted: dict[str, tuple[Taint, ...]] = {}
        self._nodes = context.informers.informer(NODES)
        self._pods = context.informers.informer(PODS, indexes={PODS_BY_NODE: node_name_values})
        self.controller.follow(self._nodes, self._node_changed)
        self.controller.follow(self._pods, self._cancel_if_deleted, needed_while=self._evictions.pods)
        self.controller.follow(self._pods, self._pod_changed, needed_while=self._tainted)

    # --- Event handlers. ---

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        name = newest(old, new).metadata.name or ""
        before = self._tainted.pop(name, ())
        after = plan.no_execute_taints(new.spec.taints) if new is not None else ()
        if after:
            self._tainted[name] = after
        # Pods of a deleted Node are left to the Pod garbage collector.
        if before != after and new is not None:
            for pod in self._pods.lister.by_index(PODS_BY_NODE, name):
                self.controller.queue.add(EvictionKey.of(pod))

    def _cancel_if_deleted(self, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            assert old is not None
            self._evictions.cancel(EvictionKey.of(old))

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and new.spec.node_name in self._tainted and not _has_same_placement(old, new):
            self.controller.queue.add(EvictionKey.of(new))

    # --- One Pod. ---

    async def reconcile(self, key: EvictionKey) -> Result:
        """Evict the Pod if its toleration time is over, else wait for that or cancel the eviction."""
        pod = self._pods.lister.get_key(key.key)
        if pod is None or pod.metadata.uid != key.uid or pod.metadata.deletion_timestamp is not None:
            self._evictions.cancel(key)
            return None
        seconds = plan.tolerated_seconds(self._tainted.get(pod.spec.node_name or "", ()), pod.spec.tolerations)
        if seconds is None:
            if self._evictions.cancel(key):
                self._evictor.record(key, f"Cancelling deletion of Pod {key.key}")
            return None
        now = self._clock.monotonic()
        eviction = self._evictions.schedule(key, seconds, now)
        if eviction.due > now:
            return Requeue(eviction.due - now)
        await self._evictor.evict(key, pod, f"Marking for deletion Pod {key.key}", self._clock.now())
        self._evictions.cancel(key)
        self._metrics.deleted(self._clock.monotonic() - eviction.due)
        return None


def _has_same_placement(old: Pod | None, new: Pod) -> bool:
    return old is not None and old.spec.node_name == new.spec.node_name and old.spec.tolerations == new.spec.tolerations
