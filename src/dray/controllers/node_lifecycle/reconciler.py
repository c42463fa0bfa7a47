"""Monitors heartbeats of nodes: sets conditions, taints and labels, and evicts from unhealthy nodes zone by zone."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dray.api.errors import NotFoundError
from dray.api.types.coordination_v1 import Lease
from dray.api.types.core_v1 import Node, Pod
from dray.client.controller import Requeue, Result
from dray.client.event_recorder import NORMAL, WARNING, ObjectReference
from dray.client.informer import Selection
from dray.client.interface import Patch, PatchType, WriteOptions
from dray.client.objects import key_of
from dray.client.resources import LEASES, NODES, PODS
from dray.client.workqueue import TokenBucket
from dray.controllers.node_lifecycle import plan
from dray.controllers.node_lifecycle.eviction_limiter import EvictionLimiter
from dray.controllers.node_lifecycle.heartbeats import NodeHeartbeats
from dray.controllers.node_lifecycle.metrics import LifecycleMetrics
from dray.controllers.node_lifecycle.plan import NoExecute
from dray.controllers.node_lifecycle.zones import Change, Rates, Zones
from dray.controllers.reconciler import PODS_BY_NODE, ControllerContext, NodeKey, PodKey, Reconciler, node_name_values
from dray.runtime.metrics import Metrics

LEASE_NAMESPACE: Final = "kube-node-lease"
# Limits events about registered and removed nodes: a start in a large cluster must not emit thousands.
NODE_EVENTS_BURST: Final = 500
NODE_EVENTS_PER_SECOND: Final = 10.0
_STATUS: Final = WriteOptions(subresource="status")


@dataclass(frozen=True, slots=True)
class LifecycleTiming:
    """Periods in seconds, with the defaults of Kubernetes."""

    monitor_period: float = 5.0
    monitor_grace_period: float = 50.0
    startup_grace_period: float = 60.0


@dataclass(frozen=True, slots=True)
class ZoneKey:
    """A zone with nodes that wait for eviction."""

    zone: str


class NodeLifecycleController(Reconciler[NodeKey | PodKey | ZoneKey]):
    """Keeps Nodes in line with their heartbeats; a `PodKey` is a ready Pod on a node that is not ready."""

    name = "node_lifecycle_controller"
    # As kubectl shows it in the events of nodes.
    component = "node-controller"
    workers = 8

    def __init__(
        self, context: ControllerContext, *, timing: LifecycleTiming | None = None, rates: Rates | None = None
    ) -> None:
        super().__init__(context)
        self._timing = timing or LifecycleTiming()
        self._metrics = LifecycleMetrics(context.metrics or Metrics())
        self._heartbeats = NodeHeartbeats(
            grace_seconds=self._timing.monitor_grace_period, startup_grace_seconds=self._timing.startup_grace_period
        )
        self._zones = Zones(rates or Rates())
        self._limiter = EvictionLimiter()
        self._event_limiter = TokenBucket(rate_per_second=NODE_EVENTS_PER_SECOND, burst=NODE_EVENTS_BURST)
        # Names of nodes whose condition Ready is not true.
        self._unready: set[str] = set()
        self._nodes = context.informers.informer(NODES)
        self._pods = context.informers.informer(PODS, indexes={PODS_BY_NODE: node_name_values})
        leases = context.informers.informer(LEASES, Selection(namespace=LEASE_NAMESPACE))
        self.controller.follow(self._nodes, self._node_changed)
        self.controller.follow(self._pods, self._pod_changed, needed_while=self._unready)
        self.controller.follow(leases, self._lease_changed)

    def background_tasks(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """Monitor the health of all nodes periodically."""
        return {"node monitor": self._monitor()}

    async def reconcile(self, key: NodeKey | PodKey | ZoneKey) -> Result:
        """Reconcile one Node, one Pod or the evictions of one zone."""
        if isinstance(key, NodeKey):
            started = self._clock.monotonic()
            await self._reconcile_node(key.name)
            self._metrics.one_seconds.observe(self._clock.monotonic() - started)
            return None
        if isinstance(key, PodKey):
            pod = self._pods.lister.get_key(key.key)
            if pod is not None and pod.spec.node_name in self._unready:
                await self._set_not_ready((pod,))
            return None
        return self._next_eviction(key.zone)

    # --- Event handlers. ---

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is None:
            assert old is not None
            self._node_gone(old)
            return
        if old is None:
            name = new.metadata.name or ""
            self._record_limited(new, "RegisteredNode", f"Node {name} event: Registered Node {name} in Controller")
        self._heartbeats.observe_node(new, self._clock.monotonic(), self._clock.now())
        self._note_status(new)
        if self._needs_work(new):
            self.controller.queue.add(NodeKey(new.metadata.name or ""))

    def _node_gone(self, node: Node) -> None:
        name = node.metadata.name or ""
        self._heartbeats.forget(name)
        self._zones.remove(name)
        self._limiter.remove(name)
        self._unready.discard(name)
        self._record_limited(node, "RemovingNode", f"Node {name} event: Removing Node {name} from Controller")

    def _note_status(self, node: Node) -> None:
        name = node.metadata.name or ""
        status = plan.ready_status(node)
        counts = status is not None and plan.EXCLUDED_FROM_DISRUPTION not in node.metadata.labels
        healthy = status == plan.TRUE and not self._heartbeats.is_missed(name)
        self._zones.put(name, plan.zone_of(node), healthy=healthy if counts else None)
        if status is None or status == plan.TRUE:
            self._unready.discard(name)
            self._limiter.remove(name)
        else:
            self._unready.add(name)

    def _needs_work(self, node: Node) -> bool:
        name = node.metadata.name or ""
        if name in self._unready or self._heartbeats.is_missed(name):
            return True
        return not plan.plan_node(node, self._no_execute(node), self._clock.now()).empty

    def _lease_changed(self, _old: Lease | None, new: Lease | None) -> None:
        if new is None:
            return
        name = new.metadata.name or ""
        if self._heartbeats.observe_lease(name, new.spec.renew_time, self._clock.monotonic()):
            node = self._nodes.lister.get(name)
            if node is not None:
                self._note_status(node)

    def _pod_changed(self, _old: Pod | None, new: Pod | None) -> None:
        if new is not None and new.spec.node_name in self._unready and _is_ready(new):
            self.controller.queue.add(PodKey(key_of(new)))

    # --- Periodic checks of all nodes. ---

    async def _monitor(self) -> None:
        while True:
            await self._clock.sleep(self._timing.monitor_period)
            started = self._clock.monotonic()
            for name in self._heartbeats.newly_missed(started):
                node = self._nodes.lister.get(name)
                if node is not None:
                    self._note_status(node)
                    self.controller.queue.add(NodeKey(name))
            self._evaluate_zones()
            for zone in self._limiter.waiting_zones:
                self.controller.queue.add(ZoneKey(zone))
            self._metrics.show(self._zones)
            self._metrics.all_seconds.observe(self._clock.monotonic() - started)

    def _evaluate_zones(self) -> None:
        change = self._zones.evaluate()
        if change is Change.NOTHING:
            return
        if change is Change.RESUMED:
            self._heartbeats.reset_all(self._clock.monotonic())
        for node in self._nodes.lister.list():
            name = node.metadata.name or ""
            if change is Change.STOPPED:
                self._limiter.remove(name)
            self._note_status(node)
            if self._needs_work(node):
                self.controller.queue.add(NodeKey(name))

    def _next_eviction(self, zone: str) -> Result:
        self._evaluate_zones()
        permitted, wait = self._limiter.next(zone, self._zones.rate(zone), self._clock.monotonic())
        if permitted is not None:
            self.controller.queue.add(NodeKey(permitted))
        return Requeue(wait) if wait is not None else None

    # --- One node. ---

    async def _reconcile_node(self, name: str) -> None:
        node = self._nodes.lister.get(name)
        if node is None:
            return
        if self._heartbeats.is_missed(name):
            conditions = plan.unknown_conditions(node, self._clock.now())
            if conditions and await self._is_missed(name):
                await self._set_unknown(node, plan.status_patch(node, conditions))
                # The Node's event enqueues the key again.
                return
        no_execute = self._no_execute(node)
        if no_execute is NoExecute.QUEUE:
            zone = self._zones.zone_of(name)
            self._limiter.enqueue(name, zone)
            self.controller.queue.add(ZoneKey(zone))
        wanted = plan.plan_node(node, no_execute, self._clock.now())
        if not wanted.empty:
            await self._client.patch(NODES, name, "", Patch(PatchType.MERGE, plan.node_patch(node, wanted)))
        # A permit permitted during the patch is still unused.
        if no_execute is NoExecute.SET and self._limiter.is_permitted(name):
            self._limiter.done(name)
            if wanted.taints is not None:
                self._metrics.evicted(self._zones.zone_of(name))
        if name in self._unready:
            await self._set_not_ready(self._pods.lister.by_index(PODS_BY_NODE, name))

    def _no_execute(self, node: Node) -> NoExecute:
        name = node.metadata.name or ""
        return plan.plan_no_execute(
            node,
            stopped=self._zones.stopped,
            permitted=self._limiter.is_permitted(name),
            done=self._limiter.is_done(name),
        )

    async def _is_missed(self, name: str) -> bool:
        """Read the Lease from the API server: the cache may be stale."""
        try:
            lease = await self._client.get(LEASES, name, LEASE_NAMESPACE)
        except NotFoundError:
            return True
        self._lease_changed(None, lease)
        return self._heartbeats.is_missed(name)

    async def _set_unknown(self, node: Node, body: dict[str, Any]) -> None:
        name = node.metadata.name or ""
        await self._client.patch(NODES, name, "", Patch(PatchType.STRATEGIC, body), _STATUS)
        if plan.ready_status(node) == plan.TRUE:
            self._record(node, "NodeNotReady", f"Node {name} status is now: NodeNotReady")

    async def _set_not_ready(self, pods: Iterable[Pod]) -> None:
        for pod in pods:
            body = plan.not_ready_patch(pod, self._clock.now())
            if body is None:
                continue
            key = key_of(pod)
            try:
                await self._client.patch(PODS, key.name, key.namespace, Patch(PatchType.STRATEGIC, body), _STATUS)
            except NotFoundError:
                continue
            self._recorder.event(PODS.group_version_kind, pod, WARNING, "NodeNotReady", "Node is not ready")

    def _record_limited(self, node: Node, reason: str, message: str) -> None:
        if self._event_limiter.try_take(self._clock.monotonic()):
            self._record(node, reason, message)

    def _record(self, node: Node, reason: str, message: str) -> None:
        about = ObjectReference(NODES.group_version_kind, "", node.metadata.name or "", node.metadata.uid or "")
        self._recorder.event_for(about, NORMAL, reason, message)


def _is_ready(pod: Pod) -> bool:
    return any(item.type == plan.READY and item.status == plan.TRUE for item in pod.status.conditions)
