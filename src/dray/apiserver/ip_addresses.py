"""Keeps an IPAddress object for each cluster IP, named as the address.

The object is created before the Service is stored and removed after it, so that of two API servers that choose one
address at the same moment one is refused. Objects that do not fit the Services are repaired.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Mapping
from datetime import datetime
from ipaddress import ip_address
from typing import Final

import orjson

from dray.api.document import Document, GroupResource, NamespacedName
from dray.api.errors import APIError
from dray.api.services import cluster_ips
from dray.api.timestamps import format_time, parse_time
from dray.apiserver.local_transport import LocalTransport, own_request
from dray.apiserver.malformed import each_shown, load_object
from dray.apiserver.metadata import random_uid
from dray.apiserver.object_cache import SERVICES
from dray.apiserver.reflector import resource_prefix
from dray.apiserver.service_addresses import ServiceAddresses
from dray.lib.clock import Clock
from dray.store.interface import (
    Entry,
    KeyExistsError,
    KeyNotFoundError,
    RevisionConflictError,
    Store,
    StoreError,
)

_LOG: Final = logging.getLogger("dray.apiserver.ip_addresses")
IP_ADDRESSES: Final = GroupResource("networking.k8s.io", "ipaddresses")
FAMILY_LABEL: Final = "ipaddress.kubernetes.io/ip-family"
MANAGED_BY_LABEL: Final = "ipaddress.kubernetes.io/managed-by"
MANAGED_BY: Final = "ipallocator.k8s.io"
# kube-apiserver's.
_REPAIR_SECONDS: Final = 180.0
# The Service of a younger object may not be stored yet.
_YOUNG_SECONDS: Final = 60.0
# Released addresses that wait for the removal of their objects; the repair finds those beyond.
_RELEASED_MAX: Final = 1024


class IPAddressRecords:
    """Writes the objects to the store."""

    def __init__(self, store: Store, clock: Clock, source: random.Random) -> None:
        self._store = store
        self._clock = clock
        self._random = source

    async def claim(self, address: str, service: NamespacedName) -> bool:
        """Create the object of an address; return whether the address is the Service's now."""
        key, value = _key(address), self._encode(address, service)
        for _ in range(2):
            try:
                await self._store.create(key, value)
            except KeyExistsError:
                entry = await self._store.get(key)
                if entry is None:
                    continue
                return await self._take_over(entry, address, service, value)
            else:
                return True
        return False

    async def _take_over(self, entry: Entry, address: str, service: NamespacedName, value: bytes) -> bool:
        document = orjson.loads(entry.value)
        parent = parent_of(document)
        if parent == service:
            return True
        if _is_young(document, self._clock.now()):
            return False
        holder = await self._store.get(f"{resource_prefix(SERVICES)}{parent.namespace}/{parent.name}")
        if holder is not None and address in cluster_ips(orjson.loads(holder.value).get("spec") or {}):
            return False
        try:
            await self._store.update(entry.key, value, expected_revision=entry.revision)
        except (RevisionConflictError, KeyNotFoundError):
            return False
        return True

    async def release(self, address: str) -> None:
        """Remove the object of an address."""
        entry = await self._store.get(_key(address))
        if entry is None:
            return
        try:
            await self._store.delete(entry.key, expected_revision=entry.revision)
        except (RevisionConflictError, KeyNotFoundError):
            # Somebody else has written or removed it.
            return

    async def all(self) -> dict[str, Document]:
        """Return the objects by address."""
        page = await self._store.list_page(resource_prefix(IP_ADDRESSES))
        documents = [item for item in each_shown(load_object, page.entries) if isinstance(item.get("spec"), dict)]
        return {document["metadata"]["name"]: document for document in documents}

    def _encode(self, address: str, service: NamespacedName) -> bytes:
        document: Document = {
            "kind": "IPAddress",
            "apiVersion": "networking.k8s.io/v1",
            "metadata": {
                "name": address,
                "uid": random_uid(self._random),
                "creationTimestamp": format_time(self._clock.now()),
                "labels": {FAMILY_LABEL: f"IPv{ip_address(address).version}", MANAGED_BY_LABEL: MANAGED_BY},
            },
            "spec": {
                "parentRef": {
                    "group": "",
                    "resource": "services",
                    "namespace": service.namespace,
                    "name": service.name,
                }
            },
        }
        return bytes(memoryview(orjson.dumps(document)))


def _key(address: str) -> str:
    return f"{resource_prefix(IP_ADDRESSES)}{address}"


def parent_of(document: Document) -> NamespacedName:
    """Return the Service that an IPAddress belongs to."""
    parent = (document.get("spec") or {}).get("parentRef") or {}
    return NamespacedName(parent.get("namespace") or "", parent.get("name") or "")


def _is_young(document: Document, now: datetime) -> bool:
    created = parse_time(document["metadata"]["creationTimestamp"])
    return (now - created).total_seconds() < _YOUNG_SECONDS


class IPAddressRepair:
    """Removes objects of released addresses, and compares all objects with the Services from time to time."""

    def __init__(self, records: IPAddressRecords, addresses: ServiceAddresses, clock: Clock) -> None:
        self._records = records
        self._addresses = addresses
        self._clock = clock
        self._released: set[str] = set()
        self._wake = asyncio.Event()
        addresses.on_release = self._on_release

    def _on_release(self, addresses: Iterable[str]) -> None:
        if len(self._released) < _RELEASED_MAX:
            self._released.update(addresses)
            self._wake.set()

    async def run(self, server: LocalTransport) -> None:
        """Repair at the start, and from then on."""
        repair_at = self._clock.monotonic()
        while True:
            try:
                if self._clock.monotonic() >= repair_at:
                    repair_at = self._clock.monotonic() + _REPAIR_SECONDS
                    await self.repair(server)
                await self._remove_released()
            except (APIError, StoreError) as error:
                # The next round may succeed.
                _LOG.warning("cannot repair IP addresses: %s", error)
            try:
                async with asyncio.timeout(_REPAIR_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _remove_released(self) -> None:
        self._wake.clear()
        released, self._released = self._released, set()
        for address in sorted(released):
            if self._addresses.owner(address) is None:
                await self._records.release(address)

    async def repair(self, server: LocalTransport) -> None:
        """Create missing objects, remove those of no Service, and record an event for each."""
        found = await self._records.all()
        now = self._clock.now()
        for address, service in sorted(self._addresses.cluster_ips().items()):
            document = found.get(address)
            if document is not None and parent_of(document) == service:
                continue
            family = f"IPv{ip_address(address).version}"
            text = f"Cluster IP [{family}]: {address} is not allocated; repairing"
            if await self._records.claim(address, service):
                await _record(server, "ClusterIPNotAllocated", text, _service_reference(service), now)
        for address, document in sorted(found.items()):
            if self._addresses.owner(address) is not None or _is_young(document, now):
                continue
            await self._records.release(address)
            text = f"IPAddress: {address} for Service {parent_of(document)} appears to have leaked: cleaning up"
            reference = {"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress", "name": address}
            await _record(server, "IPAddressNotAllocated", text, reference, now)


def _service_reference(service: NamespacedName) -> Mapping[str, str]:
    return {"apiVersion": "v1", "kind": "Service", "namespace": service.namespace, "name": service.name}


async def _record(server: LocalTransport, reason: str, message: str, about: Mapping[str, str], now: datetime) -> None:
    event = {
        "metadata": {"generateName": f"{about['name']}-"},
        "type": "Warning",
        "reason": reason,
        "message": message,
        "involvedObject": dict(about),
        "source": {"component": "ipallocator-repair-controller"},
        "firstTimestamp": format_time(now),
        "lastTimestamp": format_time(now),
        "count": 1,
    }
    namespace = about.get("namespace") or "default"
    await server.handle(own_request("create", "", "v1", "events", namespace=namespace, body=event))
