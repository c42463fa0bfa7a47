"""The token subresource of service accounts."""

from __future__ import annotations

from typing import Final

import orjson

from dray.api.document import Document, GroupVersionKind
from dray.api.errors import BadRequestError, InvalidError
from dray.api.field_errors import Path, invalid
from dray.api.timestamps import format_time
from dray.apiserver.admission.plugin import AdmissionAttributes, Operation
from dray.apiserver.authentication.service_accounts import ServiceAccountTokens
from dray.apiserver.call import Call, DocumentResult, Result
from dray.apiserver.decoding import decode_message
from dray.apiserver.endpoint import KEY_ROOT, Endpoint
from dray.apiserver.handlers.backend import Backend
from dray.apiserver.handlers.get import GetHandler
from dray.apiserver.options import parse_write_options

_TOKEN_REQUEST: Final = GroupVersionKind("authentication.k8s.io", "v1", "TokenRequest")
_BINDABLE_KINDS: Final = {"Pod": "pods", "Secret": "secrets", "Node": "nodes"}


class TokenSubresource:
    """Issues service account tokens."""

    def __init__(self, backend: Backend, get: GetHandler, tokens: ServiceAccountTokens) -> None:
        self._backend = backend
        self._get = get
        self._tokens = tokens

    async def create(self, call: Call, endpoint: Endpoint) -> Result:
        """Issue a token for a service account."""
        options = parse_write_options(call.query, "CreateOptions")
        request = decode_message(call.body, call.content_type, _TOKEN_REQUEST)
        _check_place(request, call)
        attributes = AdmissionAttributes.of(call, endpoint, Operation.CREATE, options).with_objects(request)
        await self._backend.admission.admit(attributes)
        await self._backend.admission.validate(attributes)
        found = await self._get.get(call, endpoint)
        account = endpoint.decode(found.entry.value, found.entry.revision)
        spec: Document = request.get("spec") or {}
        now = self._backend.clock.now()
        bound = await self._bound_object(spec.get("boundObjectRef") or {}, call.info.namespace)
        token, expires = self._tokens.issue_token(account, spec, now, bound)
        seconds = spec.get("expirationSeconds") or int((expires - now).total_seconds())
        answer: Document = {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {
                "name": call.info.name,
                "namespace": call.info.namespace,
                "uid": account["metadata"]["uid"],
                "creationTimestamp": format_time(now),
            },
            "spec": {
                "audiences": self._tokens.audiences_for(spec),
                "expirationSeconds": seconds,
                "boundObjectRef": spec.get("boundObjectRef"),
            },
            "status": {"token": token, "expirationTimestamp": format_time(expires)},
        }
        return DocumentResult(answer, 201)

    async def _bound_object(self, reference: Document, namespace: str) -> Document | None:
        """Return the stored object that the token is bound to."""
        resource = _BINDABLE_KINDS.get(reference.get("kind", ""))
        if resource is None:
            return None
        name = reference.get("name", "")
        path = name if resource == "nodes" else f"{namespace}/{name}"
        entry = await self._backend.store.get(f"{KEY_ROOT}core/{resource}/{path}")
        if entry is None:
            return None
        document: Document = orjson.loads(entry.value)
        return document


def _check_place(request: Document, call: Call) -> None:
    """Refuse a request whose body names another service account than its URL."""
    metadata: Document = request.get("metadata") or {}
    if metadata.get("namespace") not in (None, "", call.info.namespace):
        raise BadRequestError("the namespace of the provided object does not match the namespace sent on the request")
    name = metadata.get("name")
    if name and name != call.info.name:
        path = Path("metadata").child("name")
        error = invalid(path, name, "must match the service account name if specified")
        raise InvalidError("authentication.k8s.io", "TokenRequest", call.info.name, [error])
