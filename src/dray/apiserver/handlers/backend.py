"""The dependencies that the handlers of writes share: the store, the clock, the caches and admission."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dray.api.document import Document, GroupResource
from dray.api.errors import InvalidError, RequestEntityTooLargeError
from dray.api.features import FeatureGates
from dray.api.field_errors import FieldErrors
from dray.api.limits import EXPANDED_BYTES_MAX
from dray.api.validation.meta_v1 import validate_object_meta
from dray.apiserver.admission.chain import AdmissionChain
from dray.apiserver.authorization.authorizer import Authorizer
from dray.apiserver.authorization.escalation import check_binding_write, check_role_write
from dray.apiserver.call import Call
from dray.apiserver.document_cache import DocumentCache
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.object_cache import RBAC_GROUP, ObjectCache
from dray.apiserver.object_lookup import ObjectLookup
from dray.apiserver.object_writer import ObjectWriter, PlainWriter
from dray.apiserver.registry.strategy import Strategy, WriteContext
from dray.apiserver.request import Attributes
from dray.lib import processor_time
from dray.lib.clock import Clock
from dray.store.interface import Entry, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """Shared by all handlers of one server."""

    store: Store
    clock: Clock
    gates: FeatureGates
    cache: ObjectCache
    objects: ObjectLookup
    documents: DocumentCache
    admission: AdmissionChain
    # Of resources whose writes are more than replacing a value in the store.
    writers: Mapping[GroupResource, ObjectWriter]
    # Of resources that are deleted with a grace period: the least one if the deletion names none.
    least_graces: Mapping[GroupResource, Callable[[Document], Awaitable[int]]]
    authorizer: Authorizer
    random: random.Random

    def writer(self, endpoint: Endpoint) -> ObjectWriter:
        """Return what writes the changes of a resource."""
        return self.writers.get(endpoint.resource) or PlainWriter(self.store)

    def document(self, endpoint: Endpoint, entry: Entry) -> Document:
        """Return the hub document of an entry; it is shared and must not be changed."""
        if endpoint.completes_stored:
            return endpoint.decode(entry.value, entry.revision)
        return self.documents.document(entry)

    async def least_grace(self, endpoint: Endpoint, old: Document) -> int:
        """Return the seconds that an object gets at least, before it is gone, if the deletion names no grace period."""
        least = self.least_graces.get(endpoint.resource)
        return 0 if least is None else await least(old)

    def encode(self, endpoint: Endpoint, hub: Document, *, bounded: bool = False) -> bytes:
        """Return the value to store; watchers of the write need not parse it.

        A `bounded` one is refused if patches have grown the object beyond what one request could write.
        """
        processor_time.check()
        content = endpoint.content(hub)
        processor_time.check()
        value = endpoint.dump(content)
        self.documents.add(value, content)
        processor_time.check()
        if bounded and len(value) > EXPANDED_BYTES_MAX:
            raise RequestEntityTooLargeError(f"Request entity too large: limit is {EXPANDED_BYTES_MAX}")
        return value

    def context(self, call: Call, namespace: Document | None, now: datetime) -> WriteContext:
        """Return the context of a write for strategies."""

        def allowed(**attributes: Any) -> bool:
            return self.authorizer.authorize(Attributes(user=call.user, **attributes)).allowed

        return WriteContext(
            now, self.gates, call.user, namespace, allowed, call.info.verb, client_address=call.client_address
        )

    def check_escalation(self, call: Call, endpoint: Endpoint, new: Document, old: Document | None) -> None:
        """Refuse a role or binding that grants more than its writer has."""
        if endpoint.resource.group != RBAC_GROUP:
            return
        check = check_binding_write if endpoint.definition.kind.endswith("Binding") else check_role_write
        check(self.cache.rbac, call.user, new, old, self.authorizer.authorize)


def validate_new(endpoint: Endpoint, hub: Document, strategy: Strategy, context: WriteContext) -> None:
    """Refuse a new object with invalid metadata, or that its strategy finds invalid."""
    metadata = hub["metadata"]
    errors: FieldErrors = validate_object_meta(
        metadata, namespaced=endpoint.definition.namespaced, name_rule=strategy.name_rule
    )
    processor_time.check()
    errors += strategy.validate_create(hub, context)
    if errors:
        raise InvalidError(endpoint.resource.group, endpoint.definition.kind, metadata.get("name", ""), errors)
