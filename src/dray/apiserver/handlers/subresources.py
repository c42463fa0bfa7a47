"""The subresources that are more than a part of their object: binding, eviction, scale, token, log and the like."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from datetime import datetime
from typing import Final, Protocol

import orjson

from dray.api.document import Document, GroupResource, NamespacedName, copy_document
from dray.api.errors import BadRequestError, ConflictError, InvalidError, NotFoundError, ServiceUnavailableError
from dray.api.field_errors import Path, invalid, required
from dray.api.timestamps import format_time
from dray.apiserver.admission import Operation
from dray.apiserver.authentication.service_accounts import ServiceAccountTokens
from dray.apiserver.call import Call, DocumentResult, ObjectResult, Result, TextResult, success
from dray.apiserver.decoding import decode_body
from dray.apiserver.endpoint import KEY_ROOT, Endpoint, ScaleSource
from dray.apiserver.handlers.delete import Deleter
from dray.apiserver.handlers.get import Reader
from dray.apiserver.handlers.services import Services
from dray.apiserver.handlers.update import Change, Changer
from dray.apiserver.object_cache import TokenLookup
from dray.apiserver.options import parse_delete_options, parse_int, parse_write_options
from dray.apiserver.patching import PatchRequest, apply_patch
from dray.apiserver.registry.strategy import Strategy

_BINDABLE: Final = {"Pod": "pods", "Secret": "secrets", "Node": "nodes"}
# Subresource and verb of what needs a two-way stream to a container.
STREAMS: Final = tuple((name, verb) for name in ("attach", "exec", "portforward") for verb in ("create", "get"))
_BINDING: Final = GroupResource("", "pods/binding")


class LogSource(Protocol):
    """Asks a node for a container's output."""

    async def open(self, node: Document, place: str, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        """Start reading `namespace/pod/container`; raises `APIError` when the node refuses or cannot be reached."""


class _Unruled(Strategy):
    """The server's own change to an object goes by no rules but the metadata's."""


UNRULED: Final = _Unruled()


class Subresources:
    """Serves subresources; one for the whole server."""

    def __init__(
        self,
        services: Services,
        reader: Reader,
        changer: Changer,
        deleter: Deleter,
        tokens: ServiceAccountTokens,
        lookup: TokenLookup,
    ) -> None:
        self._services = services
        self._reader = reader
        self._changer = changer
        self._deleter = deleter
        self._tokens = tokens
        self._lookup = lookup
        # How nodes are asked for logs; set once the server has keys to ask with.
        self.logs: LogSource | None = None

    # --- pods/binding ---

    async def bind(self, call: Call, endpoint: Endpoint) -> Result:
        """Give a Pod its node, once."""
        options = parse_write_options(call.query, "CreateOptions")
        binding, _ = decode_body(call.body, call.content_type, "Binding")
        target: Document = binding.get("target") or {}
        _check_target(target)
        now = format_time(self._services.clock.now())
        metadata: Document = binding.get("metadata") or {}
        annotations = metadata.get("annotations") or {}

        def build(old: Document) -> Document:
            _check_bindable(old, call.info.name, metadata)
            # Only what changes is copied; no rule that could change the rest runs for a binding.
            pod = old | {"metadata": dict(old["metadata"]), "spec": old["spec"] | {"nodeName": target["name"]}}
            if annotations:
                pod["metadata"]["annotations"] = (pod["metadata"].get("annotations") or {}) | annotations
            _set_scheduled(pod, now)
            return pod

        await self._changer.change(call, endpoint, Change(UNRULED, options, build, "binding", stamped=True))
        return DocumentResult(success(code=201), 201)

    # --- pods/eviction ---

    async def evict(self, call: Call, endpoint: Endpoint) -> Result:
        """Delete a Pod as politely as asked."""
        eviction, _ = decode_body(call.body, call.content_type, "Eviction")
        name = (eviction.get("metadata") or {}).get("name")
        if name and name != call.info.name:
            raise BadRequestError("name in URL does not match name in Eviction object")
        self._services.admission.validate(Operation.CREATE, call, endpoint, eviction, None)
        options = parse_delete_options(call.query, eviction.get("deleteOptions") or {})
        await self._deleter.delete_object(call, endpoint, call.info.namespace, call.info.name, options)
        return DocumentResult(success(code=201), 201)

    # --- scale ---

    async def get_scale(self, call: Call, endpoint: Endpoint, scaler: ScaleSource) -> Result:
        """Read the number of replicas."""
        found = await self._reader.get(call, endpoint)
        hub = endpoint.decode(found.entry.value, found.entry.revision)
        return DocumentResult(scaler.scale_of(endpoint.served(hub)))

    async def update_scale(self, call: Call, endpoint: Endpoint, scaler: ScaleSource) -> Result:
        """PUT or PATCH of the number of replicas."""
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
            return apply_patch(request, scaler.scale_of(endpoint.served(copy_document(old))), self._now())

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
        result = await self._changer.change(call, endpoint, change)
        return DocumentResult(scaler.scale_of(_document_of(result, endpoint)))

    # --- serviceaccounts/token ---

    async def create_token(self, call: Call, endpoint: Endpoint) -> Result:
        """Issue a token for a service account."""
        parse_write_options(call.query, "CreateOptions")
        request, _ = decode_body(call.body, call.content_type, "TokenRequest")
        self._services.admission.validate(Operation.CREATE, call, endpoint, request, None)
        found = await self._reader.get(call, endpoint)
        account = endpoint.decode(found.entry.value, found.entry.revision)
        spec: Document = request.get("spec") or {}
        now = self._now()
        bound = await self._bound_object(spec.get("boundObjectRef") or {}, call.info.namespace)
        self._lookup.fresh = bound
        try:
            token, expires = self._tokens.issue_token(account, spec, now)
        finally:
            self._lookup.fresh = {}
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

    async def _bound_object(self, reference: Document, namespace: str) -> dict[tuple[str, NamespacedName], Document]:
        resource = _BINDABLE.get(reference.get("kind", ""))
        if resource is None:
            return {}
        key = NamespacedName("" if resource == "nodes" else namespace, reference.get("name", ""))
        path = f"{key.namespace}/{key.name}" if key.namespace else key.name
        entry = await self._services.store.get(f"{KEY_ROOT}core/{resource}/{path}")
        return {} if entry is None else {(resource, key): orjson.loads(entry.value)}

    # --- namespaces/finalize ---

    async def finalize(self, call: Call, endpoint: Endpoint) -> Result:
        """Replace a namespace's own finalizers; the last one gone removes a namespace that is ending."""
        options = parse_write_options(call.query, "UpdateOptions")
        document, _ = decode_body(call.body, call.content_type, "Namespace")
        finalizers = list((document.get("spec") or {}).get("finalizers") or ())
        version = (document.get("metadata") or {}).get("resourceVersion")

        def build(old: Document) -> Document:
            namespace = copy_document(old)
            namespace["spec"] = {"finalizers": finalizers} if finalizers else {}
            namespace["metadata"]["resourceVersion"] = version or old["metadata"]["resourceVersion"]
            return namespace

        change = Change(UNRULED, options, build, "finalize", retry=not version, stamped=True)
        return await self._changer.change(call, endpoint, change)

    # --- pods/log ---

    async def log(self, call: Call, endpoint: Endpoint) -> Result:
        """A container's output, which its node keeps."""
        _check_log_options(call)
        found = await self._reader.get(call, endpoint)
        pod = endpoint.decode(found.entry.value, found.entry.revision)
        container = _log_container(pod, call.query.get("container", ""), call.info.name)
        node_name = pod["spec"].get("nodeName")
        if not node_name:
            raise BadRequestError(f"pod {call.info.name} does not have a host assigned")
        entry = await self._services.store.get(f"{KEY_ROOT}core/nodes/{node_name}")
        if entry is None or self.logs is None:
            # Nobody has registered who could be asked; kube-apiserver names the node, yet calls it a pod.
            raise NotFoundError(GroupResource("", "pods"), node_name)
        place = f"{call.info.namespace}/{call.info.name}/{container}"
        stream = await self.logs.open(orjson.loads(entry.value), place, log_query(call.query))
        return TextResult(b"", "text/plain", stream=stream)

    # --- pods/attach, pods/exec, pods/portforward ---

    async def stream(self, call: Call, endpoint: Endpoint) -> Result:
        """Say why there is no stream to a container: there is no such pod, no node, or no way to the node."""
        found = await self._reader.get(call, endpoint)
        node = endpoint.decode(found.entry.value, found.entry.revision)["spec"].get("nodeName")
        if not node:
            raise BadRequestError(f"pod {call.info.name} does not have a host assigned")
        raise ServiceUnavailableError(
            f"{call.info.subresource} is not offered: this server has no streams to containers on node {node}"
        )

    def _now(self) -> datetime:
        return self._services.clock.now()


def _document_of(result: Result, endpoint: Endpoint) -> Document:
    if isinstance(result, ObjectResult):
        return endpoint.served(endpoint.decode(result.entry.value, result.entry.revision))
    assert isinstance(result, DocumentResult)
    return result.document


def _check_target(target: Document) -> None:
    path = Path("target")
    if target.get("kind") not in (None, "", "Node"):
        raise InvalidError("", "Binding", "", [invalid(path.child("kind"), target["kind"], "must be empty or 'Node'")])
    if not target.get("name"):
        raise InvalidError("", "Binding", "", [required(path.child("name"))])


def _check_bindable(pod: Document, name: str, expected: Document) -> None:
    for word, field in (("UID", "uid"), ("ResourceVersion", "resourceVersion")):
        wanted, found = expected.get(field), pod["metadata"][field]
        if wanted and wanted != found:
            message = f"Precondition failed: {word} in precondition: {wanted}, {word} in object meta: {found}"
            raise ConflictError(_BINDING, name, message)
    if "deletionTimestamp" in pod["metadata"]:
        raise ConflictError(_BINDING, name, f"pod {name} is being deleted, cannot be assigned to a host")
    node = pod["spec"].get("nodeName")
    if node:
        raise ConflictError(_BINDING, name, f'pod {name} is already assigned to node "{node}"')
    if pod["spec"].get("schedulingGates"):
        raise ConflictError(_BINDING, name, f"pod {name} has non-empty .spec.schedulingGates")


def _set_scheduled(pod: Document, now: str) -> None:
    status: Document = dict(pod.get("status") or {})
    pod["status"] = status
    others = [item for item in status.get("conditions") or () if item.get("type") != "PodScheduled"]
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
    status["conditions"] = [*others, scheduled]


_COUNTS: Final = ("tailLines", "limitBytes", "sinceSeconds")
_LOG_OPTIONS: Final = (*_COUNTS, "follow", "previous", "timestamps", "sinceTime", "stream")


def log_query(query: Mapping[str, str]) -> dict[str, str]:
    """What of the query is the node's concern."""
    return {name: query[name] for name in _LOG_OPTIONS if name in query}


def _check_log_options(call: Call) -> None:
    errors = []
    for option in _COUNTS:
        text = call.query.get(option)
        if text is None:
            continue
        value = parse_int(text)
        low = 0 if option == "tailLines" else 1
        if value < low:
            bound = "greater than or equal to 0" if low == 0 else "greater than 0"
            errors.append(invalid(Path(option), value, f"must be {bound}"))
    if errors:
        raise InvalidError("", "PodLogOptions", call.info.name, errors)


def _log_container(pod: Document, wanted: str, name: str) -> str:
    spec = pod["spec"]
    containers = [item["name"] for item in spec.get("containers") or ()]
    everything = containers + [item["name"] for item in spec.get("initContainers") or ()]
    if wanted:
        if wanted not in everything:
            raise BadRequestError(f"container {wanted} is not valid for pod {name}")
        return wanted
    if len(containers) == 1:
        return str(containers[0])
    raise BadRequestError(f"a container name must be specified for pod {name}, choose one of: [{' '.join(containers)}]")
