"""update and patch: read, change, admit, validate and write back by compare-and-swap, retrying after lost races."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final

import msgspec

from dray.api.document import Document, copy_document
from dray.api.errors import (
    APIError,
    ConflictError,
    DeviceInUseError,
    InvalidError,
    NotFoundError,
    UnsupportedMediaTypeError,
)
from dray.api.validation.meta_v1 import validate_object_meta_update
from dray.apiserver.admission.chain import nothing_to_undo
from dray.apiserver.admission.plugin import AdmissionAttributes, Operation, Undo
from dray.apiserver.call import Call, DocumentResult, ObjectResult, Result
from dray.apiserver.decoding import decode_object_body, media_type
from dray.apiserver.deletion import is_finished
from dray.apiserver.encoding import served_document
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.handlers.backend import Backend
from dray.apiserver.handlers.create import CreateHandler
from dray.apiserver.metadata import check_place, check_uid, check_update, merge_duplicate_owners, prepare_changed
from dray.apiserver.options import WriteOptions, parse_revision, parse_write_options
from dray.apiserver.ownership import differs_in_times_only, stamp_update
from dray.apiserver.patching import APPLY, PATCH_TYPES, STRATEGIC, PatchRequest, apply_patch
from dray.apiserver.registry.strategy import Strategy
from dray.apiserver.request import Attributes
from dray.lib import processor_time
from dray.store.interface import Entry, KeyNotFoundError, RevisionConflictError

# Concurrent writers of one object; in each round one of them made progress.
_ATTEMPTS_MAX: Final = 64


class UnsupportedPatchError(APIError):
    """A PATCH in a media type that is none of the four."""

    code = 415
    reason = "UnsupportedMediaType"

    def __init__(self) -> None:
        super().__init__("415: Unsupported Media Type", details={})


class Copied(enum.Enum):
    """The parts of a stored document that a write gets a copy of."""

    NOTHING = enum.auto()
    # The metadata and the status; the strategy restores everything else.
    STATUS = enum.auto()
    ALL = enum.auto()


class Change(msgspec.Struct, frozen=True):
    """One write to an existing object: its strategy, and how to build the new document from the old one.

    `build` gets the stored hub document, which is shared and must not change, and returns a new one; it is
    called again after a lost race.
    """

    strategy: Strategy
    options: WriteOptions
    build: Callable[[Document], Document]
    subresource: str = ""
    # Whether a write without resourceVersion overwrites the stored object; patches always do.
    unconditional: bool = True
    # Whether another UID than the stored one is a lost race. In a patch, it is a change of an immutable field.
    uid_decides: bool = True
    # Whether to retry after a lost race; not if the client gave a resourceVersion.
    retry: bool = True
    # Server-side apply has updated managedFields already.
    stamped: bool = False
    # Whether admission has decided already, about the object of the request.
    admitted: bool = False
    # What `build` or the strategy may change in place; `build` then gets a copy of it.
    copied: Copied = Copied.NOTHING


class _MetadataRulesOnly(Strategy):
    """The rules of a change that the server itself makes: only the metadata is validated."""


METADATA_RULES_ONLY: Final = _MetadataRulesOnly()


class UpdateHandler:
    """Updates and patches objects."""

    def __init__(self, backend: Backend, create_handler: CreateHandler) -> None:
        self._backend = backend
        self._create = create_handler

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
            endpoint.default(document, self._backend.clock.now())
        hub = endpoint.to_hub(document)
        change = Change(
            strategy,
            options,
            # Copied only if it may be needed a second time.
            (lambda _old: hub)
            if version and not strategy.allow_create_on_update
            else (lambda _old: copy_document(hub)),
            call.info.subresource,
            unconditional=strategy.allow_unconditional_update and not endpoint.is_conditional,
            retry=not version,
        )
        try:
            return await self.change(call, endpoint, change)
        except NotFoundError:
            if not strategy.allow_create_on_update or call.info.subresource:
                raise
        self._authorize_create(call)
        check_uid(document, endpoint, wanted=metadata.get("uid"), stored="")
        metadata.pop("resourceVersion", None)
        return await self._create.create_document(call, endpoint, document, options, name=call.info.name)

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

        status_alone = endpoint.defaults_spec_alone and call.info.subresource == "status"

        def build(old: Document) -> Document:
            now = self._backend.clock.now()
            patched = apply_patch(request, endpoint.from_hub(old), now)
            check_place(patched["metadata"], endpoint, call.info.namespace, call.info.name)
            if endpoint.default is not None and not status_alone:
                endpoint.default(patched, now)
            return endpoint.to_hub(patched)

        copied = Copied.STATUS if status_alone else Copied.ALL
        change = Change(
            strategy, options, build, call.info.subresource, uid_decides=False, stamped=kind == APPLY, copied=copied
        )
        try:
            return await self.change(call, endpoint, change)
        except NotFoundError:
            if kind != APPLY or call.info.subresource:
                raise
        self._authorize_create(call)
        applied = apply_patch(request, None, self._backend.clock.now())
        if uid := (applied.get("metadata") or {}).get("uid"):
            text = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            raise ConflictError(endpoint.resource, call.info.name, text)
        return await self._create.create_document(call, endpoint, applied, options, name=call.info.name, stamped=True)

    def _authorize_create(self, call: Call) -> None:
        """Refuse to create an object for a user who may only update or patch it."""
        info = call.info
        create = Attributes(
            user=call.user,
            verb="create",
            group=info.group,
            version=info.version,
            resource=info.resource,
            namespace=info.namespace,
            name=info.name,
        )
        self._backend.authorizer.check(create)

    async def change(self, call: Call, endpoint: Endpoint, change: Change) -> Result:
        """Apply a change."""
        store = self._backend.store
        key = endpoint.key(call.info.namespace, call.info.name)
        for _ in range(_ATTEMPTS_MAX):
            entry = await store.get(key)
            if entry is None:
                raise NotFoundError(endpoint.resource, call.info.name)
            old = self._backend.document(endpoint, entry)
            given = _given(endpoint, entry, old, change.copied)
            processor_time.check()
            hub, undo = await self._changed(call, endpoint, change, old, change.build(given))
            processor_time.check()
            if _is_equal(hub, old) or (change.stamped and differs_in_times_only(hub, old)):
                await undo()
                return _unchanged(endpoint, entry, change.options)
            if change.options.dry_run:
                return await self._dry_run(endpoint, old, hub)
            try:
                if is_finished(endpoint, hub):
                    return await self._remove(endpoint, entry, old, hub)
                value = self._backend.encode(endpoint, hub, bounded=True)
                return ObjectResult(endpoint, await self._backend.writer(endpoint).update(entry, old, hub, value))
            except DeviceInUseError:
                await undo()
                raise
            except RevisionConflictError as error:
                await undo()
                if not change.retry:
                    raise ConflictError(endpoint.resource, call.info.name) from error
            except KeyNotFoundError as error:
                await undo()
                raise NotFoundError(endpoint.resource, call.info.name) from error
        raise ConflictError(endpoint.resource, call.info.name)

    async def _changed(
        self, call: Call, endpoint: Endpoint, change: Change, old: Document, hub: Document
    ) -> tuple[Document, Undo]:
        """Return the new document, admitted and validated, and how to undo admission; the old one is only read."""
        backend, strategy = self._backend, change.strategy
        namespace = backend.cache.namespaces.get(call.info.namespace) if call.info.namespace else None
        context = backend.context(call, namespace, backend.clock.now())
        check_update(hub, old, endpoint, unconditional=change.unconditional, uid_decides=change.uid_decides)
        prepare_changed(hub, old)
        merge_duplicate_owners(hub["metadata"], call.warnings)
        attributes = AdmissionAttributes.of(call, endpoint, Operation.UPDATE, change.options, hub, old)
        if not change.admitted:
            await backend.admission.admit(attributes)
        processor_time.check()
        strategy.prepare_for_update(hub, old, context)
        if not change.stamped:
            stamp_update(hub, old, endpoint, manager=call.manager, now=context.now, subresource=change.subresource)
        errors = validate_object_meta_update(hub["metadata"], old["metadata"])
        processor_time.check()
        errors += strategy.validate_update(hub, old, context)
        if errors:
            raise InvalidError(endpoint.resource.group, endpoint.definition.kind, call.info.name, errors)
        backend.check_escalation(call, endpoint, hub, old)
        undo = nothing_to_undo if change.admitted else await backend.admission.validate(attributes)
        call.warnings.extend(strategy.warnings(hub, old, context))
        return hub, undo

    async def _dry_run(self, endpoint: Endpoint, old: Document, hub: Document) -> Result:
        """Return the new document without writing it."""
        await self._backend.writer(endpoint).check(old, hub)
        return DocumentResult(endpoint.served(copy_document(hub)), 200, endpoint)

    async def _remove(self, endpoint: Endpoint, entry: Entry, old: Document, hub: Document) -> Result:
        """Remove an object that is being deleted, whose last finalizer the change has removed."""
        await self._backend.writer(endpoint).delete(entry, old)
        return DocumentResult(endpoint.served(copy_document(hub)), 200, endpoint)


def _is_equal(new: Document, old: Document) -> bool:
    # Most changes are to the status; comparing the metadata, with its managed fields, takes much longer.
    return new.get("status") == old.get("status") and new == old


def _given(endpoint: Endpoint, entry: Entry, old: Document, copied: Copied) -> Document:
    """Return what the new document is built from: the stored one, in which only copied parts may be changed."""
    if copied is Copied.NOTHING:
        return old
    if copied is Copied.ALL:
        return endpoint.decode(entry.value, entry.revision)
    metadata: Document = old["metadata"]
    if "managedFields" in metadata:
        # Its entries are never changed, and it keeps its place among the fields.
        shared = {"managedFields": metadata["managedFields"]}
        given = old | {"metadata": copy_document(metadata | {"managedFields": None}) | shared}
    else:
        given = old | {"metadata": copy_document(metadata)}
    if "status" in old:
        given["status"] = copy_document(old["status"] or {})
    return given


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
