"""MutatingAdmissionWebhook: webhooks that change objects, one after the other."""

from __future__ import annotations

import json
from typing import Final

from dray.api.document import Document, copy_document
from dray.api.errors import APIError, BadRequestError
from dray.api.strict import DecodeError
from dray.apiserver.admission.match_cache import ConfiguredPlugin
from dray.apiserver.admission.plugin import AdmissionAttributes, FirstRound, Operation, ReinvokingPlugin, Undo
from dray.apiserver.admission.review import is_generated_name, kind_of, object_for
from dray.apiserver.admission.webhook_caller import Invocation, WebhookCaller
from dray.apiserver.admission.webhooks import Webhook, WebhookIndex
from dray.apiserver.decoding import normalize_message
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.patch import json_patch
from dray.apiserver.patch.managed_fields.entries import ManagedFieldsError, decode
from dray.apiserver.scale import SPEC_REPLICAS
from dray.lib.clock import Clock

_MUTATION: Final = "mutation.webhook.admission.k8s.io"
_PATCH: Final = "patch.webhook.admission.k8s.io"
# Subresources whose requests have the whole object.
_SAME_KIND: Final = frozenset({"approval", "ephemeralcontainers", "finalize", "resize", "status"})
# What a new object gets only after the webhooks.
_LATE_METADATA: Final = ("uid", "creationTimestamp")
_BAD_MANAGED_FIELDS: Final = (
    ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating "
    "admission controller; please fix your requests: {}"
)
# What decides where an object is stored.
_PLACE: Final = ("name", "namespace")


class MutatingAdmissionWebhook(ConfiguredPlugin[Webhook], ReinvokingPlugin):
    """Calls mutating webhooks; the chain runs a second round if the first one changed something."""

    name = "MutatingAdmissionWebhook"

    def __init__(self, index: WebhookIndex, caller: WebhookCaller, clock: Clock) -> None:
        super().__init__(index.matches)
        self._caller = caller
        self._clock = clock

    def is_about(self, attributes: AdmissionAttributes) -> bool:
        """Return whether webhooks may have to be called; for deletions `validate` does it, with the object."""
        return attributes.operation is not Operation.DELETE and bool(self._matches.candidates(attributes))

    async def first_round(self, attributes: AdmissionAttributes) -> FirstRound:
        """Call all webhooks that are about a write."""
        round_ = FirstRound()
        for index, webhook in enumerate(self._matches.candidates(attributes)):
            # Each sees what the former ones made of the object, which may match other webhooks.
            for invocation in await self._caller.matching((webhook,), attributes):
                changed = await self._invoke(invocation, attributes, 0, index)
                round_.changed |= changed
                if webhook.is_reinvoked:
                    assert attributes.object is not None
                    round_.reinvoked.append((webhook, copy_document(attributes.object)))
        return round_

    async def second_round(self, attributes: AdmissionAttributes, first: FirstRound) -> None:
        """Call those webhooks again after which the object has changed."""
        for index, (webhook, seen) in enumerate(first.reinvoked):
            if attributes.object != seen:
                for invocation in await self._caller.matching((webhook,), attributes):
                    await self._invoke(invocation, attributes, 1, index)

    async def validate(self, attributes: AdmissionAttributes) -> Undo | None:
        """Call webhooks for a deletion, whose object is known only now; they cannot change anything."""
        if attributes.operation is not Operation.DELETE:
            return None
        candidates = self._matches.candidates(attributes)
        for index, invocation in enumerate(await self._caller.matching(candidates, attributes) if candidates else ()):
            old = await object_for(attributes.old_object, attributes, invocation.endpoint)
            answer = await self._caller.call(invocation, attributes, None, old, place=f"round_0_index_{index}")
            if answer is not None and answer.patch is not None:
                raise self._caller.internal_error(
                    invocation.webhook,
                    attributes,
                    f'admission webhook "{invocation.webhook.name}" attempted to modify the object, which is not '
                    "supported for this operation",
                )
        return None

    async def _invoke(self, invocation: Invocation, attributes: AdmissionAttributes, round_: int, index: int) -> bool:
        """Call a webhook and apply its patch in place; return whether it changed the object."""
        document = attributes.object
        assert document is not None
        webhook, place = invocation.webhook, f"round_{round_}_index_{index}"
        shown = await _for_review(document, attributes, invocation)
        old = await object_for(attributes.old_object, attributes, invocation.endpoint)
        answer = await self._caller.call(invocation, attributes, shown, old, place=place)
        changed = False
        if answer is not None and answer.patch is not None:
            try:
                patched = json_patch.apply(copy_document(shown), json_patch.decode(answer.patch))
                result = await self._accepted(patched, document, attributes, invocation)
            except (APIError, DecodeError) as error:
                raise self._caller.internal_error(webhook, attributes, str(error)) from error
            _check_place(result, document, attributes)
            _keep_managed_fields(result, document, attributes)
            changed = result != document
            document.clear()
            document.update(result)
        if answer is not None and attributes.audit is not None:
            _annotate(attributes.audit, webhook, place, answer.patch, changed=changed)
        return changed

    async def _accepted(
        self, patched: Document, before: Document, attributes: AdmissionAttributes, invocation: Invocation
    ) -> Document:
        """Return a patched object with defaults and without unknown fields, in the version that it had before."""
        endpoint = invocation.endpoint
        if attributes.subresource and attributes.subresource not in _SAME_KIND:
            return _of_other_kind(patched, before, attributes, endpoint)
        endpoint.normalize(patched)
        if endpoint.default is not None:
            endpoint.default(patched, self._clock.now())
        patched["metadata"] = patched.get("metadata") or {}
        return await _to_version_of(patched, before, attributes, invocation)


def _of_other_kind(
    patched: Document, before: Document, attributes: AdmissionAttributes, endpoint: Endpoint
) -> Document:
    """Return the object of a write after a webhook has patched what the request to its subresource has instead."""
    normalize_message(patched, kind_of(attributes, endpoint))
    if attributes.subresource != "scale":
        return patched
    scaled = endpoint.from_hub(copy_document(before))
    (endpoint.scaler or SPEC_REPLICAS).set_replicas(scaled, patched, attributes.name)
    return endpoint.to_hub(scaled)


def _is_hub(attributes: AdmissionAttributes) -> bool:
    """Return whether the object of a write is in the storage version; a new one is in that of the request."""
    return attributes.operation is not Operation.CREATE


async def _for_review(document: Document, attributes: AdmissionAttributes, invocation: Invocation) -> Document:
    """Return the object of a write as a webhook sees it."""
    endpoint = invocation.endpoint
    if _is_hub(attributes) or attributes.subresource:
        shown = await object_for(document, attributes, endpoint)
        assert shown is not None
        return shown
    requested = invocation.requested
    if endpoint is requested:
        shown = endpoint.with_kind(document)
    elif endpoint.conversion is not None:
        (shown,) = await endpoint.conversion.convert((requested.with_kind(document),), endpoint.api_version)
    else:
        shown = endpoint.served(requested.to_hub(copy_document(document)))
    metadata = {name: value for name, value in shown["metadata"].items() if name not in _LATE_METADATA}
    if is_generated_name(attributes):
        metadata.pop("name", None)
    return shown | {"metadata": metadata}


async def _to_version_of(
    patched: Document, before: Document, attributes: AdmissionAttributes, invocation: Invocation
) -> Document:
    endpoint, requested = invocation.endpoint, invocation.requested
    if endpoint.conversion is not None and endpoint is not requested:
        (patched,) = await endpoint.conversion.convert((endpoint.with_kind(patched),), requested.api_version)
        endpoint = requested
    if _is_hub(attributes):
        return endpoint.to_hub(patched)
    result = patched if endpoint is requested else requested.served(endpoint.to_hub(patched))
    metadata, kept = result["metadata"], before["metadata"]
    metadata |= {name: kept[name] for name in _LATE_METADATA if name in kept}
    for name in _PLACE:
        if name in kept and not metadata.get(name):
            metadata[name] = kept[name]
    return result


def _check_place(result: Document, before: Document, attributes: AdmissionAttributes) -> None:
    """Refuse an object that would be created elsewhere than at the place that was authorized and admitted.

    Changes of existing objects are validated later: name and namespace are immutable.
    """
    if attributes.operation is not Operation.CREATE:
        return
    given, kept = (item.get("metadata") or {} for item in (result, before))
    for field, request in zip(_PLACE, (attributes.name, attributes.namespace), strict=True):
        # A webhook may choose the name of an object whose name was generated.
        wanted = request or ("" if field == "name" and is_generated_name(attributes) else kept.get(field))
        if wanted and given.get(field) and given[field] != wanted:
            raise BadRequestError(
                f"the {field} of the provided object ({given[field]}) does not match the {field} sent on the request "
                f"({wanted})"
            )


def _keep_managed_fields(result: Document, before: Document, attributes: AdmissionAttributes) -> None:
    """Restore the field owners of an object if a webhook has made them unreadable: it could never be applied again."""
    if attributes.subresource and attributes.subresource not in _SAME_KIND:
        return
    metadata, kept = result["metadata"], (before.get("metadata") or {}).get("managedFields")
    if metadata.get("managedFields") == kept:
        return
    try:
        decode(metadata.get("managedFields"), trusted=False)
    except ManagedFieldsError as error:
        metadata.pop("managedFields", None)
        if kept is not None:
            metadata["managedFields"] = kept
        attributes.warnings.append(_BAD_MANAGED_FIELDS.format(error))


def _annotate(audit: dict[str, str], webhook: Webhook, place: str, patch: bytes | None, *, changed: bool) -> None:
    names: Document = {"configuration": webhook.configuration, "webhook": webhook.name}
    audit[f"{_MUTATION}/{place}"] = json.dumps({**names, "mutated": changed}, separators=(",", ":"))
    if changed and patch is not None:
        value = {**names, "patch": json.loads(patch), "patchType": "JSONPatch"}
        audit[f"{_PATCH}/{place}"] = json.dumps(value, separators=(",", ":"))
