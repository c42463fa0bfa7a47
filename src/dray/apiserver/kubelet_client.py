"""Reads container logs from node agents and asks them for streams, over HTTPS with a client certificate."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

from dray.api.document import Document
from dray.api.errors import BadRequestError, InternalError, NotOfferedError, PathNotFoundError, ServiceUnavailableError
from dray.runtime.http.client import HttpClient
from dray.runtime.http.connection import ClientResponse, ResponseBody
from dray.runtime.http.dialing import Route
from dray.runtime.http.errors import HttpError
from dray.runtime.http.urls import Origin

if TYPE_CHECKING:
    # Servers with node agents have it; a server without a port needs no files of certificates.
    from dray.apiserver.authentication.pki import KubeletTLS

MESSAGE_BYTES_MAX: Final = 10_000
# A node accepts or refuses a stream before it starts anything.
UPGRADE_SECONDS_MAX: Final = 30.0
# Nodes whose containers are only pretended report this runtime.
SIMULATED_RUNTIME: Final = "simulated://"
_FAILURES: Final = 400


class KubeletClient:
    """Implements `LogSource`, `NodeStreams` and `NodeProxy`."""

    def __init__(self, tls: KubeletTLS) -> None:
        self._tls = tls
        self._streams: set[HttpClient] = set()

    async def close(self) -> None:
        """End all streams."""
        for client in tuple(self._streams):
            await client.close()

    async def open(self, node: Document, container: str, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        """Start reading a log; a refusal raises before the first byte."""
        address = node_address(node)
        target = f"/containerLogs/{quote(container)}"
        client = self._client(address)
        self._streams.add(client)
        try:
            response = await client.send("GET", f"{target}?{urlencode(query)}" if query else target)
            await _check(response)
        except HttpError as error:
            self._streams.discard(client)
            raise InternalError(f'Get "{address.url}{target}": {error}') from error
        except BaseException:
            self._streams.discard(client)
            raise
        return ResponseBody(response, on_close=lambda: self._streams.discard(client))

    async def upgrade(
        self, node: Document, method: str, target: str, headers: Sequence[tuple[str, str]]
    ) -> ClientResponse:
        """Ask a node for another protocol; its answer may be a refusal, and must be closed in any case."""
        address = node_address(node)
        client = self._client(address, keep=True)
        try:
            return await client.upgrade(method, target, headers, UPGRADE_SECONDS_MAX)
        except HttpError as error:
            raise InternalError(f"error dialing backend: {error}") from error

    def node_client(self, node: Document) -> HttpClient:
        """Return a client for one request to a node's own port; raises `APIError` if the node has none."""
        return self._client(node_address(node))

    def _client(self, address: NodeAddress, *, keep: bool = False) -> HttpClient:
        """Return a client for one stream; a fingerprint belongs to the connections of one node."""
        # A pinned node is verified by its fingerprint; both contexts present the client certificate.
        tls = self._tls.pinned if address.fingerprint else self._tls.certified
        origin = Origin("https", address.host, address.port)
        return HttpClient(Route(origin, tls, fingerprint=address.fingerprint), keep=keep)


async def _check(response: ClientResponse) -> None:
    if response.status < _FAILURES:
        return
    with response:
        text = (await response.read(MESSAGE_BYTES_MAX)).decode(errors="replace").strip()
    if response.status == HTTPStatus.BAD_REQUEST:
        raise BadRequestError(text)
    if response.status == HTTPStatus.NOT_FOUND:
        raise PathNotFoundError
    raise InternalError(text)


# Only the node itself may write its annotations, so that the certificate with this fingerprint is the node's.
FINGERPRINT_ANNOTATION: Final = "dray.dev/serving-certificate-sha256"
_PREFERENCE: Final = ("InternalIP", "Hostname", "InternalDNS", "ExternalDNS", "ExternalIP")


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """A node's HTTPS endpoint; without a fingerprint the cluster's CA has signed its certificate."""

    host: str
    port: int
    fingerprint: bytes = b""

    @property
    def url(self) -> str:
        """The base URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"https://{host}:{self.port}"


def is_simulated(node: Document) -> bool:
    """Return whether the containers of a Node are only pretended."""
    info = (node.get("status") or {}).get("nodeInfo") or {}
    return str(info.get("containerRuntimeVersion") or "").startswith(SIMULATED_RUNTIME)


def node_address(node: Document) -> NodeAddress:
    """Return the address of a Node; raises `ServiceUnavailableError` without one, `NotOfferedError` if simulated."""
    name = node["metadata"]["name"]
    status = node.get("status") or {}
    if is_simulated(node):
        raise NotOfferedError(f"node {name} is simulated: its containers have no processes, logs or ports")
    port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port") or 0
    addresses = {item.get("type"): item.get("address") for item in status.get("addresses") or ()}
    host = next((addresses[kind] for kind in _PREFERENCE if addresses.get(kind)), "")
    if not host or not port:
        raise ServiceUnavailableError(f"node {name} does not say where it can be asked")
    annotations = node["metadata"].get("annotations") or {}
    try:
        fingerprint = bytes.fromhex(annotations.get(FINGERPRINT_ANNOTATION) or "")
    except ValueError as error:
        raise ServiceUnavailableError(f"node {name}: {FINGERPRINT_ANNOTATION} is not hexadecimal") from error
    return NodeAddress(host, port, fingerprint)
