"""What the claim controllers of both APIs share: the Pods that use a claim, and problems reported to Pods."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from dray.api.types.core_v1 import Pod
from dray.client.event_recorder import WARNING, EventRecorder
from dray.client.interface import Client, ignore_not_found
from dray.client.resources import PODS
from dray.client.shared_informers import SharedInformer
from dray.lib.lru import LRUSet

CREATION_FAILED: Final = "FailedResourceClaimCreation"
# Size of the cache of deleted Pods; a miss costs one live read.
DELETED_MAX: Final = 500

# Returns the Pod of a name, None if there is none.
FindPod: TypeAlias = Callable[[str], Pod | None]


@dataclass(frozen=True, slots=True)
class Problem:
    """Why an entry of a Pod's `resourceClaims` cannot get its claim."""

    entry: str
    message: str

    @property
    def event_message(self) -> str:
        """The text of the Pod's event."""
        return f"PodResourceClaim {self.entry}: {self.message}"


def record_problem(recorder: EventRecorder, pod: Pod, problem: Problem) -> None:
    """Emit the Warning event of a problem."""
    recorder.event(PODS.group_version_kind, pod, WARNING, CREATION_FAILED, problem.event_message)


class ConsumerPods:
    """Looks up the Pods that use a claim.

    Devices are freed when such a Pod is gone, so a Pod that the informer does not have is confirmed by a live read:
    the cache may be stale.
    """

    def __init__(self, client: Client, pods: SharedInformer[Pod]) -> None:
        self._client = client
        self._pods = pods
        # Uids of Pods whose deletion the informer delivered.
        self._deleted: LRUSet[str] = LRUSet(DELETED_MAX)

    def mark_deleted(self, pod: Pod) -> None:
        """Record that the informer delivered the Pod's deletion."""
        self._deleted.add(pod.metadata.uid or "")

    def is_deleted(self, uid: str) -> bool:
        """Return whether the Pod is known to be deleted; False says nothing."""
        return uid in self._deleted

    def cached(self, namespace: str) -> FindPod:
        """Return a lookup in the cache."""
        get = self._pods.lister.get
        return lambda name: get(name, namespace)

    async def confirmed(self, names: Iterable[str], namespace: str) -> FindPod:
        """Return a lookup with live reads of these Pods and cached ones for all others."""
        cached = self.cached(namespace)
        live: dict[str, Pod | None] = {}
        for name in names:
            pod = await ignore_not_found(self._client.get(PODS, name, namespace))
            live[name] = pod
        return lambda name: live[name] if name in live else cached(name)
