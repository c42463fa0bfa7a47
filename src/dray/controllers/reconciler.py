"""The shared half of every controller: what it is built from, its work queue, its workers and its event recorder.

A controller is a subclass of `Reconciler`. Its constructor names the informers it needs and which keys their events
map to; `reconcile` handles one key. `run` and everything around it are here.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec

from dray.api.document import NamespacedName
from dray.api.features import FeatureGates
from dray.api.pod_groups import group_key_of
from dray.client.controller import Controller, Result
from dray.client.event_recorder import EventRecorder, Source
from dray.client.indexer import ImmutableFields
from dray.client.interface import Client
from dray.client.objects import key_of
from dray.client.shared_informers import SharedInformerFactory
from dray.lib.clock import Clock
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

PODS_BY_NODE: Final = "spec.nodeName"
PODS_BY_GROUP: Final = "spec.schedulingGroup.podGroupName"


@dataclass(frozen=True, slots=True)
class ControllerContext:
    """What the controllers of one process share."""

    client: Client
    informers: SharedInformerFactory
    clock: Clock
    # None leaves the work queues unmeasured.
    metrics: Metrics | None = None
    gates: FeatureGates = field(default_factory=FeatureGates)
    # Spreads generated names and retries; no secret depends on it.
    rng: random.Random = field(default_factory=random.Random)


class Reconciler(ABC, Generic[K]):
    """A controller: informers feed its work queue, workers call `reconcile` with one key at a time."""

    # Names the work queue in metrics and log lines.
    name: ClassVar[str]
    workers: ClassVar[int] = 1
    # The source of the controller's events; empty if it emits none.
    component: ClassVar[str] = ""

    def __init__(self, context: ControllerContext) -> None:
        self._client = context.client
        self._clock = context.clock
        self._recorder = EventRecorder(context.client, context.clock, Source(self.component))
        self.controller: Controller[K] = Controller(
            self.name, self.reconcile, context.clock, metrics=context.metrics, workers=self.workers
        )

    @abstractmethod
    async def reconcile(self, key: K) -> Result:
        """Bring the object of one key closer to its spec; raise to retry with backoff."""

    def background_tasks(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """Return what runs beside the workers, by task name."""
        return {}

    async def run(self) -> None:
        """Reconcile until cancelled."""
        async with TaskGroup(self.name) as group:
            if self.component:
                group.spawn(self._recorder.run(), f"{self.name} events")
            for name, work in self.background_tasks().items():
                group.spawn(work, name)
            await self.controller.run()


# --- Work queue keys of controllers that reconcile more than one kind. ---

# Structures and not dataclasses: a work queue hashes each key about ten times.


class PodKey(msgspec.Struct, frozen=True, gc=False):
    """A Pod."""

    key: NamespacedName


class ClaimKey(msgspec.Struct, frozen=True, gc=False):
    """A ResourceClaim."""

    key: NamespacedName


class GroupKey(msgspec.Struct, frozen=True, gc=False):
    """A PodGroup."""

    key: NamespacedName


class NodeKey(msgspec.Struct, frozen=True, gc=False):
    """A Node."""

    name: str


# --- Event handlers and indexes. ---


def own_key(obj: Any) -> tuple[NamespacedName]:
    """Map an object to its own key."""
    return (key_of(obj),)


def newest(old: T | None, new: T | None) -> T:
    """Return the object an event is about: as it is, or as it was before its deletion."""
    obj = new if new is not None else old
    assert obj is not None
    return obj


@ImmutableFields
def pod_group_values(pod: Any) -> tuple[NamespacedName, ...]:
    """Return the Pod's group, for the index `PODS_BY_GROUP`."""
    if pod.spec.scheduling_group is None:
        return ()
    key = group_key_of(pod)
    return () if key is None else (key,)


def node_name_values(pod: Any) -> tuple[str, ...]:
    """Return the Pod's node, for the index `PODS_BY_NODE`."""
    return (pod.spec.node_name,) if pod.spec.node_name else ()
