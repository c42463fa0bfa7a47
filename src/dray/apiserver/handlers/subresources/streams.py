"""The subresources exec, attach and portforward of Pods: finds the node, whose agent speaks with the client.

The API server checks the request and then only passes bytes on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol
from urllib.parse import parse_qs, quote, urlencode

import msgspec
import orjson

from dray.api.document import Document, GroupResource
from dray.api.errors import BadRequestError, NotFoundError
from dray.apiserver.admission.plugin import AdmissionAttributes, Operation
from dray.apiserver.authorization.authorizer import Authorizer
from dray.apiserver.call import Call, EndedSessionResult, Result, UpgradeResult
from dray.apiserver.endpoint import KEY_ROOT, Endpoint
from dray.apiserver.handlers.backend import Backend
from dray.apiserver.handlers.get import GetHandler
from dray.apiserver.kubelet_client import is_simulated
from dray.apiserver.options import WriteOptions, shortened
from dray.apiserver.registry.pods import PODS
from dray.apiserver.request import Attributes
from dray.lib.ports import parse_port
from dray.rpc.remote_command.messages import StreamOptions

# Nodes that list this feature speak WebSocket themselves; others only SPDY.
WEBSOCKETS_FEATURE: Final = "ExtendWebSocketsToKubelet"
# Subprotocols that nodes without the feature do not know: clients fall back to SPDY when they are refused.
_NEW_PROTOCOLS: Final = ("v5.channel.k8s.io", "SPDY/3.1+portforward.k8s.io")
_STREAMS: Final = {"stdin": "input", "stdout": "output", "stderr": "error", "tty": "tty"}
_ROWS: Final = {row.name: row for row in PODS.subresources if row.stream_path}
_TRUE: Final = ("true", "1")
# As many as a node forwards in one stream.
PORTS_MAX: Final = 256

Headers = Sequence[tuple[str, str]]


class NodeStreams(Protocol):
    """Asks nodes for streams; implemented by `KubeletClient`."""

    async def upgrade(self, node: Document, method: str, target: str, headers: Headers) -> Any:
        """Send an upgrade request to a node and return its response; raises `APIError` if it cannot be reached."""


class PodStreams:
    """Handles the streaming subresources of Pods."""

    def __init__(
        self,
        backend: Backend,
        get: GetHandler,
        authorizer: Authorizer,
        attributes_of: Callable[[Call], Attributes],
        nodes: NodeStreams | None,
    ) -> None:
        self._backend = backend
        self._get = get
        self._authorizer = authorizer
        self._attributes_of = attributes_of
        self._nodes = nodes

    async def connect(self, call: Call, endpoint: Endpoint) -> Result:
        """Check the request, and return how to reach the node."""
        info = call.info
        if info.verb == "get":
            # A WebSocket begins with GET, and yet does as much as POST.
            self._authorizer.check(msgspec.structs.replace(self._attributes_of(call), verb="create"))
        values = parse_qs(call.raw_query or urlencode(call.query), keep_blank_values=True)
        options = stream_options(info.subresource, values)
        await self._admit(call, endpoint, options)
        found = await self._get.get(call, endpoint)
        pod = endpoint.decode(found.entry.value, found.entry.revision)
        target = _target(call, pod, options)
        node = await self._node(call, pod)
        if not call.upgrade:
            raise BadRequestError("Upgrade request required")
        if info.subresource == "attach" and is_simulated(node):
            return EndedSessionResult(_session_options(pod, options))
        _check_protocol(call, node)
        nodes = self._nodes
        assert nodes is not None

        def connect(headers: Headers) -> Awaitable[Any]:
            return nodes.upgrade(node, info.method, target, headers)

        return UpgradeResult(connect)

    async def _admit(self, call: Call, endpoint: Endpoint, options: Document) -> None:
        attributes = AdmissionAttributes.of(call, endpoint, Operation.CONNECT, WriteOptions())
        attributes = attributes.with_objects(options)
        await self._backend.admission.admit(attributes)
        await self._backend.admission.validate(attributes)

    async def _node(self, call: Call, pod: Document) -> Document:
        name = pod["spec"].get("nodeName")
        if not name:
            raise BadRequestError(f"pod {call.info.name} does not have a host assigned")
        entry = await self._backend.store.get(f"{KEY_ROOT}core/nodes/{name}")
        if entry is None or self._nodes is None:
            raise NotFoundError(GroupResource("", "nodes"), name)
        node: Document = orjson.loads(entry.value)
        return node


def stream_options(subresource: str, values: Mapping[str, Sequence[str]]) -> Document:
    """Return the options object of a request, which admission sees."""
    kind = _ROWS[subresource].kind
    assert kind is not None, "a stream has options"
    options: Document = {"kind": kind.kind, "apiVersion": "v1"}
    if subresource == "portforward":
        words = [word for value in values.get("ports", ()) for word in value.split(",")]
        if len(words) > PORTS_MAX:
            raise BadRequestError(f"at most {PORTS_MAX} ports can be forwarded")
        return options | ({"ports": [_port(word) for word in words]} if words else {})
    options |= {name: True for name in _STREAMS if values.get(name, ("",))[0] in _TRUE}
    if values.get("container", ("",))[0]:
        options["container"] = values["container"][0]
    if subresource == "exec":
        options["command"] = list(values.get("command", ()))
    return options


def _port(word: str) -> int:
    """Return a port, or 0; the error messages are those of Go's parser."""
    port = 0 if word == "0" else parse_port(word)
    if port is None:
        why = "value out of range" if word.isascii() and word.isdecimal() else "invalid syntax"
        raise BadRequestError(f'cannot convert to []int32: strconv.ParseUint: parsing "{shortened(word)}": {why}')
    return port


def _target(call: Call, pod: Document, options: Document) -> str:
    """Return the path and query for the node."""
    info = call.info
    path = f"/{_ROWS[info.subresource].stream_path}/{quote(info.namespace)}/{quote(info.name)}"
    if info.subresource == "portforward":
        query = [("port", str(port)) for port in options.get("ports", ())]
    else:
        path += f"/{quote(stream_container(pod, options.get('container', ''), info.name))}"
        query = [("command", word) for word in options.get("command", ())]
        query += [(parameter, "1") for name, parameter in _STREAMS.items() if options.get(name)]
    return f"{path}?{urlencode(query)}" if query else path


def stream_container(pod: Document, wanted: str, name: str) -> str:
    """Return the container that a client means; init and ephemeral containers can be named."""
    spec = pod["spec"]
    regular, initial, ephemeral = (
        [item["name"] for item in spec.get(field) or ()]
        for field in ("containers", "initContainers", "ephemeralContainers")
    )
    if wanted:
        if wanted not in (*regular, *initial, *ephemeral):
            raise BadRequestError(f"container {wanted} is not valid for pod {name}")
        return wanted
    if len(regular) == 1:
        return str(regular[0])
    raise BadRequestError(f"a container name must be specified for pod {name}, choose one of: [{' '.join(regular)}]")


def _session_options(pod: Document, options: Document) -> StreamOptions:
    """Return the streams of an attached client; the terminal is the container's, whatever the client says."""
    name = stream_container(pod, options.get("container", ""), pod["metadata"]["name"])
    kinds = ("containers", "initContainers", "ephemeralContainers")
    container = next(item for kind in kinds for item in pod["spec"].get(kind) or () if item["name"] == name)
    tty = bool(container.get("tty"))
    stdin, stdout, stderr = (bool(options.get(stream)) for stream in ("stdin", "stdout", "stderr"))
    return StreamOptions(stdin, stdout, stderr and not tty, tty)


def _check_protocol(call: Call, node: Document) -> None:
    """Refuse protocols that an older node does not know, so that the client falls back to SPDY."""
    features = (node.get("status") or {}).get("declaredFeatures") or ()
    offered = [name.strip() for name in call.websocket_protocols.split(",")]
    if WEBSOCKETS_FEATURE not in features and any(name in _NEW_PROTOCOLS for name in offered):
        raise BadRequestError(f"node {node['metadata']['name']} does not offer {', '.join(offered)}")
