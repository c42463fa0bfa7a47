"""delete and deletecollection: plan the deletion of each object, then write it."""

from __future__ import annotations

from typing import Final

import msgspec

from dray.api.document import Document
from dray.api.errors import ConflictError, NotFoundError
from dray.apiserver.admission.plugin import AdmissionAttributes, Operation
from dray.apiserver.call import Call, DocumentResult, ObjectResult, Result, success
from dray.apiserver.decoding import decode_body
from dray.apiserver.deletion import (
    Deletion,
    Outcome,
    check_preconditions,
    deletion_warning,
    plan_deletion,
    returns_deleted,
)
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.handlers.backend import Backend
from dray.apiserver.handlers.get import GetHandler
from dray.apiserver.malformed import is_formed, unless_malformed
from dray.apiserver.options import DeleteOptions, parse_delete_options, parse_list_options
from dray.lib.processor_time import ticking
from dray.store.interface import Entry, KeyNotFoundError, RevisionConflictError

# Concurrent writers of one object; in each round one of them made progress.
_ATTEMPTS_MAX: Final = 64
_SELECTION_PARAMETERS: Final = frozenset(
    {"labelSelector", "fieldSelector", "limit", "continue", "resourceVersion", "resourceVersionMatch"}
)


class DeleteHandler:
    """Deletes objects."""

    def __init__(self, backend: Backend, get_handler: GetHandler) -> None:
        self._backend = backend
        self._get = get_handler

    async def delete(self, call: Call, endpoint: Endpoint) -> Result:
        """Handle DELETE of one object."""
        options = parse_delete_options(call.query, _body(call))
        if warning := deletion_warning(endpoint, options):
            call.warnings.append(warning)
        return await self.delete_object(call, endpoint, call.info.namespace, call.info.name, options)

    async def delete_object(
        self, call: Call, endpoint: Endpoint, namespace: str, name: str, options: DeleteOptions
    ) -> Result:
        """Delete one object with parsed options."""
        backend = self._backend
        key = endpoint.key(namespace, name)
        attributes = AdmissionAttributes.of(call, endpoint, Operation.DELETE, options)
        if not attributes.name:
            # Part of a deletecollection.
            attributes = msgspec.structs.replace(attributes, namespace=namespace, name=name)
        await backend.admission.admit(attributes)
        for _ in range(_ATTEMPTS_MAX):
            entry = await backend.store.get(key)
            if entry is None:
                raise NotFoundError(endpoint.resource, name)
            old = unless_malformed(backend.documents.document, entry)
            if old is None:
                return await self._remove_malformed(endpoint, entry, name, options)
            undo = await backend.admission.validate(attributes.with_objects(None, old))
            check_preconditions(endpoint, old, options)
            try:
                least = await backend.least_grace(endpoint, old) if options.grace_period_seconds is None else 0
                deletion = plan_deletion(endpoint, old, options, backend.clock.now(), least)
            except Exception:
                if is_formed(old, endpoint):
                    raise
                return await self._remove_malformed(endpoint, entry, name, options)
            try:
                return await self._apply(endpoint, entry, old, deletion, options)
            except RevisionConflictError:
                await undo()
            except KeyNotFoundError as error:
                await undo()
                raise NotFoundError(endpoint.resource, name) from error
        raise ConflictError(endpoint.resource, name)

    async def delete_collection(self, call: Call, endpoint: Endpoint) -> Result:
        """DELETE of all objects that match the selectors; return them as a list."""
        options = parse_delete_options(call.query, _body(call))
        selection = {name: value for name, value in call.query.items() if name in _SELECTION_PARAMETERS}
        listing = await self._get.list_selected(
            endpoint, call.info.namespace, parse_list_options(selection, watch=False), pacer=call.pacer
        )
        for entry in ticking(listing.entries):
            # By the key: the value need not be one that can be read.
            namespace, _, name = entry.key.removeprefix(endpoint.prefix).rpartition("/")
            try:
                await self.delete_object(call, endpoint, namespace, name, options)
            except NotFoundError:
                # Deleted by another client meanwhile.
                continue
        return listing

    async def _remove_malformed(self, endpoint: Endpoint, entry: Entry, name: str, options: DeleteOptions) -> Result:
        """Remove at once what is no object of its kind, and has no finalizers or owners that could be heeded."""
        if options.uid is not None or options.resource_version is not None:
            raise ConflictError(endpoint.resource, name)
        if not options.dry_run:
            try:
                await self._backend.store.delete(entry.key, expected_revision=entry.revision)
            except (RevisionConflictError, KeyNotFoundError) as error:
                raise ConflictError(endpoint.resource, name) from error
        return DocumentResult(success({"name": name, "kind": endpoint.resource.resource}))

    async def _apply(
        self, endpoint: Endpoint, entry: Entry, old: Document, deletion: Deletion, options: DeleteOptions
    ) -> Result:
        document = deletion.document
        # Kubernetes says so only to those who use the older of the two options.
        status = 202 if options.orphan_dependents is False else 200
        if deletion.outcome is Outcome.KEEP:
            return ObjectResult(endpoint, entry, status)
        if deletion.outcome is Outcome.WRITE:
            if options.dry_run:
                return DocumentResult(endpoint.served_of_shared(document), status, endpoint)
            value = self._backend.encode(endpoint, document)
            written = await self._backend.writer(endpoint).update(entry, old, document, value)
            return ObjectResult(endpoint, written, status)
        if not options.dry_run:
            removed = await self._backend.writer(endpoint).delete(entry, old)
            document["metadata"]["resourceVersion"] = str(removed.revision)
        if returns_deleted(endpoint):
            return DocumentResult(endpoint.served_of_shared(document), 200, endpoint)
        return DocumentResult(success(_details(endpoint, document)))


def _details(endpoint: Endpoint, document: Document) -> Document:
    details: Document = {"name": document["metadata"]["name"]}
    if endpoint.resource.group:
        details["group"] = endpoint.resource.group
    return details | {"kind": endpoint.resource.resource, "uid": document["metadata"]["uid"]}


def _body(call: Call) -> Document | None:
    if not call.body:
        return None
    document, _ = decode_body(call.body, call.content_type, "DeleteOptions")
    return document
