"""The quota controller's hands."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from dray.api.document import Document, GroupResource, NamespacedName
from dray.api.errors import APIError, NotFoundError
from dray.api.features import FeatureGates
from dray.api.quota.names import CLAIMS, PODS, ClassNames, count_names
from dray.api.quota.usage import ONE, Usage, claim_usage, extended_resource_pod, is_charged_to, pod_usage
from dray.api.types.core_v1 import Pod, ResourceQuota
from dray.api.types.resource_v1 import DeviceClass, ResourceClaim
from dray.client import resources
from dray.client.controller import Controller, Requeue, Result
from dray.client.indexer import BY_OWNER_UID, owner_uids
from dray.client.interface import Client, ServedResource
from dray.client.objects import key_of
from dray.client.resources import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_QUOTAS
from dray.client.shared_informers import SharedInformer, SharedInformerFactory
from dray.controllers.resource_quota.plan import plan_quota
from dray.controllers.resource_quota.usage import Book
from dray.lib.clock import Clock
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup

# The name of Kubernetes' queue of quotas.
NAME: Final = "resourcequota_primary"
WORKERS: Final = 5
# Everything is recounted this often, as in Kubernetes; Pods whose end is overdue are noticed then.
RESYNC_SECONDS: Final = 300.0
# How often it is asked whether a kind that a quota counts is served by now.
DISCOVERY_SECONDS: Final = 5.0
# How long a first list of a newly counted kind may take before it is looked for again.
SYNC_SECONDS: Final = 0.05


class ResourceQuotaController:
    """Runs until cancelled; everything it knows can be rebuilt from the server."""

    def __init__(
        self,
        client: Client,
        informers: SharedInformerFactory,
        clock: Clock,
        *,
        gates: FeatureGates | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._client = client
        self._clock = clock
        gates = gates or FeatureGates()
        self._extended = gates.enabled("DRAExtendedResource")
        self._books: dict[NamespacedName, Book] = {}
        self._by_namespace: dict[str, set[NamespacedName]] = {}
        # The usage last written here, and when somebody else was seen to have changed it.
        self._written: dict[NamespacedName, Any] = {}
        self._touched: dict[NamespacedName, float] = {}
        self._class_names = ClassNames()
        # Informers of what is only counted: kept apart, since they hold names alone.
        self._counting = SharedInformerFactory(client, clock, random.Random())  # noqa: S311 - spreads load, guards nothing
        self._counted: dict[GroupResource, SharedInformer[Document]] = {}
        self._served: dict[GroupResource, ServedResource] = {}
        self.controller: Controller[NamespacedName] = Controller(
            NAME, self.reconcile, clock, metrics=metrics, workers=WORKERS
        )
        self._quotas = informers.informer(RESOURCE_QUOTAS)
        self._pods = informers.informer(resources.PODS)
        self.controller.follow(self._quotas, self._quota_changed)
        self.controller.follow(self._pods, self._pod_changed)
        self._claims: SharedInformer[ResourceClaim] | None = None
        self._classes: SharedInformer[DeviceClass] | None = None
        if gates.enabled("DynamicResourceAllocation"):
            self._claims = informers.informer(RESOURCE_CLAIMS, indexes={BY_OWNER_UID: owner_uids})
            self._classes = informers.informer(DEVICE_CLASSES)
            self.controller.follow(self._claims, self._claim_changed)
            self.controller.follow(self._classes, self._class_changed)

    async def run(self) -> None:
        """Keep usages right until cancelled."""
        async with TaskGroup(NAME) as group:
            group.spawn(self._counting.run(), "informers of counted kinds")
            group.spawn(self._resync(), "quota resync")
            await self.controller.run()

    async def reconcile(self, key: NamespacedName) -> Result:
        """Write one quota's usage."""
        quota = self._quotas.lister.get_key(key)
        if quota is None:
            self._forget(key)
            return None
        book = self._book(key, quota)
        unknown = await self._unknown_kinds(book)
        unsynced = any(not self._counted[kind].synced for kind in book.counted() - unknown)
        if unsynced:
            return Requeue(SYNC_SECONDS)
        freed = book.freed()
        quiet = self._clock.monotonic() - self._touched.get(key, 0.0)
        plan = plan_quota(quota, book.used(unknown), freed, quiet)
        if plan.status is not None:
            await self._write(key, msgspec.structs.replace(quota, status=plan.status))
        if plan.again_seconds is None:
            book.settled(freed)
            return Requeue(DISCOVERY_SECONDS) if unknown else None
        return Requeue(plan.again_seconds)

    async def _write(self, key: NamespacedName, quota: ResourceQuota) -> None:
        # First, since the watch may be faster with the news than the answer.
        self._written[key] = quota.status.used
        try:
            await self._client.update_status(RESOURCE_QUOTAS, quota)
        except NotFoundError:
            return
        except APIError:
            self._written.pop(key, None)
            raise

    async def _resync(self) -> None:
        while True:
            await self._clock.sleep(RESYNC_SECONDS)
            self._served.clear()
            self._recount()

    # --- Accounts. ---

    def _book(self, key: NamespacedName, quota: ResourceQuota) -> Book:
        book = self._books.get(key)
        if book is None or book.spec != quota.spec:
            book = Book(quota, extended=self._extended)
            self._fill(book, key.namespace)
            self._books[key] = book
            self._by_namespace.setdefault(key.namespace, set()).add(key)
        return book

    def _forget(self, key: NamespacedName) -> None:
        if self._books.pop(key, None) is None:
            return
        keys = self._by_namespace[key.namespace]
        keys.discard(key)
        if not keys:
            del self._by_namespace[key.namespace]
        self._written.pop(key, None)
        self._touched.pop(key, None)
        wanted = {kind for book in self._books.values() for kind in book.counted()}
        self._stop_counting(self._counted.keys() - wanted)

    def _recount(self) -> None:
        """Start all accounts afresh."""
        for key in tuple(self._books):
            del self._books[key]
            self.controller.queue.add(key)

    def _fill(self, book: Book, namespace: str) -> None:
        if book.measures(PODS):
            for pod in self._pods.lister.list(namespace):
                book.put(PODS, key_of(pod), self._usage_of_pod(pod), pod)
        if book.measures(CLAIMS) and self._claims is not None:
            for claim in self._claims.lister.list(namespace):
                book.put(CLAIMS, key_of(claim), self._usage_of_claim(claim))
        for kind in book.counted():
            informer = self._counted.get(kind)
            for item in informer.lister.list(namespace) if informer is not None else ():
                book.put(kind, key_of(item), _counted_once(kind))

    def _usage_of_pod(self, pod: Pod) -> Usage:
        return pod_usage(pod, self._mapping(), self._clock.now())

    def _usage_of_claim(self, claim: ResourceClaim) -> Usage:
        return claim_usage(claim, self._mapping(), self._charged_to_owner(claim))

    def _charged_to_owner(self, claim: ResourceClaim) -> Usage | None:
        owner = extended_resource_pod(claim) if self._extended else None
        pod = self._pods.lister.get(owner.name, claim.metadata.namespace or "") if owner is not None else None
        if pod is None or not is_charged_to(claim, pod, tuple(self._special_claims(pod))):
            return None
        return self._usage_of_pod(pod)

    def _special_claims(self, pod: Pod) -> Iterator[ResourceClaim]:
        if self._claims is not None and self._extended:
            for claim in self._claims.lister.owned_by(pod.metadata.uid or ""):
                if extended_resource_pod(claim) is not None:
                    yield claim

    def _mapping(self) -> ClassNames | None:
        return self._class_names if self._extended else None

    # --- Kinds that are counted by number alone. ---

    async def _unknown_kinds(self, book: Book) -> frozenset[GroupResource]:
        """The kinds that are not served; the others are followed from now on."""
        wanted = book.counted()
        if not wanted <= self._served.keys():
            served = await self._client.resources()
            self._served = {GroupResource(item.group, item.plural): item for item in served if item.preferred}
        unknown = {kind for kind in wanted if kind not in self._served or not self._served[kind].namespaced}
        for kind in wanted - unknown:
            if kind not in self._counted:
                self._count(kind)
        self._stop_counting(unknown)
        return frozenset(unknown)

    def _count(self, kind: GroupResource) -> None:
        informer = self._counting.transformed(self._served[kind].resource(metadata_only=True), _name_alone)
        self._counted[kind] = informer
        informer.add_handler(lambda old, new: self._counted_changed(kind, old, new))

    def _stop_counting(self, kinds: Iterable[GroupResource]) -> None:
        for kind in kinds:
            informer = self._counted.pop(kind, None)
            if informer is not None:
                self._counting.stop(informer.resource)

    # --- What a change wakes. ---

    def _quota_changed(self, old: ResourceQuota | None, new: ResourceQuota | None) -> None:
        quota = new if new is not None else old
        assert quota is not None
        key = key_of(quota)
        changed = new is not None and (old is None or new.status.used != old.status.used)
        if changed and quota.status.used != self._written.get(key):
            self._touched[key] = self._clock.monotonic()
        self.controller.queue.add(key)

    def _class_changed(self, _old: DeviceClass | None, _new: DeviceClass | None) -> None:
        assert self._classes is not None
        names = ClassNames.of(self._classes.lister.list())
        if names != self._class_names:
            self._class_names = names
            self._recount()

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new if new is not None else old
        assert pod is not None
        if (pod.metadata.namespace or "") not in self._by_namespace:
            return
        if new is None:
            self._enter(pod, lambda book: book.remove(PODS, key_of(pod)), PODS)
        else:
            usage = self._usage_of_pod(new)
            self._enter(new, lambda book: book.put(PODS, key_of(new), usage, new), PODS)
        for claim in tuple(self._special_claims(pod)):
            self._enter_claim(claim)

    def _claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        claim = new if new is not None else old
        assert claim is not None
        if (claim.metadata.namespace or "") not in self._by_namespace:
            return
        if new is None:
            self._enter(claim, lambda book: book.remove(CLAIMS, key_of(claim)), CLAIMS)
        else:
            self._enter_claim(new)
        owner = extended_resource_pod(claim)
        if owner is not None and self._claims is not None:
            # Whether another claim of the same Pod has to pay may depend on this one.
            for sibling in self._claims.lister.owned_by(owner.uid):
                self._enter_claim(sibling)

    def _enter_claim(self, claim: ResourceClaim) -> None:
        usage = self._usage_of_claim(claim)
        self._enter(claim, lambda book: book.put(CLAIMS, key_of(claim), usage), CLAIMS)

    def _counted_changed(self, kind: GroupResource, old: Document | None, new: Document | None) -> None:
        item = new if new is not None else old
        assert item is not None
        if new is None:
            self._enter(item, lambda book: book.remove(kind, key_of(item)), kind)
        else:
            self._enter(item, lambda book: book.put(kind, key_of(item), _counted_once(kind)), kind)

    def _enter(self, obj: Any, write: Callable[[Book], bool], kind: GroupResource) -> None:
        for key in self._keys(key_of(obj).namespace):
            book = self._books.get(key)
            if book is not None and book.measures(kind) and write(book):
                self.controller.queue.add(key)

    def _keys(self, namespace: str) -> Iterable[NamespacedName]:
        return tuple(self._by_namespace.get(namespace, ()))


def _name_alone(document: Document) -> Document:
    metadata = document["metadata"]
    return {"metadata": {name: metadata.get(name) for name in ("namespace", "name", "uid", "resourceVersion")}}


def _counted_once(kind: GroupResource) -> Usage:
    return dict.fromkeys(count_names(kind), ONE)
