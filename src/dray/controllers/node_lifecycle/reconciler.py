"""The node lifecycle controller's hands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from dray.api.document import NamespacedName
from dray.api.errors import NotFoundError
from dray.api.types.coordination_v1 import Lease
from dray.api.types.core_v1 import Node, Pod
from dray.client.controller import Controller, Requeue, Result
from dray.client.event_recorder import NORMAL, WARNING, EventRecorder, ObjectReference, Source
from dray.client.informer import Selection
from dray.client.interface import Client, Patch, PatchType, WriteOptions
from dray.client.objects import key_of
from dray.client.resources import LEASES, NODES, PODS
from dray.client.shared_informers import SharedInformerFactory
from dray.client.workqueue import TokenBucket
from dray.controllers.kinds import PODS_BY_NODE, node_name_values
from dray.controllers.node_lifecycle import plan
from dray.controllers.node_lifecycle.eviction_limiter import Turns
from dray.controllers.node_lifecycle.heartbeats import HeartbeatBook
from dray.controllers.node_lifecycle.metrics import LifecycleMetrics
from dray.controllers.node_lifecycle.plan import Emptying
from dray.controllers.node_lifecycle.zones import Change, Rates, Zones
from dray.lib.clock import Clock
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup

LEASE_NAMESPACE: Final = "kube-node-lease"
NAME: Final = "node_lifecycle_controller"
# As kubectl shows it in the events of nodes.
SOURCE: Final = "node-controller"
WORKERS: Final = 8
# Of nodes that come and go; a start among thousands must not be thousands of events.
NEWS_BURST: Final = 500
NEWS_RATE_PER_SECOND: Final = 10.0
_STATUS: Final = WriteOptions(subresource="status")


@dataclass(frozen=True, slots=True)
class LifecycleTiming:
    """Kubernetes' numbers, in seconds."""

    monitor_period: float = 5.0
    monitor_grace_period: float = 50.0
    startup_grace_period: float = 60.0


@dataclass(frozen=True, slots=True)
class NodeKey:
    """A Node that may not be as its conditions ask."""

    name: str


@dataclass(frozen=True, slots=True)
class PodKey:
    """A Pod that cannot be ready, on a node that is not."""

    key: NamespacedName


@dataclass(frozen=True, slots=True)
class ZoneKey:
    """A zone whose nodes wait to be emptied."""

    zone: str


class NodeLifecycleController:
    """Runs until cancelled."""

    def __init__(
        self,
        client: Client,
        informers: SharedInformerFactory,
        clock: Clock,
        *,
        timing: LifecycleTiming | None = None,
        rates: Rates | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._client = client
        self._clock = clock
        self._timing = timing or LifecycleTiming()
        self._metrics = LifecycleMetrics(metrics or Metrics())
        self._recorder = EventRecorder(client, clock, Source(SOURCE))
        self._heartbeats = HeartbeatBook(
            grace_seconds=self._timing.monitor_grace_period, startup_grace_seconds=self._timing.startup_grace_period
        )
        self._zones = Zones(rates or Rates())
        self._turns = Turns()
        self._news = TokenBucket(rate_per_second=NEWS_RATE_PER_SECOND, burst=NEWS_BURST)
        # Names of nodes that say, or are said, not to be ready.
        self._unready: set[str] = set()
        self.controller: Controller[NodeKey | PodKey | ZoneKey] = Controller(
            NAME, self.reconcile, clock, metrics=metrics, workers=WORKERS
        )
        self._nodes = informers.informer(NODES)
        self._pods = informers.informer(PODS, indexes={PODS_BY_NODE: node_name_values})
        leases = informers.informer(LEASES, Selection(namespace=LEASE_NAMESPACE))
        self.controller.follow(self._nodes, self._node_changed)
        self.controller.follow(self._pods, self._pod_changed)
        self.controller.follow(leases, self._lease_changed)

    async def run(self) -> None:
        """Watch over nodes until cancelled."""
        async with TaskGroup(NAME) as group:
            group.spawn(self._recorder.run(), "events of nodes")
            group.spawn(self._monitor(), "monitor")
            await self.controller.run()

    async def reconcile(self, key: NodeKey | PodKey | ZoneKey) -> Result:
        """Do what one Node, Pod or zone needs."""
        if isinstance(key, NodeKey):
            started = self._clock.monotonic()
            await self._reconcile_node(key.name)
            self._metrics.one_seconds.observe(self._clock.monotonic() - started)
            return None
        if isinstance(key, PodKey):
            pod = self._pods.lister.get_key(key.key)
            if pod is not None and pod.spec.node_name in self._unready:
                await self._make_not_ready((pod,))
            return None
        return self._next_turn(key.zone)

    # --- What a change wakes. ---

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is None:
            assert old is not None
            self._node_gone(old)
            return
        if old is None:
            name = new.metadata.name or ""
            self._tell_news(new, "RegisteredNode", f"Node {name} event: Registered Node {name} in Controller")
        self._heartbeats.observe_node(new, self._clock.monotonic(), self._clock.now())
        self._note_status(new)
        if self._needs_work(new):
            self.controller.queue.add(NodeKey(new.metadata.name or ""))

    def _node_gone(self, node: Node) -> None:
        name = node.metadata.name or ""
        self._heartbeats.forget(name)
        self._zones.remove(name)
        self._turns.withdraw(name)
        self._unready.discard(name)
        self._tell_news(node, "RemovingNode", f"Node {name} event: Removing Node {name} from Controller")

    def _note_status(self, node: Node) -> None:
        name = node.metadata.name or ""
        status = plan.ready_status(node)
        counts = status is not None and plan.EXCLUDED_FROM_DISRUPTION not in node.metadata.labels
        well = status == plan.TRUE and not self._heartbeats.is_silent(name)
        self._zones.put(name, plan.zone_of(node), well=well if counts else None)
        if status is None or status == plan.TRUE:
            self._unready.discard(name)
            self._turns.withdraw(name)
        else:
            self._unready.add(name)

    def _needs_work(self, node: Node) -> bool:
        name = node.metadata.name or ""
        if name in self._unready or self._heartbeats.is_silent(name):
            return True
        return not plan.plan_node(node, self._emptying(node), self._clock.now()).empty

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

    # --- All nodes, now and then. ---

    async def _monitor(self) -> None:
        while True:
            await self._clock.sleep(self._timing.monitor_period)
            started = self._clock.monotonic()
            for name in self._heartbeats.fallen_silent(started):
                node = self._nodes.lister.get(name)
                if node is not None:
                    self._note_status(node)
                    self.controller.queue.add(NodeKey(name))
            self._judge_zones()
            for zone in self._turns.zones_waiting:
                self.controller.queue.add(ZoneKey(zone))
            self._metrics.show(self._zones)
            self._metrics.all_seconds.observe(self._clock.monotonic() - started)

    def _judge_zones(self) -> None:
        change = self._zones.evaluate()
        if change is Change.NOTHING:
            return
        if change is Change.RESUMED:
            self._heartbeats.excuse_all(self._clock.monotonic())
        for node in self._nodes.lister.list():
            name = node.metadata.name or ""
            if change is Change.STOPPED:
                self._turns.withdraw(name)
            self._note_status(node)
            if self._needs_work(node):
                self.controller.queue.add(NodeKey(name))

    def _next_turn(self, zone: str) -> Result:
        self._judge_zones()
        granted, wait = self._turns.next(zone, self._zones.rate(zone), self._clock.monotonic())
        if granted is not None:
            self.controller.queue.add(NodeKey(granted))
        return Requeue(wait) if wait is not None else None

    # --- One node. ---

    async def _reconcile_node(self, name: str) -> None:
        node = self._nodes.lister.get(name)
        if node is None:
            return
        if self._heartbeats.is_silent(name):
            conditions = plan.unknown_conditions(node, self._clock.now())
            if conditions and await self._is_silent(name):
                await self._make_unknown(node, plan.status_patch(node, conditions))
                # The Node's change brings the key back.
                return
        emptying = self._emptying(node)
        if emptying is Emptying.WAIT:
            zone = self._zones.zone_of(name)
            self._turns.ask(name, zone)
            self.controller.queue.add(ZoneKey(zone))
        wanted = plan.plan_node(node, emptying, self._clock.now())
        if not wanted.empty:
            await self._client.patch(NODES, name, "", Patch(PatchType.MERGE, plan.node_patch(node, wanted)))
        # A turn that came while the patch was on its way has not been used.
        if emptying is Emptying.HAVE and self._turns.has_turn(name):
            self._turns.done(name)
            if wanted.taints is not None:
                self._metrics.evicted(self._zones.zone_of(name))
        if name in self._unready:
            await self._make_not_ready(self._pods.lister.by_index(PODS_BY_NODE, name))

    def _emptying(self, node: Node) -> Emptying:
        name = node.metadata.name or ""
        return plan.plan_emptying(
            node,
            stopped=self._zones.stopped,
            has_turn=self._turns.has_turn(name),
            is_done=self._turns.is_done(name),
        )

    async def _is_silent(self, name: str) -> bool:
        """Ask once more, past the cache: it may be the controller that has heard nothing."""
        try:
            lease = await self._client.get(LEASES, name, LEASE_NAMESPACE)
        except NotFoundError:
            return True
        self._lease_changed(None, lease)
        return self._heartbeats.is_silent(name)

    async def _make_unknown(self, node: Node, body: dict[str, Any]) -> None:
        name = node.metadata.name or ""
        await self._client.patch(NODES, name, "", Patch(PatchType.STRATEGIC, body), _STATUS)
        if plan.ready_status(node) == plan.TRUE:
            self._tell(node, "NodeNotReady", f"Node {name} status is now: NodeNotReady")

    async def _make_not_ready(self, pods: Iterable[Pod]) -> None:
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

    def _tell_news(self, node: Node, reason: str, message: str) -> None:
        if self._news.try_take(self._clock.monotonic()):
            self._tell(node, reason, message)

    def _tell(self, node: Node, reason: str, message: str) -> None:
        about = ObjectReference(NODES.group_version_kind, "", node.metadata.name or "", node.metadata.uid or "")
        self._recorder.event_for(about, NORMAL, reason, message)


def _is_ready(pod: Pod) -> bool:
    return any(item.type == plan.READY and item.status == plan.TRUE for item in pod.status.conditions)
