"""Finds a ready endpoint of a Service, for calls that the API server itself makes.

No ClusterIP is dialled, so it works without any set-up of the network.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

import orjson

from dray.api.document import Document, GroupResource
from dray.apiserver.object_cache import SERVICES
from dray.apiserver.reflector import resource_prefix
from dray.store.interface import Store

_SLICES: Final = GroupResource("discovery.k8s.io", "endpointslices")
_SERVICE_LABEL: Final = "kubernetes.io/service-name"


class ServiceUnresolvedError(Exception):
    """A Service has no endpoint that could be called."""


class ServiceResolver:
    """Finds endpoints in the store."""

    def __init__(self, store: Store, random_source: random.Random) -> None:
        self._store = store
        self._random = random_source

    async def port(self, namespace: str, name: str, text: str) -> int:
        """Return the port that a caller means: a number, a name, or the only port if it is empty."""
        entry = await self._store.get(f"{resource_prefix(SERVICES)}{namespace}/{name}")
        if entry is None:
            raise ServiceUnresolvedError(f'service "{name}" not found')
        ports = list((orjson.loads(entry.value).get("spec") or {}).get("ports") or ())
        found = [item["port"] for item in ports if text in (item.get("name") or "", str(item["port"]))]
        if not found and not text and len(ports) == 1:
            found = [ports[0]["port"]]
        if not found:
            raise ServiceUnresolvedError(f'no service port "{text}" found for service "{name}"')
        return int(found[0])

    async def resolve(self, namespace: str, name: str, port: int) -> tuple[str, int]:
        """Return address and port of a ready endpoint, starting at a random one."""
        entry = await self._store.get(f"{resource_prefix(SERVICES)}{namespace}/{name}")
        if entry is None:
            raise ServiceUnresolvedError(f'service "{name}" not found')
        spec = orjson.loads(entry.value).get("spec") or {}
        if spec.get("type") == "ExternalName":
            raise ServiceUnresolvedError(f'unsupported service type "ExternalName" of service "{name}"')
        port_name = _port_name(spec, port)
        if port_name is None:
            raise ServiceUnresolvedError(f'no service port {port} found for service "{name}"')
        page = await self._store.list_page(f"{resource_prefix(_SLICES)}{namespace}/")
        slices = [orjson.loads(item.value) for item in page.entries if name.encode() in item.value]
        found = [address for item in slices for address in _addresses(item, name, port_name)]
        if not found:
            raise ServiceUnresolvedError(f'no endpoints available for service "{name}"')
        return self._random.choice(found)


def _port_name(spec: Document, port: int) -> str | None:
    """Return the name of a Service's port; None if it has no such port."""
    return next((item.get("name") or "" for item in spec.get("ports") or () if item.get("port") == port), None)


def _addresses(endpoint_slice: Document, service: str, port_name: str) -> Iterator[tuple[str, int]]:
    if (endpoint_slice["metadata"].get("labels") or {}).get(_SERVICE_LABEL) != service:
        return
    ports = [item for item in endpoint_slice.get("ports") or () if (item.get("name") or "") == port_name]
    for endpoint in endpoint_slice.get("endpoints") or ():
        if (endpoint.get("conditions") or {}).get("ready") is False or not endpoint.get("addresses"):
            continue
        for port in ports:
            if port.get("port"):
                yield endpoint["addresses"][0], port["port"]
