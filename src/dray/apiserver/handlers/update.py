"""update and patch: read, change, judge and write back by compare-and-swap until nobody was faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from dray.api.document import Document, copy_document
from dray.api.errors import APIError, ConflictError, InvalidError, NotFoundError, UnsupportedMediaTypeError
from dray.api.validation.meta_v1 import validate_object_meta_update
from dray.apiserver.admission import Operation
from dray.apiserver.admission_quota import Reservation
from dray.apiserver.call import Call, DocumentResult, ObjectResult, Result
from dray.apiserver.decoding import decode_object_body, media_type
from dray.apiserver.deletion import is_finished
from dray.apiserver.encoding import served_document
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.handlers.create import Creator
from dray.apiserver.handlers.services import Services
from dray.apiserver.metadata import check_place, check_update, prepare_changed
from dray.apiserver.options import WriteOptions, parse_revision, parse_write_options
from dray.apiserver.ownership import differs_in_times_only, stamp_update
from dray.apiserver.patching import APPLY, PATCH_TYPES, STRATEGIC, PatchRequest, apply_patch
from dray.apiserver.registry.strategy import Strategy
from dray.store.interface import Entry, KeyNotFoundError, RevisionConflictError

# Writers of one object that keep overtaking each other; in each round one of them made progress.
_ATTEMPTS_MAX: Final = 64
# What of the metadata is judged without regard to anything else.
_JUDGED_ALONE: Final = ("labels", "annotations", "ownerReferences")


class UnsupportedPatchError(APIError):
    """A PATCH in a media type that is none of the four."""

    code = 415
    reason = "UnsupportedMediaType"

    def __init__(self) -> None:
        super().__init__("415: Unsupported Media Type", details={})


class Change(msgspec.Struct, frozen=True):
    """One write to an existing object: the rules it goes by, and how to make the new document of the old.

    `build` gets the stored hub document, which is shared and must not change, and returns a new one; it is
    called again when the object changed meanwhile.
    """

    strategy: Strategy
    options: WriteOptions
    build: Callable[[Document], Document]
    subresource: str = ""
    # Whether a missing resourceVersion overwrites what is there; patches always do.
    unconditional: bool = True
    # Whether a lost race is tried again; not when the caller named the version it changes.
    retry: bool = True
    # Server-side apply has recorded the field owners already.
    stamped: bool = False
    # `build` changes the document that it gets, which must be its own then.
    in_place: bool = False


class Changer:
    """Changes objects; one for the whole server."""

    def __init__(self, services: Services, creator: Creator) -> None:
        self._services = services
        self._creator = creator

    async def update(self, call: Call, endpoint: Endpoint, strategy: Strategy) -> Result:
        """PUT of an object, or of its status."""
        options = parse_write_options(call.query, "UpdateOptions")
        document = decode_object_body(call.body, call.content_type, endpoint, options.field_validation, call.warnings)
        metadata: Document = document.get("metadata") or {}
        document["metadata"] = metadata
        metadata.setdefault("name", call.info.name)
        check_place(metadata, endpoint, call.info.namespace, call.info.name)
        version = metadata.get("resourceVersion")
        if version:
            parse_revision(version)
        if endpoint.default is not None:
            endpoint.default(document, self._services.clock.now())
        hub = endpoint.to_hub(document)
        change = Change(
            strategy,
            options,
            # Only what may be tried again must survive the first try.
            (lambda _old: hub)
            if version and not strategy.allow_create_on_update
            else (lambda _old: copy_document(hub)),
            call.info.subresource,
            unconditional=strategy.allow_unconditional_update,
            retry=not version,
        )
        try:
            return await self.change(call, endpoint, change)
        except NotFoundError:
            if not strategy.allow_create_on_update or call.info.subresource:
                raise
        metadata.pop("resourceVersion", None)
        return await self._creator.create_document(call, endpoint, document, options, name=call.info.name)

    async def patch(self, call: Call, endpoint: Endpoint, strategy: Strategy) -> Result:
        """PATCH of an object, or of its status."""
        kind = _patch_type(call, endpoint)
        options = parse_write_options(call.query, "PatchOptions", apply=kind == APPLY)
        request = PatchRequest(
            endpoint=endpoint,
            type=kind,
            body=call.body if call.body is not None else b"",
            options=options,
            manager=call.manager,
            subresource=call.info.subresource,
            warnings=call.warnings,
        )

        def build(old: Document) -> Document:
            now = self._services.clock.now()
            patched = apply_patch(request, endpoint.from_hub(old), now)
            check_place(patched["metadata"], endpoint, call.info.namespace, call.info.name)
            if endpoint.default is not None:
                endpoint.default(patched, now)
            return endpoint.to_hub(patched)

        change = Change(strategy, options, build, call.info.subresource, stamped=kind == APPLY, in_place=True)
        try:
            return await self.change(call, endpoint, change)
        except NotFoundError:
            if kind != APPLY or call.info.subresource:
                raise
        applied = apply_patch(request, None, self._services.clock.now())
        return await self._creator.create_document(call, endpoint, applied, options, name=call.info.name, stamped=True)

    async def change(self, call: Call, endpoint: Endpoint, change: Change) -> Result:
        """Carry out a change."""
        store = self._services.store
        key = endpoint.key(call.info.namespace, call.info.name)
        for _ in range(_ATTEMPTS_MAX):
            entry = await store.get(key)
            if entry is None:
                raise NotFoundError(endpoint.resource, call.info.name)
            old = self._services.documents.document(entry)
            given = endpoint.decode(entry.value, entry.revision) if change.in_place else old
            hub = self._changed(call, endpoint, change, old, change.build(given))
            if hub == old or (change.stamped and differs_in_times_only(hub, old)):
                return _unchanged(endpoint, entry, change.options)
            if change.options.dry_run:
                await self._reserve(call, endpoint, change, hub, old)
                return DocumentResult(endpoint.served(copy_document(hub)), 200, endpoint)
            held = await self._reserve(call, endpoint, change, hub, old)
            try:
                return await self._write(endpoint, entry, hub)
            except RevisionConflictError as error:
                await self._services.quotas.release(held)
                if not change.retry:
                    raise ConflictError(endpoint.resource, call.info.name) from error
            except KeyNotFoundError as error:
                await self._services.quotas.release(held)
                raise NotFoundError(endpoint.resource, call.info.name) from error
        raise ConflictError(endpoint.resource, call.info.name)

    async def _reserve(
        self, call: Call, endpoint: Endpoint, change: Change, hub: Document, old: Document
    ) -> Reservation | None:
        """Take from the namespace's quotas what the change uses beyond what the object has already."""
        if change.subresource or call.info.namespace not in self._services.cache.quotas:
            return None
        return await self._services.quotas.reserve(
            endpoint, call.info.namespace, hub, old, dry_run=change.options.dry_run
        )

    def _changed(self, call: Call, endpoint: Endpoint, change: Change, old: Document, hub: Document) -> Document:
        """The new document, prepared and judged; of the old one, which is shared, nothing is changed."""
        services, strategy = self._services, change.strategy
        context = services.context(call, services.known_namespace(call.info.namespace), services.clock.now())
        check_update(hub, old, endpoint, unconditional=change.unconditional)
        prepare_changed(hub, old)
        services.admission.admit(Operation.UPDATE, call, endpoint, hub, context)
        strategy.prepare_for_update(hub, old, context)
        if not change.stamped:
            stamp_update(hub, old, endpoint, manager=call.manager, now=context.now, subresource=change.subresource)
        errors = validate_object_meta_update(_unjudged(hub["metadata"], old["metadata"]), old["metadata"])
        errors += strategy.validate_update(hub, old, context)
        if errors:
            raise InvalidError(endpoint.resource.group, endpoint.definition.kind, call.info.name, errors)
        services.admission.validate(Operation.UPDATE, call, endpoint, hub, old)
        call.warnings.extend(strategy.warnings(hub, old, context))
        return hub

    async def _write(self, endpoint: Endpoint, entry: Entry, hub: Document) -> Result:
        store = self._services.store
        if is_finished(endpoint, hub):
            # The change took away the last thing the deletion was waiting for.
            await store.delete(entry.key, expected_revision=entry.revision)
            return DocumentResult(endpoint.served(copy_document(hub)), 200, endpoint)
        written = await store.update(entry.key, self._services.encode(endpoint, hub), expected_revision=entry.revision)
        return ObjectResult(endpoint, written)


def _unjudged(metadata: Document, stored: Document) -> Document:
    """The metadata without the maps and lists that are as they were judged when they were stored."""
    unjudged = dict(metadata)
    for name in _JUDGED_ALONE:
        if name in metadata and metadata[name] == stored.get(name):
            del unjudged[name]
    return unjudged


def _patch_type(call: Call, endpoint: Endpoint) -> str:
    kind = media_type(call.content_type)
    if kind not in PATCH_TYPES:
        raise UnsupportedPatchError
    if kind == STRATEGIC and endpoint.custom:
        raise UnsupportedMediaTypeError([item for item in PATCH_TYPES if item != STRATEGIC])
    return kind


def _unchanged(endpoint: Endpoint, entry: Entry, options: WriteOptions) -> Result:
    if options.dry_run:
        return DocumentResult(served_document(endpoint, entry), 200, endpoint)
    return ObjectResult(endpoint, entry)
