"""What every write needs: the store, the clock, the world and admission, in one place."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime

import orjson

from dray.api.document import Document, GroupResource, NamespacedName
from dray.api.errors import InvalidError, NotFoundError
from dray.api.features import FeatureGates
from dray.api.field_errors import FieldErrors
from dray.api.validation.meta_v1 import validate_object_meta
from dray.apiserver.admission import Admission, check_namespace
from dray.apiserver.admission_quota import Quotas
from dray.apiserver.call import Call
from dray.apiserver.document_cache import DocumentCache
from dray.apiserver.endpoint import KEY_ROOT, Endpoint
from dray.apiserver.object_cache import NAMESPACES, PRIORITY_CLASSES, SERVICE_ACCOUNTS, ObjectCache
from dray.apiserver.registry.strategy import Strategy, WriteContext
from dray.lib.clock import Clock
from dray.store.interface import Store


@dataclass(frozen=True, slots=True)
class Services:
    """Shared by all verbs of one server."""

    store: Store
    clock: Clock
    gates: FeatureGates
    cache: ObjectCache
    admission: Admission
    random: random.Random
    documents: DocumentCache
    quotas: Quotas

    async def open_namespace(self, call: Call, endpoint: Endpoint, name: str) -> Document | None:
        """The namespace a new object goes to; it must be there and not be ending."""
        if not endpoint.definition.namespaced:
            return None
        namespace = await self._namespace(call.info.namespace)
        check_namespace(namespace, endpoint.resource, name)
        return namespace

    async def _namespace(self, name: str) -> Document:
        known = self.cache.namespaces.get(name)
        if known is not None:
            return known
        # It may have been created a moment ago, and its event not arrived yet.
        entry = await self.store.get(f"{KEY_ROOT}core/namespaces/{name}")
        if entry is None:
            raise NotFoundError(NAMESPACES, name)
        document: Document = orjson.loads(entry.value)
        return document

    async def preload_pod_references(self, pod: Document, namespace: str) -> None:
        """Look up the service account and priority class of a new Pod if their events have not arrived yet."""
        spec = pod.get("spec") or {}
        account = NamespacedName(namespace, spec.get("serviceAccountName") or "default")
        if account not in self.cache.service_accounts:
            await self._take_in(SERVICE_ACCOUNTS, f"{KEY_ROOT}core/serviceaccounts/{account}")
        priority = spec.get("priorityClassName")
        if priority and priority not in self.cache.priority_classes:
            await self._take_in(PRIORITY_CLASSES, f"{KEY_ROOT}scheduling.k8s.io/priorityclasses/{priority}")

    async def _take_in(self, resource: GroupResource, key: str) -> None:
        entry = await self.store.get(key)
        if entry is not None:
            self.cache.apply(resource, orjson.loads(entry.value), deleted=False)

    def encode(self, endpoint: Endpoint, hub: Document) -> bytes:
        """The value to store; whoever hears of the write is spared parsing it."""
        content = endpoint.content(hub)
        value = endpoint.dump(content)
        self.documents.written(value, content)
        return value

    def context(self, call: Call, namespace: Document | None, now: datetime) -> WriteContext:
        """What a strategy may know about this write."""
        return self.admission.context(call, namespace, now, self.gates)

    def known_namespace(self, name: str) -> Document | None:
        """The namespace as last seen."""
        return self.cache.namespaces.get(name) if name else None


def validate_new(endpoint: Endpoint, hub: Document, strategy: Strategy, context: WriteContext) -> None:
    """Refuse a new object that breaks rules of metadata or of its kind."""
    metadata = hub["metadata"]
    errors: FieldErrors = validate_object_meta(
        metadata, namespaced=endpoint.definition.namespaced, name_rule=strategy.name_rule
    )
    errors += strategy.validate_create(hub, context)
    if errors:
        raise InvalidError(endpoint.resource.group, endpoint.definition.kind, metadata.get("name", ""), errors)
