"""The environment variables by which containers find Services. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from dray.api.document import Document, NamespacedName, key_of
from dray.api.services import NONE
from dray.api.types.core_v1 import Pod

API_SERVER: Final = NamespacedName("default", "kubernetes")


def service_variables(
    pod: Pod, services: Iterable[Document], api_server: tuple[str, int] | None = None
) -> dict[str, str]:
    """Return the variables of the API server's Service and, unless the Pod declines, of those in its namespace.

    `api_server` is the server's own host and port, for nodes without a way to cluster IPs.
    """
    chosen = {key: spec for key, spec in _with_address(services) if _is_shown(pod, key)}
    if api_server is not None:
        host, port = api_server
        chosen[API_SERVER] = {"clusterIP": host, "ports": [{"name": "https", "port": port, "protocol": "TCP"}]}
    variables: dict[str, str] = {}
    # That of the Pod's own namespace wins over the API server's.
    for key in sorted(chosen, key=lambda key: (key != API_SERVER, key.name)):
        variables.update(_variables(key.name, chosen[key]))
    return variables


def _is_shown(pod: Pod, key: NamespacedName) -> bool:
    return key == API_SERVER or (pod.spec.enable_service_links is not False and key.namespace == pod.metadata.namespace)


def _with_address(services: Iterable[Document]) -> Iterator[tuple[NamespacedName, Document]]:
    for service in services:
        spec = service.get("spec") or {}
        if spec.get("clusterIP") and spec["clusterIP"] != NONE and spec.get("ports"):
            yield key_of(service), spec


def _variables(service: str, spec: Document) -> Iterator[tuple[str, str]]:
    name, host, ports = _upper(service), str(spec["clusterIP"]), spec["ports"]
    in_url = f"[{host}]" if ":" in host else host
    yield f"{name}_SERVICE_HOST", host
    yield f"{name}_SERVICE_PORT", str(ports[0]["port"])
    for port in ports:
        if port.get("name"):
            yield f"{name}_SERVICE_PORT_{_upper(port['name'])}", str(port["port"])
    for position, port in enumerate(ports):
        number, protocol = port["port"], port.get("protocol") or "TCP"
        url = f"{protocol.lower()}://{in_url}:{number}"
        prefix = f"{name}_PORT_{number}_{protocol.upper()}"
        if position == 0:
            yield f"{name}_PORT", url
        yield prefix, url
        yield f"{prefix}_PROTO", protocol.lower()
        yield f"{prefix}_PORT", str(number)
        yield f"{prefix}_ADDR", host


def _upper(name: str) -> str:
    return name.replace("-", "_").upper()
