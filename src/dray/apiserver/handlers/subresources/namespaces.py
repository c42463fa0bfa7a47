"""The finalize subresource of namespaces."""

from __future__ import annotations

from dray.api.document import Document, copy_document
from dray.apiserver.call import Call, Result
from dray.apiserver.decoding import decode_object_body
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.handlers.update import METADATA_RULES_ONLY, Change, UpdateHandler
from dray.apiserver.options import parse_write_options


class FinalizeSubresource:
    """Replaces the finalizers in the spec of a namespace."""

    def __init__(self, update: UpdateHandler) -> None:
        self._update = update

    async def update(self, call: Call, endpoint: Endpoint) -> Result:
        """Replace the finalizers; a terminating namespace without any is removed."""
        options = parse_write_options(call.query, "UpdateOptions")
        document = decode_object_body(call.body, call.content_type, endpoint, options.field_validation, call.warnings)
        finalizers = list(document["spec"].get("finalizers") or ())
        version = (document.get("metadata") or {}).get("resourceVersion")

        def build(old: Document) -> Document:
            namespace = copy_document(old)
            namespace["spec"] = {"finalizers": finalizers} if finalizers else {}
            namespace["metadata"]["resourceVersion"] = version or old["metadata"]["resourceVersion"]
            return namespace

        change = Change(METADATA_RULES_ONLY, options, build, "finalize", retry=not version, stamped=True)
        return await self._update.change(call, endpoint, change)
