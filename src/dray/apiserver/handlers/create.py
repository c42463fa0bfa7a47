"""create: decode, prepare, judge, then write a key that must not exist."""

from __future__ import annotations

from typing import Final

from dray.api.document import Document
from dray.api.errors import AlreadyExistsError
from dray.apiserver.admission import Operation
from dray.apiserver.call import Call, DocumentResult, ObjectResult, Result
from dray.apiserver.decoding import decode_object_body
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.handlers.services import Services, validate_new
from dray.apiserver.metadata import generated_name, prepare_new
from dray.apiserver.object_cache import PODS
from dray.apiserver.options import WriteOptions, parse_write_options
from dray.apiserver.ownership import stamp_create
from dray.store.interface import KeyExistsError

# A generated name collides once in 14 million; eight in a row means something else is wrong.
_NAME_ATTEMPTS_MAX: Final = 8


class Creator:
    """Creates objects; one for the whole server."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def create(self, call: Call, endpoint: Endpoint) -> Result:
        """POST to a collection."""
        options = parse_write_options(call.query, "CreateOptions")
        document = decode_object_body(call.body, call.content_type, endpoint, options.field_validation, call.warnings)
        return await self.create_document(call, endpoint, document, options)

    async def create_document(
        self,
        call: Call,
        endpoint: Endpoint,
        document: Document,
        options: WriteOptions,
        *,
        name: str = "",
        stamped: bool = False,
    ) -> Result:
        """Create from a decoded document in the endpoint's version.

        `stamped` says that server-side apply has recorded the field owners already.
        """
        services = self._services
        now = services.clock.now()
        # A name that was given is kept, whatever else the object says about names.
        named = bool(name or (document.get("metadata") or {}).get("name"))
        prepare_new(document, endpoint, call.info.namespace, name, now, services.random)
        namespace = await services.open_namespace(call, endpoint, document["metadata"].get("name", ""))
        if endpoint.default is not None:
            endpoint.default(document, now)
        if not stamped:
            stamp_create(document, endpoint, manager=call.manager, now=now)
        if endpoint.resource == PODS:
            await services.preload_pod_references(document, call.info.namespace)
        context = services.context(call, namespace, now)
        services.admission.admit(Operation.CREATE, call, endpoint, document, context)
        hub = endpoint.to_hub(document)
        strategy = endpoint.definition.strategy
        strategy.prepare_for_create(hub, context)
        validate_new(endpoint, hub, strategy, context)
        services.admission.validate(Operation.CREATE, call, endpoint, hub, None)
        call.warnings.extend(strategy.warnings(hub, None, context))
        if call.info.namespace in services.cache.quotas:
            return await self._store_within_quotas(call, endpoint, hub, options, named=named)
        return await self._store_new(endpoint, hub, options, named=named)

    async def _store_within_quotas(
        self, call: Call, endpoint: Endpoint, hub: Document, options: WriteOptions, *, named: bool
    ) -> Result:
        quotas = self._services.quotas
        held = await quotas.reserve(endpoint, call.info.namespace, hub, None, dry_run=options.dry_run)
        try:
            return await self._store_new(endpoint, hub, options, named=named)
        except AlreadyExistsError:
            await quotas.release(held)
            raise

    async def _store_new(self, endpoint: Endpoint, hub: Document, options: WriteOptions, *, named: bool) -> Result:
        metadata, store = hub["metadata"], self._services.store
        for _ in range(_NAME_ATTEMPTS_MAX):
            key = endpoint.key(metadata.get("namespace", ""), metadata["name"])
            if options.dry_run:
                if await store.get(key) is not None:
                    raise AlreadyExistsError(endpoint.resource, metadata["name"])
                return DocumentResult(endpoint.served(hub), 201, endpoint)
            try:
                return ObjectResult(endpoint, await store.create(key, self._services.encode(endpoint, hub)), 201)
            except KeyExistsError as error:
                if named:
                    raise AlreadyExistsError(endpoint.resource, metadata["name"]) from error
                metadata["name"] = generated_name(metadata["generateName"], self._services.random)
        raise AlreadyExistsError(endpoint.resource, metadata["name"])
