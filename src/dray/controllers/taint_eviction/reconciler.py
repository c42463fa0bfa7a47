"""The taint eviction controller's hands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dray.api.document import NamespacedName
from dray.api.errors import NotFoundError
from dray.api.types.core_v1 import Node, Pod, Taint
from dray.client.controller import Controller, Requeue, Result
from dray.client.event_recorder import NORMAL, EventRecorder, ObjectReference, Source
from dray.client.interface import Client, DeleteOptions, Patch, PatchType, WriteOptions
from dray.client.objects import key_of
from dray.client.resources import NODES, PODS
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.eviction import EvictionMetrics, disruption_patch
from dray.controllers.kinds import PODS_BY_NODE, node_name_values
from dray.controllers.loop import run_telling
from dray.controllers.taint_eviction import plan
from dray.lib.clock import Clock
from dray.runtime.metrics import Metrics

NAME: Final = "taint_eviction_controller"
SOURCE: Final = "taint-eviction-controller"
WORKERS: Final = 8
_STATUS: Final = WriteOptions(subresource="status")


@dataclass(frozen=True, slots=True)
class PodKey:
    """One Pod; its namesake of later is another."""

    key: NamespacedName
    uid: str


class TaintEvictionController:
    """Runs until cancelled."""

    def __init__(
        self, client: Client, informers: SharedInformerFactory, clock: Clock, *, metrics: Metrics | None = None
    ) -> None:
        self._client = client
        self._clock = clock
        self._metrics = EvictionMetrics(metrics or Metrics(), NAME)
        self._recorder = EventRecorder(client, clock, Source(SOURCE))
        self._departures: plan.Departures[PodKey] = plan.Departures()
        self.controller: Controller[PodKey] = Controller(NAME, self.reconcile, clock, metrics=metrics, workers=WORKERS)
        self._nodes = informers.informer(NODES)
        self._pods = informers.informer(PODS, indexes={PODS_BY_NODE: node_name_values})
        # Only nodes that Pods must leave: most Pods' changes need one look here.
        self._tainted: dict[str, tuple[Taint, ...]] = {}
        self.controller.follow(self._nodes, self._node_changed)
        self.controller.follow(self._pods, self._pod_changed)

    async def run(self) -> None:
        """Evict until cancelled."""
        await run_telling(self.controller, self._recorder)

    # --- What a change wakes. ---

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        node = new if new is not None else old
        assert node is not None
        name = node.metadata.name or ""
        before = self._tainted.pop(name, ())
        after = plan.no_execute_taints(new.spec.taints) if new is not None else ()
        if after:
            self._tainted[name] = after
        # The Pods of a Node that is gone are the garbage collector's.
        if before != after and new is not None:
            for pod in self._pods.lister.by_index(PODS_BY_NODE, name):
                self.controller.queue.add(_key(pod))

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            assert old is not None
            self._departures.cancel(_key(old))
        elif new.spec.node_name in self._tainted and not _is_same(old, new):
            self.controller.queue.add(_key(new))

    # --- One Pod. ---

    async def reconcile(self, key: PodKey) -> Result:
        """Let the Pod be, wait for its time, or evict it."""
        pod = self._pods.lister.get_key(key.key)
        if pod is None or pod.metadata.uid != key.uid or pod.metadata.deletion_timestamp is not None:
            self._departures.cancel(key)
            return None
        stay = plan.stay_seconds(self._tainted.get(pod.spec.node_name or "", ()), pod.spec.tolerations)
        if stay is None:
            if self._departures.cancel(key):
                self._tell(key, f"Cancelling deletion of Pod {key.key}")
            return None
        now = self._clock.monotonic()
        departure = self._departures.plan(key, stay, now)
        if departure.due > now:
            return Requeue(departure.due - now)
        await self._evict(key, pod)
        self._departures.cancel(key)
        self._metrics.deleted(self._clock.monotonic() - departure.due)
        return None

    async def _evict(self, key: PodKey, pod: Pod) -> None:
        body = disruption_patch(pod, plan.CONDITION_REASON, plan.CONDITION_MESSAGE, self._clock.now())
        name, namespace = key.key.name, key.key.namespace
        self._tell(key, f"Marking for deletion Pod {key.key}")
        try:
            if body is not None:
                await self._client.patch(PODS, name, namespace, Patch(PatchType.STRATEGIC, body), _STATUS)
            await self._client.delete(PODS, name, namespace, DeleteOptions(uid=key.uid))
        except NotFoundError:
            return

    def _tell(self, key: PodKey, message: str) -> None:
        about = ObjectReference(PODS.group_version_kind, key.key.namespace, key.key.name, key.uid)
        self._recorder.event_for(about, NORMAL, plan.EVENT_REASON, message)


def _key(pod: Pod) -> PodKey:
    return PodKey(key_of(pod), pod.metadata.uid or "")


def _is_same(old: Pod | None, new: Pod) -> bool:
    return old is not None and old.spec.node_name == new.spec.node_name and old.spec.tolerations == new.spec.tolerations
