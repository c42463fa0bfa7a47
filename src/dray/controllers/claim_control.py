"""What the claim controllers of both APIs share: keys, events, and the Pods that use a claim."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, Generic, TypeVar

from dray.api.document import NamespacedName
from dray.api.types.core_v1 import Pod
from dray.client.controller import Requeue, Result
from dray.client.errors import ignore_not_found
from dray.client.event_recorder import WARNING, EventRecorder
from dray.client.indexer import BY_OWNER_UID, IndexFunction
from dray.client.interface import Client, Resource
from dray.client.objects import owner_uids
from dray.client.resources import PODS
from dray.client.shared_informers import SharedInformer
from dray.controllers.claim_problems import FindPod, Problem
from dray.controllers.reconciler import ClaimKey, ControllerContext, GroupKey, PodKey, Reconciler
from dray.lib.lru import LRUSet

C = TypeVar("C")

CREATION_FAILED: Final = "FailedResourceClaimCreation"
# Size of the cache of deleted Pods; a miss costs one live read.
DELETED_MAX: Final = 500
# The informer delivers a Pod within milliseconds, unless its watch has an outage.
CONFIRM_SECONDS: Final = 15.0


def record_problem(recorder: EventRecorder, pod: Pod, problem: Problem) -> None:
    """Emit the Warning event of a problem."""
    recorder.event(PODS.group_version_kind, pod, WARNING, CREATION_FAILED, problem.event_message)


def confirm_again(names: Iterable[str], find_pod: FindPod) -> Result:
    """Return when to look again for Pods that only a live read has found.

    They may come and go while the watch is interrupted: then no event tells that they are gone.
    """
    return Requeue(CONFIRM_SECONDS) if any(find_pod(name) is not None for name in names) else None


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
        # Returns whether the Pod of a uid is known to be deleted; False says nothing.
        self.is_deleted: Final[Callable[[str], bool]] = self._deleted.__contains__

    def mark_deleted(self, pod: Pod) -> None:
        """Record that the informer delivered the Pod's deletion."""
        self._deleted.add(pod.metadata.uid or "")

    def cached(self, namespace: str) -> FindPod:
        """Return a lookup in the cache."""
        return partial(self._pods.lister.get, namespace=namespace)

    async def confirmed(self, names: Iterable[str], namespace: str) -> FindPod:
        """Return a lookup with live reads of these Pods and cached ones for all others."""
        cached = self.cached(namespace)
        live: dict[str, Pod | None] = {}
        for name in names:
            pod = await ignore_not_found(self._client.get(PODS, name, namespace))
            live[name] = pod
        return lambda name: live[name] if name in live else cached(name)


class ClaimReconciler(Reconciler[PodKey | ClaimKey | GroupKey], Generic[C]):
    """Base of the claim controllers: a `PodKey` is a Pod that needs claims, a `ClaimKey` a claim with consumers."""

    # The name in KEP-3063 and in Kubernetes: with both controllers the metrics of their queues add up.
    name = component = "resource_claim"
    workers = 10

    def __init__(
        self, context: ControllerContext, claims: Resource[C], pod_indexes: Mapping[str, IndexFunction]
    ) -> None:
        super().__init__(context)
        self._claims: SharedInformer[C] = context.informers.informer(claims, indexes={BY_OWNER_UID: owner_uids})
        self._pods = context.informers.informer(PODS, indexes=pod_indexes)
        self._consumers = ConsumerPods(context.client, self._pods)
        self.controller.follow(self._claims, self._claim_changed)
        self.controller.follow(self._pods, self._pod_changed)

    async def reconcile(self, key: PodKey | ClaimKey | GroupKey) -> Result:
        """Reconcile one Pod, one PodGroup or one claim."""
        if isinstance(key, ClaimKey):
            return await self._reconcile_claim(key.key)
        if isinstance(key, GroupKey):
            await self._reconcile_group(key.key)
        else:
            await self._reconcile_pod(key.key)
        return None

    @abstractmethod
    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Handle a Pod event."""

    @abstractmethod
    def _claim_changed(self, old: C | None, new: C | None) -> None:
        """Handle a claim event."""

    @abstractmethod
    async def _reconcile_pod(self, key: NamespacedName) -> None:
        """Create and reserve the claims of a Pod."""

    async def _reconcile_group(self, key: NamespacedName) -> None:
        """Create the claims of a PodGroup."""

    @abstractmethod
    async def _reconcile_claim(self, key: NamespacedName) -> Result:
        """Remove finished consumers of a claim, and what only they needed."""
