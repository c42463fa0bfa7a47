"""Evictions: a Pod is deleted unless a disruption budget forbids it. `api/disruption.py` has the rules."""

from __future__ import annotations

from typing import Final

import msgspec

from dray.api import disruption
from dray.api.document import Document, GroupVersionKind
from dray.api.errors import BadRequestError, ConflictError, InvalidError, NotFoundError
from dray.api.field_errors import Path, invalid
from dray.api.timestamps import format_time
from dray.apiserver.admission.plugin import AdmissionAttributes, Operation
from dray.apiserver.call import Call, DocumentResult, ObjectResult, Result, success
from dray.apiserver.catalog import Catalog
from dray.apiserver.decoding import decode_message
from dray.apiserver.deletion import check_preconditions
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.handlers.backend import Backend
from dray.apiserver.handlers.delete import DeleteHandler
from dray.apiserver.handlers.update import METADATA_RULES_ONLY, Change, UpdateHandler
from dray.apiserver.options import DeleteOptions, WriteOptions, parse_delete_options
from dray.apiserver.ownership import stamp_update
from dray.store.interface import Entry, KeyNotFoundError, RevisionConflictError

# As in Kubernetes: 20 tries, half a second apart, with a jitter of a tenth.
ATTEMPTS: Final = 20
RETRY_SECONDS: Final = 0.5
JITTER: Final = 0.1
_EVICTION: Final = GroupVersionKind("policy", "v1", "Eviction")
_MANAGER: Final = "kube-apiserver"
_REASON: Final = "EvictionByEvictionAPI"
_MESSAGE: Final = "Eviction API: evicting"
_UNSAFE: Final = "ignoreStoreReadErrorWithClusterBreakingPotential"


class EvictionHandler:
    """Handles the subresource `eviction` of Pods."""

    def __init__(self, backend: Backend, update: UpdateHandler, delete: DeleteHandler, catalog: Catalog) -> None:
        self._backend = backend
        self._update = update
        self._delete = delete
        self._catalog = catalog

    async def evict(self, call: Call, endpoint: Endpoint) -> Result:
        """Delete a Pod with the given delete options if its budget allows it."""
        eviction = decode_message(call.body, call.content_type, _EVICTION)
        name = (eviction.get("metadata") or {}).get("name")
        if name and name != call.info.name:
            raise BadRequestError("name in URL does not match name in Eviction object")
        options = _delete_options(call, eviction)
        attributes = AdmissionAttributes.of(call, endpoint, Operation.CREATE, options).with_objects(eviction)
        await self._backend.admission.admit(attributes)
        await self._backend.admission.validate(attributes)
        for _ in range(ATTEMPTS):
            pod = await self._pod(call, endpoint)
            check_preconditions(endpoint, pod, options)
            if not disruption.needs_no_budget(pod):
                return await self._evict_within_budget(call, endpoint, pod, options)
            is_pending = (pod.get("status") or {}).get("phase") == "Pending" and options.resource_version is None
            try:
                # A Pod that became ready meanwhile would count for its budget.
                return await self._remove(call, endpoint, _bound(options, pod) if is_pending else options)
            except ConflictError:
                if not is_pending:
                    raise
            await self._wait()
        raise ConflictError(endpoint.resource, call.info.name)

    async def _evict_within_budget(
        self, call: Call, endpoint: Endpoint, pod: Document, options: DeleteOptions
    ) -> Result:
        entries = await self._budgets(pod)
        if not entries:
            return await self._remove(call, endpoint, options)
        if len(entries) > 1:
            raise disruption.several_budgets()
        entry, budget = entries[0]
        if not disruption.is_ready(pod) and disruption.frees_unhealthy(budget):
            try:
                return await self._remove(call, endpoint, _bound(options, pod))
            except ConflictError as error:
                if options.resource_version is not None:
                    raise
                raise disruption.still_processed(budget["metadata"]["name"]) from error
        await self._charge(entry, budget, call.info.name, dry_run=options.dry_run)
        return await self._remove(call, endpoint, options)

    async def _charge(self, entry: Entry, budget: Document, pod_name: str, *, dry_run: bool) -> None:
        """Count the eviction in the budget; it is read again after a lost race."""
        endpoint, backend = self._budget_endpoint(), self._backend
        name = budget["metadata"]["name"]
        for _ in range(ATTEMPTS):
            now = backend.clock.now()
            charged = disruption.charge(budget, pod_name, now)
            if dry_run:
                return
            charged["metadata"] = dict(budget["metadata"])
            stamp_update(charged, budget, endpoint, manager=_MANAGER, now=now, subresource="status")
            value = backend.encode(endpoint, charged)
            try:
                await backend.store.update(entry.key, value, expected_revision=entry.revision)
            except KeyNotFoundError:
                # Nothing limits the Pod any more.
                return
            except RevisionConflictError:
                await self._wait()
            else:
                return
            read = await backend.store.get(entry.key)
            if read is None:
                return
            entry, budget = read, backend.documents.document(read)
        raise disruption.too_many_conflicts(name)

    async def _remove(self, call: Call, endpoint: Endpoint, options: DeleteOptions) -> Result:
        """Write the reason into the Pod's status, and delete it."""
        now = format_time(self._backend.clock.now())

        def build(old: Document) -> Document:
            check_preconditions(endpoint, old, options)
            return _with_reason(old, now)

        if not options.dry_run:
            change = Change(METADATA_RULES_ONLY, WriteOptions(), build, "status")
            written = await self._update.change(call, endpoint, change)
            if options.resource_version is not None and isinstance(written, ObjectResult):
                options = msgspec.structs.replace(options, resource_version=str(written.entry.revision))
        await self._delete.delete_object(call, endpoint, call.info.namespace, call.info.name, options)
        return DocumentResult(success(code=201), 201)

    # --- Reading. ---

    async def _pod(self, call: Call, endpoint: Endpoint) -> Document:
        entry = await self._backend.store.get(endpoint.key(call.info.namespace, call.info.name))
        if entry is None:
            raise NotFoundError(endpoint.resource, call.info.name)
        return self._backend.documents.document(entry)

    async def _budgets(self, pod: Document) -> list[tuple[Entry, Document]]:
        """Return the budgets that are for the Pod, as they are stored."""
        prefix = self._budget_endpoint().key(pod["metadata"]["namespace"], "")
        page = await self._backend.store.list_page(prefix)
        read = [(entry, self._backend.documents.document(entry)) for entry in page.entries]
        return [(entry, budget) for entry, budget in read if disruption.budgets_of((budget,), pod)]

    def _budget_endpoint(self) -> Endpoint:
        endpoint = self._catalog.get("policy", "v1", "poddisruptionbudgets")
        assert endpoint is not None, "budgets are always served"
        return endpoint

    async def _wait(self) -> None:
        await self._backend.clock.sleep(RETRY_SECONDS * (1 + JITTER * self._backend.random.random()))


def _delete_options(call: Call, eviction: Document) -> DeleteOptions:
    body: Document = eviction.get("deleteOptions") or {}
    asked, given = call.query.get("dryRun"), body.get("dryRun") or []
    if asked and given and [asked] != given:
        text = f"Non-matching dry-run options in request and content: [{asked}] and [{' '.join(given)}]"
        raise BadRequestError(text)
    if body.get(_UNSAFE):
        problem = invalid(Path("deleteOptions").child(_UNSAFE), body[_UNSAFE], "is not supported for evictions")
        raise InvalidError("policy", "Eviction", call.info.name, [problem])
    return parse_delete_options(call.query, body)


def _bound(options: DeleteOptions, pod: Document) -> DeleteOptions:
    """Return the options for exactly the version of the Pod that was read."""
    return msgspec.structs.replace(
        options, uid=pod["metadata"]["uid"], resource_version=pod["metadata"]["resourceVersion"]
    )


def _with_reason(pod: Document, now: str) -> Document:
    status: Document = dict(pod.get("status") or {})
    target = {"type": disruption.DISRUPTION_TARGET, "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
    target |= {"reason": _REASON, "message": _MESSAGE}
    for item in status.get("conditions") or ():
        if item.get("type") == disruption.DISRUPTION_TARGET and item.get("status") == "True":
            target["lastTransitionTime"] = item.get("lastTransitionTime")
    others = [item for item in status.get("conditions") or () if item.get("type") != disruption.DISRUPTION_TARGET]
    return pod | {"metadata": dict(pod["metadata"]), "status": status | {"conditions": [*others, target]}}
