"""create: decode, default, admit, validate, then write a key that must not exist."""

from __future__ import annotations

from typing import Final

from dray.api.document import Document
from dray.api.errors import AlreadyExistsError
from dray.apiserver.admission.plugin import AdmissionAttributes, Operation
from dray.apiserver.call import Call, DocumentResult, ObjectResult, Result
from dray.apiserver.decoding import decode_object_body
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.handlers.backend import Backend, validate_new
from dray.apiserver.metadata import (
    VersionOnCreateError,
    check_no_version,
    drop_server_fields,
    generated_name,
    merge_duplicate_owners,
    prepare_new,
)
from dray.apiserver.options import WriteOptions, parse_write_options
from dray.apiserver.ownership import stamp_create
from dray.lib import processor_time
from dray.store.interface import KeyExistsError

# A generated name collides once in 14 million; eight in a row means something else is wrong.
_NAME_ATTEMPTS_MAX: Final = 8


class CreateHandler:
    """Creates objects."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

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
        backend = self._backend
        now = backend.clock.now()
        # A given name is kept, even if the object also has a generateName.
        given: Document = document.get("metadata") or {}
        named, version = bool(name or given.get("name")), given.get("resourceVersion")
        prepare_new(document, endpoint, call.info.namespace, name, now, backend.random)
        if endpoint.default is not None:
            endpoint.default(document, now)
        merge_duplicate_owners(document["metadata"], call.warnings)
        processor_time.check()
        if not stamped:
            stamp_create(document, endpoint, manager=call.manager, now=now)
        attributes = AdmissionAttributes.of(call, endpoint, Operation.CREATE, options, document)
        await backend.admission.admit(attributes)
        processor_time.check()
        drop_server_fields(document["metadata"])
        namespace = await backend.objects.namespace(call.info.namespace) if endpoint.definition.namespaced else None
        context = backend.context(call, namespace, now)
        hub = endpoint.to_hub(document)
        strategy = endpoint.definition.strategy
        strategy.prepare_for_create(hub, context)
        validate_new(endpoint, hub, strategy, context)
        backend.check_escalation(call, endpoint, hub, None)
        undo = await backend.admission.validate(attributes if hub is document else attributes.with_objects(hub))
        call.warnings.extend((*context.warnings, *strategy.warnings(hub, None, context)))
        if endpoint.creation_warning:
            call.warnings.append(endpoint.creation_warning)
        try:
            if not options.dry_run:
                check_no_version(version)
            return await self._store_new(endpoint, hub, options, named=named)
        except (AlreadyExistsError, VersionOnCreateError):
            await undo()
            raise

    async def _store_new(self, endpoint: Endpoint, hub: Document, options: WriteOptions, *, named: bool) -> Result:
        metadata, store = hub["metadata"], self._backend.store
        for _ in range(_NAME_ATTEMPTS_MAX):
            key = endpoint.key(metadata.get("namespace", ""), metadata["name"])
            if options.dry_run:
                if await store.get(key) is not None:
                    raise AlreadyExistsError(endpoint.resource, metadata["name"])
                return DocumentResult(endpoint.served(hub), 201, endpoint)
            try:
                value = self._backend.encode(endpoint, hub, bounded=True)
                return ObjectResult(endpoint, await store.create(key, value), 201)
            except KeyExistsError as error:
                if named:
                    raise AlreadyExistsError(endpoint.resource, metadata["name"]) from error
                metadata["name"] = generated_name(metadata["generateName"], self._backend.random)
        raise AlreadyExistsError(endpoint.resource, metadata["name"])
