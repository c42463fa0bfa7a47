"""The scale subresource of any resource that has replicas."""

from __future__ import annotations

from dray.api.document import Document, copy_document
from dray.apiserver.call import Call, DocumentResult, ObjectResult, Result
from dray.apiserver.decoding import decode_body
from dray.apiserver.endpoint import Endpoint, ScaleSource
from dray.apiserver.handlers.get import GetHandler
from dray.apiserver.handlers.update import Change, UpdateHandler
from dray.apiserver.options import parse_write_options
from dray.apiserver.patching import PatchRequest, apply_patch
from dray.apiserver.scale import SPEC_REPLICAS
from dray.lib.clock import Clock


class ScaleSubresource:
    """Handles get, update and patch of scale."""

    def __init__(self, get: GetHandler, update: UpdateHandler, clock: Clock) -> None:
        self._get = get
        self._update = update
        self._clock = clock

    async def get(self, call: Call, endpoint: Endpoint) -> Result:
        """Return the Scale of an object."""
        found = await self._get.get(call, endpoint)
        hub = endpoint.decode(found.entry.value, found.entry.revision)
        scaler = _scaler(endpoint)
        return DocumentResult(scaler.scale_of(endpoint.served(hub)), endpoint=scaler.endpoint)

    async def update(self, call: Call, endpoint: Endpoint) -> Result:
        """Handle PUT and PATCH of a Scale."""
        scaler = _scaler(endpoint)
        patching = call.info.verb == "patch"
        options = parse_write_options(call.query, "PatchOptions" if patching else "UpdateOptions")
        scale_endpoint = scaler.endpoint

        def patched(old: Document) -> Document:
            request = PatchRequest(
                endpoint=scale_endpoint,
                type=call.content_type.partition(";")[0].strip(),
                body=call.body if call.body is not None else b"",
                options=options,
                manager=call.manager,
                subresource="scale",
                warnings=call.warnings,
            )
            return apply_patch(request, scaler.scale_of(endpoint.served(copy_document(old))), self._clock.now())

        given = None if patching else decode_body(call.body, call.content_type, "Scale")[0]

        def build(old: Document) -> Document:
            scale = given if given is not None else patched(old)
            new = endpoint.from_hub(copy_document(old))
            scaler.set_replicas(new, scale, call.info.name)
            hub = endpoint.to_hub(new)
            version = (scale.get("metadata") or {}).get("resourceVersion")
            hub["metadata"]["resourceVersion"] = version or old["metadata"]["resourceVersion"]
            return hub

        change = Change(endpoint.definition.strategy, options, build, "scale")
        result = await self._update.change(call, endpoint, change)
        return DocumentResult(scaler.scale_of(_document_of(result, endpoint)), endpoint=scale_endpoint)


def _scaler(endpoint: Endpoint) -> ScaleSource:
    return endpoint.scaler or SPEC_REPLICAS


def _document_of(result: Result, endpoint: Endpoint) -> Document:
    if isinstance(result, ObjectResult):
        return endpoint.served(endpoint.decode(result.entry.value, result.entry.revision))
    assert isinstance(result, DocumentResult)
    return result.document
