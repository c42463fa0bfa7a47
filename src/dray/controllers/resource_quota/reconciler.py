"""Keeps the usage in the status of ResourceQuotas equal to what the namespaces contain."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from dray.api.document import Document, GroupResource, NamespacedName
from dray.api.errors import APIError, NotFoundError
from dray.api.quota.names import CLAIMS, MEASURED_KINDS, PODS, ClassNames
from dray.api.quota.usage import Usage, claim_usage, counted_usage, extended_resource_pod, is_charged_to, pod_usage
from dray.api.types.core_v1 import Pod, ResourceQuota
from dray.api.types.resource_v1 import DeviceClass, ResourceClaim
from dray.client import resources
from dray.client.controller import Requeue, Result
from dray.client.indexer import BY_OWNER_UID
from dray.client.interface import IncompleteDiscoveryError, ServedResource
from dray.client.objects import key_of, owner_uids
from dray.client.resources import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_QUOTAS
from dray.client.shared_informers import SharedInformer, SharedInformerFactory
from dray.controllers.reconciler import ControllerContext, Reconciler, newest
from dray.controllers.resource_quota.plan import plan_quota
from dray.controllers.resource_quota.usage import QuotaUsage

# Everything is recounted this often, as in Kubernetes; this also notices Pods stuck in deletion.
RESYNC_SECONDS: Final = 300.0
# How often discovery is repeated for a counted kind that is not served.
DISCOVERY_SECONDS: Final = 5.0
# How long to wait for the first list of a newly counted kind before checking again.
SYNC_SECONDS: Final = 0.05
# In cached objects of kinds that take ports or storage: their usage, instead of all their fields.
_USAGE: Final = "usage"


class ResourceQuotaController(Reconciler[NamespacedName]):
    """Recounts ResourceQuotas incrementally; its whole state can be rebuilt from the API server."""

    # The name of the queue in Kubernetes.
    name = "resourcequota_primary"
    workers = 5

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        informers, gates = context.informers, context.gates
        self._extended = gates.enabled("DRAExtendedResource")
        self._follows_allocation = gates.enabled("QuotaFollowsAllocation")
        self._usages: dict[NamespacedName, QuotaUsage] = {}
        self._by_namespace: dict[str, set[NamespacedName]] = {}
        # The usage last written here, and when another writer was last seen to change it.
        self._written: dict[NamespacedName, Any] = {}
        self._touched: dict[NamespacedName, float] = {}
        self._class_names = ClassNames()
        # Informers of kinds that are only counted; not shared, since they cache names alone.
        self._counting = SharedInformerFactory(context.client, context.clock, context.rng)
        self._counted: dict[GroupResource, SharedInformer[Document]] = {}
        self._served: dict[GroupResource, ServedResource] = {}
        self._quotas = informers.informer(RESOURCE_QUOTAS)
        self._pods = informers.informer(resources.PODS)
        self.controller.follow(self._quotas, self._quota_changed)
        self.controller.follow(self._pods, self._pod_changed, needed_while=self._by_namespace)
        self._claims: SharedInformer[ResourceClaim] | None = None
        self._classes: SharedInformer[DeviceClass] | None = None
        if gates.enabled("DynamicResourceAllocation"):
            self._claims = informers.informer(RESOURCE_CLAIMS, indexes={BY_OWNER_UID: owner_uids})
            self._classes = informers.informer(DEVICE_CLASSES)
            self.controller.follow(self._claims, self._claim_changed, needed_while=self._by_namespace)
            self.controller.follow(self._classes, self._class_changed)

    def background_tasks(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """Run the informers of counted kinds, and recount periodically."""
        return {"informers of counted kinds": self._counting.run(), "quota resync": self._resync()}

    async def reconcile(self, key: NamespacedName) -> Result:
        """Write the usage of one quota."""
        quota = self._quotas.lister.get_key(key)
        if quota is None:
            self._forget(key)
            return None
        usage = self._usage(key, quota)
        unknown = await self._unknown_kinds(usage)
        unsynced = any(not self._counted[kind].synced for kind in usage.counted_kinds() - unknown)
        if unsynced:
            return Requeue(SYNC_SECONDS)
        freed = usage.freed()
        quiet = self._clock.monotonic() - self._touched.get(key, 0.0)
        plan = plan_quota(quota, usage.used(unknown), freed, quiet)
        if plan.status is not None:
            await self._write(key, msgspec.structs.replace(quota, status=plan.status))
        if plan.requeue_seconds is None:
            usage.settle(freed)
            return Requeue(DISCOVERY_SECONDS) if unknown else None
        return Requeue(plan.requeue_seconds)

    async def _write(self, key: NamespacedName, quota: ResourceQuota) -> None:
        # Set first: the watch event may arrive before the response.
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

    # --- Usages. ---

    def _usage(self, key: NamespacedName, quota: ResourceQuota) -> QuotaUsage:
        usage = self._usages.get(key)
        if usage is None or usage.spec != quota.spec:
            usage = QuotaUsage(quota, extended=self._extended)
            self._count_existing(usage, key.namespace)
            self._usages[key] = usage
            self._by_namespace.setdefault(key.namespace, set()).add(key)
        return usage

    def _forget(self, key: NamespacedName) -> None:
        if self._usages.pop(key, None) is None:
            return
        keys = self._by_namespace[key.namespace]
        keys.discard(key)
        if not keys:
            del self._by_namespace[key.namespace]
        self._written.pop(key, None)
        self._touched.pop(key, None)
        wanted = {kind for usage in self._usages.values() for kind in usage.counted_kinds()}
        self._stop_counting(self._counted.keys() - wanted)

    def _recount(self) -> None:
        """Discard all usages and count again."""
        for key in tuple(self._usages):
            del self._usages[key]
            self.controller.queue.add(key)

    def _count_existing(self, usage: QuotaUsage, namespace: str) -> None:
        if usage.measures(PODS):
            for pod in self._pods.lister.list(namespace):
                usage.put(PODS, key_of(pod), self._usage_of_pod(pod), pod)
        if usage.measures(CLAIMS) and self._claims is not None:
            for claim in self._claims.lister.list(namespace):
                usage.put(CLAIMS, key_of(claim), self._usage_of_claim(claim))
        for kind in sorted(usage.counted_kinds()):
            informer = self._counted.get(kind)
            for item in informer.lister.list(namespace) if informer is not None else ():
                usage.put(kind, key_of(item), _usage_of_counted(kind, item))

    def _usage_of_pod(self, pod: Pod) -> Usage:
        return pod_usage(pod, self._mapping(), self._clock.now())

    def _usage_of_claim(self, claim: ResourceClaim) -> Usage:
        return claim_usage(
            claim, self._mapping(), self._charged_to_owner(claim), follows_allocation=self._follows_allocation
        )

    def _charged_to_owner(self, claim: ResourceClaim) -> Usage | None:
        owner = extended_resource_pod(claim) if self._extended else None
        pod = self._pods.lister.get(owner.name, claim.metadata.namespace or "") if owner is not None else None
        if pod is None or not is_charged_to(claim, pod, tuple(self._extended_resource_claims(pod))):
            return None
        return self._usage_of_pod(pod)

    def _extended_resource_claims(self, pod: Pod) -> Iterator[ResourceClaim]:
        if self._claims is not None and self._extended:
            for claim in self._claims.lister.owned_by(pod.metadata.uid or ""):
                if extended_resource_pod(claim) is not None:
                    yield claim

    def _mapping(self) -> ClassNames | None:
        return self._class_names if self._extended else None

    # --- Kinds that are counted by number alone. ---

    async def _unknown_kinds(self, usage: QuotaUsage) -> frozenset[GroupResource]:
        """Return the counted kinds that are not served; start informers of the others."""
        wanted = usage.counted_kinds()
        if not wanted <= self._served.keys():
            served = await self._discover(wanted)
            self._served = {GroupResource(item.group, item.plural): item for item in served if item.preferred}
        unknown = {kind for kind in wanted if kind not in self._served or not self._served[kind].namespaced}
        for kind in sorted(wanted - unknown):
            if kind not in self._counted:
                self._count(kind)
        self._stop_counting(unknown)
        return frozenset(unknown)

    async def _discover(self, wanted: frozenset[GroupResource]) -> tuple[ServedResource, ...]:
        """Return what is served; raise if a wanted kind may be among what could not be read."""
        try:
            return await self._client.resources(complete=True)
        except IncompleteDiscoveryError as error:
            if not wanted <= {GroupResource(item.group, item.plural) for item in error.found}:
                raise
            return error.found

    def _count(self, kind: GroupResource) -> None:
        measured = kind in MEASURED_KINDS
        transform: Callable[[Document], Document] = partial(_with_usage, kind) if measured else _name_alone
        informer = self._counting.transformed(self._served[kind].resource(metadata_only=not measured), transform)
        self._counted[kind] = informer
        informer.add_handler(lambda old, new: self._counted_changed(kind, old, new))

    def _stop_counting(self, kinds: Iterable[GroupResource]) -> None:
        for kind in kinds:
            informer = self._counted.pop(kind, None)
            if informer is not None:
                self._counting.stop(informer.resource)

    # --- Event handlers. ---

    def _quota_changed(self, old: ResourceQuota | None, new: ResourceQuota | None) -> None:
        quota = newest(old, new)
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
        pod = newest(old, new)
        if (pod.metadata.namespace or "") not in self._by_namespace:
            return
        if new is None:
            self._enter(pod, lambda counted: counted.remove(PODS, key_of(pod)), PODS)
        else:
            usage = self._usage_of_pod(new)
            self._enter(new, lambda counted: counted.put(PODS, key_of(new), usage, new), PODS)
        for claim in tuple(self._extended_resource_claims(pod)):
            self._enter_claim(claim)

    def _claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        claim = newest(old, new)
        if (claim.metadata.namespace or "") not in self._by_namespace:
            return
        if new is None:
            self._enter(claim, lambda counted: counted.remove(CLAIMS, key_of(claim)), CLAIMS)
        else:
            self._enter_claim(new)
        owner = extended_resource_pod(claim)
        if owner is not None and self._claims is not None:
            # Which claim of a Pod is charged to it may depend on this one.
            for sibling in self._claims.lister.owned_by(owner.uid):
                self._enter_claim(sibling)

    def _enter_claim(self, claim: ResourceClaim) -> None:
        usage = self._usage_of_claim(claim)
        self._enter(claim, lambda counted: counted.put(CLAIMS, key_of(claim), usage), CLAIMS)

    def _counted_changed(self, kind: GroupResource, old: Document | None, new: Document | None) -> None:
        item = newest(old, new)
        if new is None:
            self._enter(item, lambda counted: counted.remove(kind, key_of(item)), kind)
        else:
            usage = _usage_of_counted(kind, new)
            self._enter(item, lambda counted: counted.put(kind, key_of(item), usage), kind)

    def _enter(self, obj: Any, write: Callable[[QuotaUsage], bool], kind: GroupResource) -> None:
        for key in self._keys(key_of(obj).namespace):
            usage = self._usages.get(key)
            if usage is not None and usage.measures(kind) and write(usage):
                self.controller.queue.add(key)

    def _keys(self, namespace: str) -> Iterable[NamespacedName]:
        return tuple(self._by_namespace.get(namespace, ()))


def _name_alone(document: Document) -> Document:
    metadata = document["metadata"]
    return {"metadata": {name: metadata.get(name) for name in ("namespace", "name", "uid", "resourceVersion")}}


def _with_usage(kind: GroupResource, document: Document) -> Document:
    return _name_alone(document) | {_USAGE: counted_usage(kind, document)}


def _usage_of_counted(kind: GroupResource, item: Document) -> Usage:
    usage: Usage | None = item.get(_USAGE)
    return counted_usage(kind, item) if usage is None else usage
