"""Keeps EndpointSlices and Endpoints of Services with a selector, and mirrors Endpoints of Services without one."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, ClassVar, Final

from dray.api.document import Document, NamespacedName
from dray.api.errors import AlreadyExistsError, APIError, NotFoundError
from dray.api.types.core_v1 import Pod
from dray.client.controller import Requeue, Result
from dray.client.errors import ignore_not_found
from dray.client.event_recorder import WARNING
from dray.client.interface import DeleteOptions, Resource
from dray.client.objects import key_of, labels_of, resource_version_of, uid_of
from dray.client.resources import ENDPOINT_SLICES, ENDPOINTS, NODES, PODS, SERVICES
from dray.controllers.reconciler import ControllerContext, Reconciler, newest, own_key
from dray.controllers.service_endpoints import addresses, slices
from dray.runtime.logs import fields

_log = logging.getLogger(__name__)

_ZONE: Final = "topology.kubernetes.io/zone"
_SKIP_MIRROR: Final = "endpointslice.kubernetes.io/skip-mirror"
_LEADER: Final = "control-plane.alpha.kubernetes.io/leader"
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_MANAGED_ENDPOINTS: Final = {"endpoints.kubernetes.io/managed-by": "endpoint-controller"}
_OVER_CAPACITY: Final = "endpoints.kubernetes.io/over-capacity"
# The index of Services with a selector, by namespace.
_WITH_SELECTOR: Final = "with-selector"
# Kubernetes' bounds for Endpoints, and for each subset that is mirrored.
ADDRESSES_MAX: Final = 1000
# Changes of many Pods are written together.
SYNC_SECONDS: Final = 1.0
# When the informer is behind the controller's own writes. Its events enqueue the owner earlier.
STALE_SECONDS: Final = 5.0


class _SliceController(Reconciler[NamespacedName]):
    """What both controllers of slices share: their slices, writes, and the pause between two syncs of an owner."""

    workers = 5
    # The value of the label managed-by.
    manager: ClassVar[str]

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._slices = context.informers.informer(ENDPOINT_SLICES, indexes={slices.SERVICE_NAME_LABEL: _service_keys})
        self._written = slices.WrittenSlices()
        # Monotonic times of the last syncs.
        self._synced: dict[NamespacedName, float] = {}
        self.controller.follow(self._slices, self._slice_changed)

    def _slice_changed(self, old: Document | None, new: Document | None) -> None:
        item = newest(old, new)
        if labels_of(item).get(slices.MANAGED_BY_LABEL) != self.manager:
            return
        key = NamespacedName(key_of(item).namespace, labels_of(item).get(slices.SERVICE_NAME_LABEL) or "")
        self.controller.queue.add(key)

    def _own_slices(self, key: NamespacedName) -> list[Document]:
        found = self._slices.lister.by_index(slices.SERVICE_NAME_LABEL, str(key))
        return [item for item in found if labels_of(item).get(slices.MANAGED_BY_LABEL) == self.manager]

    def _wait_seconds(self, key: NamespacedName) -> float:
        """Return how long a sync has to wait, and start the pause of the next one if it may go on."""
        now = self._clock.monotonic()
        wait = self._synced.get(key, now - SYNC_SECONDS) + SYNC_SECONDS - now
        if wait <= 0:
            self._synced[key] = now
        return wait

    async def _write(self, owner_uid: str, plan: slices.SlicePlan) -> None:
        now = self._clock.monotonic()
        for item in plan.create:
            self._written.wrote(owner_uid, await self._client.create(ENDPOINT_SLICES, item), now)
        for item in plan.update:
            self._written.wrote(owner_uid, await self._client.update(ENDPOINT_SLICES, item), now)
        for item in plan.delete:
            await self._delete(item)
            self._written.deleted(owner_uid, item, now)

    async def _delete(self, item: Document) -> None:
        key = key_of(item)
        options = DeleteOptions(uid=uid_of(item))
        await ignore_not_found(self._client.delete(ENDPOINT_SLICES, key.name, key.namespace, options))


class ServiceEndpointsController(_SliceController):
    """Writes the ready and not ready Pods of each Service to EndpointSlices and Endpoints."""

    name = "endpoint_slice"
    component = "endpoint-slice-controller"
    manager = "endpointslice-controller.k8s.io"

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        informer = context.informers.informer
        self._services = informer(SERVICES, indexes={_WITH_SELECTOR: addresses.selecting_namespaces})
        self._pods, self._nodes = informer(PODS), informer(NODES)
        self._endpoints = informer(ENDPOINTS)
        self.controller.watch(self._services, own_key)
        self.controller.watch(self._endpoints, own_key)
        selecting = self._services.lister.index_values(_WITH_SELECTOR)
        self.controller.follow(self._pods, self._pod_changed, needed_while=selecting)
        self.controller.follow(self._nodes, lambda _old, _new: None)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        namespace = newest(old, new).metadata.namespace or ""
        for service in self._services.lister.by_index(_WITH_SELECTOR, namespace):
            selector = addresses.selector_of(service)
            if any(pod is not None and addresses.is_selected(selector, pod) for pod in (old, new)):
                self.controller.queue.add(key_of(service))

    async def reconcile(self, key: NamespacedName) -> Result:
        """Write what changed; a Service without a selector, or one that is gone, keeps no slices of ours."""
        service = self._services.lister.get_key(key)
        existing = self._own_slices(key)
        selector = addresses.selector_of(service) if service is not None else {}
        if service is None or not selector:
            await self._remove(key, service, existing)
            return None
        if not self._written.are_visible(uid_of(service), existing, self._clock.monotonic()):
            return Requeue(STALE_SECONDS)
        wait = self._wait_seconds(key)
        if wait > 0:
            return Requeue(wait)
        pods = [pod for pod in self._pods.lister.list(key.namespace) if addresses.is_selected(selector, pod)]
        pods.sort(key=lambda pod: pod.metadata.name or "")
        try:
            await self._write(uid_of(service), self._plan(service, pods, existing))
        except APIError as error:
            message = f"Error updating Endpoint Slices for Service {key}: {error}"
            self._recorder.event(SERVICES.group_version_kind, service, WARNING, "FailedToUpdateEndpointSlices", message)
            raise
        await self._write_endpoints(service, pods)
        self._report_unusable(service, pods)
        return None

    def _plan(self, service: Document, pods: list[Pod], existing: list[Document]) -> slices.SlicePlan:
        groups = addresses.slice_groups(service, pods, self._zone)
        family = ((service.get("spec") or {}).get("ipFamilies") or ["IPv4"])[0]
        return slices.plan_slices(self._template(service, pods), groups, existing, addresses.Group(family, ()))

    def _template(self, service: Document, pods: list[Pod]) -> slices.SliceTemplate:
        key = key_of(service)
        labels = {**labels_of(service), slices.SERVICE_NAME_LABEL: key.name, slices.MANAGED_BY_LABEL: self.manager}
        labels.pop(addresses.HEADLESS_LABEL, None)
        if addresses.is_headless(service):
            labels[addresses.HEADLESS_LABEL] = ""
        annotations = {addresses.TRIGGER_TIME: addresses.last_change(service, pods)}
        return slices.SliceTemplate(f"{key.name}-", key.namespace, labels, annotations, _owned_by(SERVICES, service))

    def _zone(self, node_name: str) -> str:
        node = self._nodes.lister.get(node_name) if node_name else None
        return labels_of(node).get(_ZONE) or "" if node is not None else ""

    def _report_unusable(self, service: Document, pods: Iterable[Pod]) -> None:
        names = [pod.metadata.name for pod in pods if addresses.can_serve(pod) and addresses.has_unusable_address(pod)]
        if names:
            message = f"{len(names)} Pods have only addresses that endpoints cannot have, for example {names[0]}"
            self._recorder.event(SERVICES.group_version_kind, service, WARNING, "UnusableAddress", message)

    async def _remove(self, key: NamespacedName, service: Document | None, existing: list[Document]) -> None:
        """Delete what the controller wrote for a Service that has no endpoints of its own any more."""
        for item in existing:
            await self._delete(item)
        endpoints = self._endpoints.lister.get_key(key)
        if endpoints is not None and labels_of(endpoints).items() >= _MANAGED_ENDPOINTS.items() and service is None:
            options = DeleteOptions(uid=uid_of(endpoints))
            await ignore_not_found(self._client.delete(ENDPOINTS, key.name, key.namespace, options))
        if service is None:
            self._synced.pop(key, None)
        for item in existing:
            for owner in item["metadata"].get("ownerReferences") or ():
                self._written.forget(owner.get("uid") or "")

    # --- Endpoints. ---

    async def _write_endpoints(self, service: Document, pods: list[Pod]) -> None:
        key = key_of(service)
        subsets, is_over = addresses.truncated(addresses.plan_subsets(service, pods), ADDRESSES_MAX)
        labels = {**labels_of(service), **_MANAGED_ENDPOINTS}
        if addresses.is_headless(service):
            labels[addresses.HEADLESS_LABEL] = ""
        found = self._endpoints.lister.get_key(key)
        if found is not None and (found.get("subsets") or []) == subsets and labels_of(found) == labels:
            return
        annotations = dict((found or {}).get("metadata", {}).get("annotations") or {})
        annotations[addresses.TRIGGER_TIME] = addresses.last_change(service, pods)
        annotations.pop(_OVER_CAPACITY, None)
        if is_over:
            annotations[_OVER_CAPACITY] = "truncated"
        metadata: Document = {
            "name": key.name,
            "namespace": key.namespace,
            "labels": labels,
            "annotations": annotations,
        }
        if found is not None:
            metadata["resourceVersion"] = resource_version_of(found)
        document = {"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata, "subsets": subsets}
        try:
            await (self._client.update if found is not None else self._client.create)(ENDPOINTS, document)
        except (AlreadyExistsError, NotFoundError) as error:
            # The cache is behind; the event that it waits for enqueues the Service.
            _log.debug("endpoints have changed", extra=fields(service=str(key), error=str(error)))


class EndpointSliceMirroringController(_SliceController):
    """Writes Endpoints that somebody else keeps, for Services without a selector, to EndpointSlices."""

    name = "endpoint_slice_mirroring"
    component = "endpoint-slice-mirroring-controller"
    manager = "endpointslicemirroring-controller.k8s.io"

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._endpoints = context.informers.informer(ENDPOINTS)
        self._services = context.informers.informer(SERVICES)
        self.controller.watch(self._endpoints, own_key)
        self.controller.watch(self._services, own_key)

    async def reconcile(self, key: NamespacedName) -> Result:
        """Mirror the Endpoints, or delete their slices when they are not to be mirrored any more."""
        endpoints, service = self._endpoints.lister.get_key(key), self._services.lister.get_key(key)
        existing = self._own_slices(key)
        if endpoints is None or service is None or not _is_mirrored(endpoints, service):
            for item in existing:
                await self._delete(item)
            self._synced.pop(key, None)
            return None
        if not self._written.are_visible(uid_of(endpoints), existing, self._clock.monotonic()):
            return Requeue(STALE_SECONDS)
        wait = self._wait_seconds(key)
        if wait > 0:
            return Requeue(wait)
        groups = dict(addresses.mirrored_groups(endpoints, ADDRESSES_MAX))
        if not groups:
            for item in existing:
                await self._delete(item)
            return None
        plan = slices.plan_slices(self._template(endpoints), groups, existing, next(iter(groups)))
        await self._write(uid_of(endpoints), plan)
        return None

    def _template(self, endpoints: Document) -> slices.SliceTemplate:
        key = key_of(endpoints)
        labels = {**labels_of(endpoints), slices.SERVICE_NAME_LABEL: key.name, slices.MANAGED_BY_LABEL: self.manager}
        annotations = dict(endpoints["metadata"].get("annotations") or {})
        annotations.pop(_LAST_APPLIED, None)
        return slices.SliceTemplate(f"{key.name}-", key.namespace, labels, annotations, _owned_by(ENDPOINTS, endpoints))


def _is_mirrored(endpoints: Document, service: Document) -> bool:
    if (service.get("spec") or {}).get("selector") or endpoints["metadata"].get("deletionTimestamp"):
        return False
    if labels_of(endpoints).get(_SKIP_MIRROR) == "true":
        return False
    return _LEADER not in (endpoints["metadata"].get("annotations") or {})


def _service_keys(item: Any) -> tuple[str, ...]:
    name = labels_of(item).get(slices.SERVICE_NAME_LABEL)
    return (str(NamespacedName(key_of(item).namespace, name)),) if name else ()


def _owned_by(resource: Resource[Document], owner: Document) -> Document:
    return {
        "apiVersion": resource.group_version.api_version,
        "kind": resource.kind,
        "name": key_of(owner).name,
        "uid": uid_of(owner),
        "controller": True,
        "blockOwnerDeletion": True,
    }
