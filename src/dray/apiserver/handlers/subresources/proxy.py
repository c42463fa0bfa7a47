"""The subresource proxy of Pods, Services and Nodes: passes HTTP requests on to what runs there.

The caller's credentials stay here. Paths in answers are changed so that links lead back through the API server.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import urlsplit

import msgspec

from dray.api.document import Document
from dray.api.errors import APIError, BadRequestError, NotFoundError, ServiceUnavailableError
from dray.apiserver.admission.plugin import AdmissionAttributes, Operation
from dray.apiserver.call import Call, ProxyResult, Result, TextResult, UpgradeResult
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.handlers.backend import Backend
from dray.apiserver.handlers.get import GetHandler
from dray.apiserver.object_cache import SERVICES
from dray.apiserver.options import WriteOptions, shortened
from dray.apiserver.service_resolver import ServiceResolver, ServiceUnresolvedError
from dray.lib.ports import parse_port
from dray.runtime.http.client import HttpClient
from dray.runtime.http.connection import ClientResponse, ResponseBody
from dray.runtime.http.dialing import Route
from dray.runtime.http.errors import AddressNotAllowedError, HttpError
from dray.runtime.http.urls import Origin

ANSWER_SECONDS_MAX: Final = 60.0
# Pages in which links are changed; longer ones are passed on as they are.
PAGE_BYTES_MAX: Final = 1024 * 1024
_HTTPS: Final = "https"
# Not passed on: they belong to the connection, say who calls, or are set anew.
_DROPPED: Final = frozenset(
    {
        *(
            "connection",
            "keep-alive",
            "proxy-authenticate",
            "proxy-authorization",
            "te",
            "trailer",
            "transfer-encoding",
        ),
        *("upgrade", "authorization", "content-length", "host", "cookie", "accept-encoding", "expect"),
        *("x-forwarded-uri", "x-forwarded-host", "x-forwarded-proto"),
    }
)
_IMPERSONATION: Final = "impersonate-"
_HOP_HEADERS: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "date", "upgrade"})
_LINK: Final = re.compile(
    rb"""(<[^>]*?\s(?:href|src|action|data|formaction|poster)\s*=\s*["']?)(/(?!/)[^"'\s>]*)""", re.I
)

Headers = Sequence[tuple[str, str]]


class NodeProxy(Protocol):
    """Sends requests to the agents of nodes; implemented by `KubeletClient`."""

    def node_client(self, node: Document) -> HttpClient:
        """Return a client of one node's own port; raises `APIError` if the node has none."""


@dataclass(frozen=True, slots=True)
class Place:
    """A name in a proxy's path: `[scheme:]name[:port]`."""

    name: str
    scheme: str = ""
    port: str = ""


def parse_place(text: str) -> Place:
    """Read such a name; raises `BadRequestError`."""
    parts = text.split(":")
    match parts:
        case [name] if name:
            return Place(name)
        case [name, port] if name:
            return Place(name, port=port)
        case [scheme, name, port] if name and scheme in ("", "http", _HTTPS):
            return Place(name, scheme, port)
    raise BadRequestError(f'invalid proxy request "{text}"')


def split_path(path: str) -> tuple[str, str | None]:
    """Return the path of the proxy itself and the rest, None if there is not even a slash."""
    head, _, rest = path.partition("/proxy/")
    if not rest and not path.endswith("/proxy/"):
        return path, None
    return f"{head}/proxy", f"/{rest}"


class ProxyHandler:
    """Finds where a request goes, and returns how to send it."""

    def __init__(self, backend: Backend, get: GetHandler, services: ServiceResolver, nodes: NodeProxy | None) -> None:
        self._backend = backend
        self._get = get
        self._services = services
        self._nodes = nodes
        # As in kube-apiserver, nobody has signed the certificates of Pods.
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._tls.check_hostname = False
        self._tls.verify_mode = ssl.CERT_NONE

    async def connect(self, call: Call, endpoint: Endpoint) -> Result:
        """Check the request, and return how to pass it on."""
        place = parse_place(call.info.name)
        prefix, path = split_path(call.info.path)
        await self._admit(call, endpoint, path or "")
        if path is None:
            query = f"?{call.raw_query}" if call.raw_query else ""
            return TextResult(b"", status=301, headers=(("Location", f"{prefix}/{query}"),))
        call.info = msgspec.structs.replace(call.info, name=place.name)
        client = await self._client(call, endpoint, place)
        target = f"{path}?{call.raw_query}" if call.raw_query else path
        if call.upgrade:
            return UpgradeResult(lambda headers: _upgrade(client, call.info.method, target, headers))
        body = call.body if isinstance(call.body, bytes) else None

        async def send(headers: Headers) -> TextResult:
            kept = [*passed_on(headers), ("X-Forwarded-Uri", call.info.path), ("X-Forwarded-Proto", "https")]
            kept += [("X-Forwarded-Host", value) for name, value in headers if name.lower() == "host"]
            try:
                response = await client.send(call.info.method, target, kept, body, ANSWER_SECONDS_MAX)
            except HttpError as error:
                raise _unreachable(error) from error
            return await _answer(response, prefix)

        return ProxyResult(send)

    async def _admit(self, call: Call, endpoint: Endpoint, path: str) -> None:
        options = {"kind": f"{endpoint.definition.kind}ProxyOptions", "apiVersion": "v1", "path": path}
        attributes = AdmissionAttributes.of(call, endpoint, Operation.CONNECT, WriteOptions()).with_objects(options)
        await self._backend.admission.admit(attributes)
        await self._backend.admission.validate(attributes)

    async def _client(self, call: Call, endpoint: Endpoint, place: Place) -> HttpClient:
        resource = endpoint.definition.resource
        if resource == "services":
            return await self._service_client(call, place)
        found = await self._get.get(call, endpoint)
        document = endpoint.decode(found.entry.value, found.entry.revision)
        if resource == "pods":
            host, port = pod_address(document, place)
            return self._plain(place, host, port)
        if self._nodes is None:
            raise NotFoundError(endpoint.resource, place.name)
        status = document.get("status") or {}
        own = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port")
        if place.port and place.port != str(own):
            addresses = [item["address"] for item in status.get("addresses") or () if item.get("type") == "InternalIP"]
            return self._plain(place, addresses[0] if addresses else place.name, _number(place.port))
        return self._nodes.node_client(document)

    async def _service_client(self, call: Call, place: Place) -> HttpClient:
        namespace = call.info.namespace
        try:
            port = await self._services.port(namespace, place.name, place.port)
            host, number = await self._services.resolve(namespace, place.name, port)
        except ServiceUnresolvedError as error:
            if "not found" in str(error):
                raise NotFoundError(SERVICES, place.name) from error
            raise ServiceUnavailableError(str(error)) from error
        return self._plain(place, host, number)

    def _plain(self, place: Place, host: str, port: int) -> HttpClient:
        is_secure = place.scheme == _HTTPS
        origin = Origin(_HTTPS if is_secure else "http", host, port)
        # The host comes from a Pod's status, an EndpointSlice or a Node: it could be this machine itself.
        return HttpClient(Route(origin, self._tls if is_secure else None, refuses_special=True), keep=False)


def _unreachable(error: HttpError) -> APIError:
    if isinstance(error, AddressNotAllowedError):
        return BadRequestError(str(error))
    return ServiceUnavailableError(f"error trying to reach service: {error}")


def pod_address(pod: Document, place: Place) -> tuple[str, int]:
    """Return address and port of a Pod; without a port the first that a container names."""
    host = (pod.get("status") or {}).get("podIP") or ""
    if not host:
        raise ServiceUnavailableError(f"pod {place.name} has no address")
    ports = [port for item in pod["spec"].get("containers") or () for port in item.get("ports") or ()]
    if not place.port:
        return host, int(ports[0]["containerPort"]) if ports else (443 if place.scheme == _HTTPS else 80)
    named = [port["containerPort"] for port in ports if port.get("name") == place.port]
    return host, int(named[0]) if named else _number(place.port)


def _number(text: str) -> int:
    port = parse_port(text)
    if port is None:
        raise BadRequestError(f'invalid port "{shortened(text)}"')
    return port


def passed_on(headers: Headers) -> list[tuple[str, str]]:
    """Return the headers of a request that go on; the caller's credentials do not."""
    return [
        (name, value)
        for name, value in headers
        if name.lower() not in _DROPPED and not name.lower().startswith(_IMPERSONATION)
    ]


def rewritten(name: str, value: str, prefix: str) -> str:
    """Return the value of a header of the answer; a place on the same server leads through the proxy."""
    if name.lower() != "location":
        return value
    parts = urlsplit(value)
    if parts.netloc or not value.startswith("/") or value.startswith(f"{prefix}/"):
        return value
    return f"{prefix}{value}"


def rewrite_links(page: bytes, prefix: str) -> bytes:
    """Return a page whose links to paths of its server lead through the proxy."""
    own = prefix.encode()

    def change(match: re.Match[bytes]) -> bytes:
        path = match[2]
        return match[1] + (path if path.startswith(own + b"/") else own + path)

    return _LINK.sub(change, page)


def _upgrade(client: HttpClient, method: str, target: str, headers: Headers) -> Awaitable[ClientResponse]:
    async def send() -> ClientResponse:
        try:
            return await client.upgrade(method, target, headers, ANSWER_SECONDS_MAX)
        except HttpError as error:
            raise _unreachable(error) from error

    return send()


async def _answer(response: ClientResponse, prefix: str) -> TextResult:
    found = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.reader.headers]
    kept = tuple((name, rewritten(name, value, prefix)) for name, value in found if name.lower() not in _HOP_HEADERS)
    content_type = next((value for name, value in kept if name.lower() == "content-type"), "")
    headers = tuple(item for item in kept if item[0].lower() != "content-type")
    if not content_type.lower().startswith("text/html"):
        return TextResult(b"", content_type or "text/plain", response.status, headers, ResponseBody(response))
    page = b""
    while len(page) < PAGE_BYTES_MAX and (piece := await _more(response)):
        page += piece
    if len(page) < PAGE_BYTES_MAX:
        page = rewrite_links(page, prefix)
    return TextResult(b"", content_type, response.status, headers, ResponseBody(response, page))


async def _more(response: ClientResponse) -> bytes:
    try:
        return await response.more()
    except HttpError as error:
        raise ServiceUnavailableError(f"error trying to reach service: {error}") from error
    except BaseException:
        # The client has left.
        response.close()
        raise
