"""Evictions by controllers: the deletion of a Pod, its event and its metrics."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from dray.api.document import NamespacedName
from dray.api.errors import NotFoundError
from dray.api.types.core_v1 import Pod
from dray.client.event_recorder import NORMAL, EventRecorder, ObjectReference
from dray.client.interface import Client, DeleteOptions, Patch, PatchType, WriteOptions
from dray.client.objects import key_of
from dray.client.resources import PODS
from dray.controllers.disruption_target import disruption_patch
from dray.runtime.metrics import Metrics

_STATUS: Final = WriteOptions(subresource="status")
_LATENCY_BUCKETS: Final = (0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 30, 60, 120, 180, 240)


@dataclass(frozen=True, slots=True)
class EvictionKey:
    """One Pod by name and uid: a later Pod of the same name is another key."""

    key: NamespacedName
    uid: str

    @classmethod
    def of(cls, pod: Pod) -> EvictionKey:
        """Return the Pod's key."""
        return cls(key_of(pod), pod.metadata.uid or "")


@dataclass(frozen=True, slots=True)
class EvictionReason:
    """The texts of one controller's evictions."""

    event_reason: str
    condition_reason: str
    condition_message: str


class PodEvictor:
    """Deletes Pods for one controller, with an event and the condition DisruptionTarget."""

    def __init__(self, client: Client, recorder: EventRecorder, reason: EvictionReason) -> None:
        self._client = client
        self._recorder = recorder
        self._reason = reason

    async def evict(self, key: EvictionKey, pod: Pod, message: str, now: datetime) -> bool:
        """Delete the Pod after writing the reason into its status; return whether it still existed."""
        reason = self._reason
        body = disruption_patch(pod, reason.condition_reason, reason.condition_message, now)
        name, namespace = key.key.name, key.key.namespace
        self.record(key, message)
        try:
            if body is not None:
                await self._client.patch(PODS, name, namespace, Patch(PatchType.STRATEGIC, body), _STATUS)
            await self._client.delete(PODS, name, namespace, DeleteOptions(uid=key.uid))
        except NotFoundError:
            return False
        return True

    def record(self, key: EvictionKey, message: str) -> None:
        """Emit an event about the Pod."""
        about = ObjectReference(PODS.group_version_kind, key.key.namespace, key.key.name, key.uid)
        self._recorder.event_for(about, NORMAL, self._reason.event_reason, message)


class EvictionMetrics:
    """Counts deleted Pods and measures the delay; `subsystem` names the controller."""

    def __init__(self, metrics: Metrics, subsystem: str) -> None:
        self._deletions = metrics.counter(f"{subsystem}_pod_deletions_total", "Pods deleted by the controller")
        self._latency = metrics.histogram(
            f"{subsystem}_pod_deletion_duration_seconds",
            "Latency, in seconds, between the time when a Pod should be deleted and its deletion",
            buckets=_LATENCY_BUCKETS,
        )

    def deleted(self, delay_seconds: float) -> None:
        """Count a deleted Pod, so many seconds after it was due."""
        self._deletions.inc()
        self._latency.observe(max(delay_seconds, 0.0))
