"""The Pods of the node: what the agent keeps of each, and what resource managers may ask about them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from dray.api.document import UID, Document, GroupVersionKind, NamespacedName
from dray.api.types.core_v1 import Pod
from dray.client.event_recorder import ObjectReference, reference_to
from dray.client.objects import key_of
from dray.node.agent.admission import own_requests
from dray.node.agent.pod.containers import ContainerKind
from dray.node.agent.pod.machine import PodMachine
from dray.node.runtimes.runtime import ContainerRecord

_FIELDS: Final = {
    ContainerKind.INIT: "initContainers",
    ContainerKind.SIDECAR: "initContainers",
    ContainerKind.REGULAR: "containers",
    ContainerKind.EPHEMERAL: "ephemeralContainers",
}
POD_KIND: Final = GroupVersionKind("", "v1", "Pod")


@dataclass(slots=True)
class PodWorker:
    """One Pod with its lifecycle, its running operations, and its reported status."""

    pod: Pod
    machine: PodMachine
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    preparing: asyncio.Task[Any] | None = None
    # By container name.
    probes: dict[str, list[asyncio.Task[Any]]] = field(default_factory=dict)
    # By container ID.
    stopping: dict[str, asyncio.Task[Any]] = field(default_factory=dict)
    timer: asyncio.Task[Any] | None = None
    timer_at: datetime | None = None
    # See `ReportedPod`.
    reported_status: Document | None = None
    reported_version: str = ""
    sent_status: Document | None = None
    overwritten: bool = False
    delete_requested: bool = False
    status_source: Callable[[PodWorker], Document | None] = lambda _worker: None
    # The Pod has passed the checks of its admission, and waits for the resource managers.
    fits: bool = False
    _requests: Mapping[str, int] | None = None

    @property
    def uid(self) -> str:
        """The Pod's UID."""
        return self.pod.metadata.uid or ""

    def reference(self, container: str = "") -> ObjectReference:
        """Return the object reference of an event about the Pod or one of its containers."""
        path = ""
        if container:
            state = self.machine.containers.by_name.get(container)
            path = f"spec.{_FIELDS[state.kind] if state is not None else 'containers'}{{{container}}}"
        return reference_to(POD_KIND, self.pod, field_path=path)

    def requests(self) -> Mapping[str, int]:
        """Return the Pod's requests for node resources; they do not change after admission."""
        if self._requests is None:
            self._requests = own_requests(self.pod)
        return self._requests

    def status(self) -> Document | None:
        """Return the status to report."""
        return self.status_source(self)

    def cancel(self) -> None:
        """Cancel every operation for the Pod; containers keep running."""
        for task in tuple(self.tasks):
            task.cancel()


class PodManager:
    """The Pods of the node by UID. Implements `PodSource`; only `PodWorkers` changes it."""

    def __init__(self) -> None:
        self.workers: dict[str, PodWorker] = {}
        # Whether every Pod that the API server has for this node is in `workers`.
        self.synced = False
        # Containers that were running when the agent started, and init containers that had completed, as (Pod UID,
        # name): they need no new resources.
        self.settled_at_start: set[tuple[str, str]] = set()
        # The runs that the runtime had when the agent started.
        self.found_at_start: list[ContainerRecord] = []
        # The UIDs of Pods that had containers when the agent started: an earlier agent has admitted them.
        self.admitted_before: set[str] = set()
        # The Pod UIDs of running containers without a Pod, one for each container.
        self._orphans: list[str] = []
        self._listeners: list[Callable[[], None]] = []
        self._change_listeners: list[Callable[[PodWorker], None]] = []
        self._deletion_listeners: list[Callable[[PodWorker], None]] = []

    def active(self) -> tuple[Pod, ...]:
        """Return the admitted Pods whose containers may still run."""
        return tuple(worker.pod for worker in self.workers.values() if worker.machine.admitted)

    def all(self) -> tuple[Pod, ...]:
        """Return every Pod."""
        return tuple(worker.pod for worker in self.workers.values())

    def get(self, uid: str) -> Pod | None:
        """Return the Pod with the UID."""
        worker = self.workers.get(uid)
        return worker.pod if worker is not None else None

    def reported(self) -> Iterable[PodWorker]:
        """Return every Pod with its status."""
        return self.workers.values()

    def reported_pod(self, uid: str) -> PodWorker | None:
        """Return the Pod with the UID and its status."""
        return self.workers.get(uid)

    def find(self, key: NamespacedName) -> PodWorker | None:
        """Return the newest worker for a Pod of that name; older ones may still be terminating."""
        return next((worker for worker in reversed(self.workers.values()) if key_of(worker.pod) == key), None)

    def orphans(self) -> frozenset[str]:
        """Return the UIDs of deleted Pods whose containers may still run."""
        return frozenset(self._orphans)

    def known_uids(self) -> frozenset[UID] | None:
        """Return the UIDs of all Pods and orphans; None before the Pods are synced."""
        if not self.synced:
            return None
        return frozenset(map(UID, self.workers)).union(map(UID, self._orphans))

    def on_removed(self, listener: Callable[[], None]) -> None:
        """Call the listener when Pods that may hold resources are gone without having been released."""
        self._listeners.append(listener)

    def on_pod_changed(self, listener: Callable[[PodWorker], None]) -> None:
        """Call the listener when a Pod or its status may have changed."""
        self._change_listeners.append(listener)

    def on_pod_deleted(self, listener: Callable[[PodWorker], None]) -> None:
        """Call the listener when a Pod is gone and its containers have ended."""
        self._deletion_listeners.append(listener)

    def notify_changed(self, worker: PodWorker) -> None:
        """Note that a Pod or its status may have changed."""
        for listener in self._change_listeners:
            listener(worker)

    def remove(self, worker: PodWorker) -> None:
        """Remove a Pod that is gone and whose containers have ended."""
        self.workers.pop(worker.uid, None)
        for listener in self._deletion_listeners:
            listener(worker)

    def set_synced(self, orphans: Iterable[ContainerRecord]) -> None:
        """Note that all Pods are known, and which running containers have none."""
        self.synced = True
        self._orphans = [record.pod_uid for record in orphans]
        self._notify_removed()

    def remove_orphan(self, pod_uid: str) -> None:
        """Note that a container without a Pod has ended."""
        self._orphans.remove(pod_uid)
        self._notify_removed()

    def _notify_removed(self) -> None:
        for listener in self._listeners:
            listener()
