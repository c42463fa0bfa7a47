"""Where and how a node can be asked, from its Node object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dray.api.document import Document
from dray.api.errors import ServiceUnavailableError

# Only the node itself may write its annotations: whoever has this certificate is the node.
FINGERPRINT_ANNOTATION: Final = "dray.dev/serving-certificate-sha256"
_PREFERENCE: Final = ("InternalIP", "Hostname", "InternalDNS", "ExternalDNS", "ExternalIP")


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """A node's HTTPS endpoint; an empty fingerprint means that the cluster's authority certified it."""

    host: str
    port: int
    fingerprint: bytes = b""

    @property
    def url(self) -> str:
        """The beginning of all its paths."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"https://{host}:{self.port}"


def node_address(node: Document) -> NodeAddress:
    """Read a Node; one that nobody can be asked at is not available."""
    name = node["metadata"]["name"]
    status = node.get("status") or {}
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
