"""The scale subresource of any resource that has replicas."""

from __future__ import annotations

from dray.api.document import Document, GroupVersion, copy_document
from dray.apiserver.call import Call, DocumentResult, ObjectResult, Result
from dray.apiserver.decoding import decode_object_body, media_type
from dray.apiserver.endpoint import Endpoint, ScaleSource
from dray.apiserver.handlers.get import GetHandler
from dray.apiserver.handlers.update import Change, UpdateHandler
from dray.apiserver.options import parse_write_options
from dray.apiserver.patch.managed_fields.scale import parent_entries, scale_entries
from dray.apiserver.patching import APPLY, PatchRequest, apply_patch
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
        write = _ScaleWrite(call, endpoint, scaler, self._clock)
        change = Change(
            endpoint.definition.strategy, write.options, write.build, "scale", stamped=write.patch_type == APPLY
        )
        result = await self._update.change(call, endpoint, change)
        return DocumentResult(scaler.scale_of(_document_of(result, endpoint)), endpoint=scaler.endpoint)


class _ScaleWrite:
    """A PUT or PATCH of a Scale, as a change of the object that it scales."""

    def __init__(self, call: Call, endpoint: Endpoint, scaler: ScaleSource, clock: Clock) -> None:
        self._call = call
        self._endpoint = endpoint
        self._scaler = scaler
        self._clock = clock
        # Empty for PUT.
        self.patch_type = media_type(call.content_type) if call.info.verb == "patch" else ""
        if self.patch_type:
            self.options = parse_write_options(call.query, "PatchOptions", apply=self.patch_type == APPLY)
            self._given = None
        else:
            self.options = parse_write_options(call.query, "UpdateOptions")
            self._given = decode_object_body(
                call.body, call.content_type, scaler.endpoint, self.options.field_validation, call.warnings
            )
        # The replicas have the same path in every version of the object.
        path = tuple(f"f:{part}" for part in scaler.replicas_path)
        group = endpoint.resource.group
        self._paths = {GroupVersion(group, version).api_version: path for version in endpoint.definition.versions}

    def build(self, old: Document) -> Document:
        """Return the object with the replicas of the Scale; what was applied is owned by the Scale's managers."""
        scale = self._given if self._given is not None else self._patched(old)
        new = self._endpoint.from_hub(copy_document(old))
        self._scaler.set_replicas(new, scale, self._call.info.name)
        hub = self._endpoint.to_hub(new)
        metadata, given = hub["metadata"], scale.get("metadata") or {}
        metadata["resourceVersion"] = given.get("resourceVersion") or metadata["resourceVersion"]
        if self.patch_type == APPLY:
            metadata["managedFields"] = (
                parent_entries(
                    metadata.get("managedFields"), given.get("managedFields"), self._paths, self._endpoint.api_version
                )
                or []
            )
        return hub

    def _patched(self, old: Document) -> Document:
        call = self._call
        request = PatchRequest(
            endpoint=self._scaler.endpoint,
            type=self.patch_type,
            body=call.body if call.body is not None else b"",
            options=self.options,
            manager=call.manager,
            subresource="scale",
            warnings=call.warnings,
        )
        scale = self._scaler.scale_of(self._endpoint.served(copy_document(old)))
        managers = scale_entries(old["metadata"].get("managedFields"), self._paths)
        if managers and self.patch_type == APPLY:
            scale["metadata"]["managedFields"] = managers
        return apply_patch(request, scale, self._clock.now())


def _scaler(endpoint: Endpoint) -> ScaleSource:
    return endpoint.scaler or SPEC_REPLICAS


def _document_of(result: Result, endpoint: Endpoint) -> Document:
    if isinstance(result, ObjectResult):
        return endpoint.served(endpoint.decode(result.entry.value, result.entry.revision))
    assert isinstance(result, DocumentResult)
    return result.document
