"""Subresources of Pods: binding and log; evictions and streams are in modules of their own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Final, Protocol

import orjson

from dray.api.document import Document, GroupResource, GroupVersionKind
from dray.api.errors import BadRequestError, ConflictError, InvalidError, NotFoundError
from dray.api.field_errors import Path, invalid, required
from dray.api.timestamps import format_time
from dray.apiserver.admission.plugin import AdmissionAttributes, Operation
from dray.apiserver.call import Call, DocumentResult, Result, TextResult, success
from dray.apiserver.decoding import decode_message
from dray.apiserver.endpoint import KEY_ROOT, Endpoint
from dray.apiserver.handlers.backend import Backend
from dray.apiserver.handlers.get import GetHandler
from dray.apiserver.handlers.update import METADATA_RULES_ONLY, Change, UpdateHandler
from dray.apiserver.options import parse_int, parse_write_options

BINDING: Final = GroupVersionKind("", "v1", "Binding")
_BINDING: Final = GroupResource("", "pods/binding")
_COUNT_OPTIONS: Final = ("tailLines", "limitBytes", "sinceSeconds")
_LOG_OPTIONS: Final = (*_COUNT_OPTIONS, "follow", "previous", "timestamps", "sinceTime", "stream")


class LogSource(Protocol):
    """Reads container logs from nodes."""

    async def open(self, node: Document, container: str, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        """Start reading `namespace/pod/container`; raises `APIError` if the node refuses or cannot be reached."""


class PodSubresources:
    """Handles the subresources of Pods."""

    def __init__(self, backend: Backend, get: GetHandler, update: UpdateHandler, logs: LogSource | None) -> None:
        self._backend = backend
        self._get = get
        self._update = update
        self._logs = logs

    async def bind(self, call: Call, endpoint: Endpoint) -> Result:
        """Bind a Pod to a node, once. For admission it is the creation of a Binding, whose labels the Pod gets."""
        options = parse_write_options(call.query, "CreateOptions")
        binding = decode_message(call.body, call.content_type, BINDING)
        attributes = AdmissionAttributes.of(call, endpoint, Operation.CREATE, options, binding)
        await self._backend.admission.admit(attributes)
        target: Document = binding.get("target") or {}
        _check_target(target)
        undo = await self._backend.admission.validate(attributes)
        now = format_time(self._backend.clock.now())
        metadata: Document = binding.get("metadata") or {}
        added = {name: metadata[name] for name in ("annotations", "labels") if metadata.get(name)}

        def build(old: Document) -> Document:
            _check_bindable(old, call.info.name, metadata)
            # Only what changes is copied: no strategy runs that could change the rest.
            pod = old | {"metadata": dict(old["metadata"]), "spec": old["spec"] | {"nodeName": target["name"]}}
            for name, texts in added.items():
                pod["metadata"][name] = (pod["metadata"].get(name) or {}) | texts
            _set_scheduled(pod, now)
            # The Pod has the node, so nothing has to be kept for it any more.
            pod["status"].pop("nominatedNodeName", None)
            return pod

        change = Change(METADATA_RULES_ONLY, options, build, "binding", stamped=True, admitted=True)
        try:
            await self._update.change(call, endpoint, change)
        except BaseException:
            await undo()
            raise
        return DocumentResult(success(code=201), 201)

    async def log(self, call: Call, endpoint: Endpoint) -> Result:
        """Stream the log of a container from its node."""
        _check_log_options(call)
        found = await self._get.get(call, endpoint)
        pod = endpoint.decode(found.entry.value, found.entry.revision)
        container = _log_container(pod, call.query.get("container", ""), call.info.name)
        node_name = pod["spec"].get("nodeName")
        if not node_name:
            raise BadRequestError(f"pod {call.info.name} does not have a host assigned")
        entry = await self._backend.store.get(f"{KEY_ROOT}core/nodes/{node_name}")
        if entry is None or self._logs is None:
            # No node is registered under the name; kube-apiserver names the node, yet calls it a pod.
            raise NotFoundError(GroupResource("", "pods"), node_name)
        path = f"{call.info.namespace}/{call.info.name}/{container}"
        stream = await self._logs.open(orjson.loads(entry.value), path, _log_query(call.query))
        return TextResult(b"", "text/plain", stream=stream)


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


def _log_query(query: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters that are passed on to the node."""
    return {name: query[name] for name in _LOG_OPTIONS if name in query}


def _check_log_options(call: Call) -> None:
    errors = []
    for option in _COUNT_OPTIONS:
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
    others = (*(spec.get("initContainers") or ()), *(spec.get("ephemeralContainers") or ()))
    everything = containers + [item["name"] for item in others]
    if wanted:
        if wanted not in everything:
            raise BadRequestError(f"container {wanted} is not valid for pod {name}")
        return wanted
    if len(containers) == 1:
        return str(containers[0])
    raise BadRequestError(f"a container name must be specified for pod {name}, choose one of: [{' '.join(containers)}]")
