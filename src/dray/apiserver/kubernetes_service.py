"""Keeps the Service `default/kubernetes` and its endpoints, by which Pods and clients find the API server."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import logging
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.api.errors import AlreadyExistsError, APIError, NotFoundError
from dray.api.services import Network
from dray.api.timestamps import format_micro_time, format_time, parse_time
from dray.apiserver.local_transport import LocalTransport, own_request
from dray.lib.clock import Clock

_LOG: Final = logging.getLogger("dray.apiserver.kubernetes_service")
# kube-apiserver's interval.
_CHECK_SECONDS: Final = 10.0
_NAMESPACE: Final = "default"
_NAME: Final = "kubernetes"
_PORT: Final = {"name": "https", "protocol": "TCP"}
_HTTPS: Final = 443
_RANGES: Final = ("networking.k8s.io", "v1", "servicecidrs")
_LEASES: Final = ("coordination.k8s.io", "v1", "leases")
_LEASE_NAMESPACE: Final = "kube-system"
_SERVERS_SELECTOR: Final = "apiserver.kubernetes.io/identity=kube-apiserver"
_ADDRESS_ANNOTATION: Final = "dray.dev/advertise-address"
# Six missed renewals.
_LEASE_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class Advertised:
    """Where this server is reached; the host is empty if only this machine reaches it."""

    host: str
    port: int
    # Whether other servers may share the store.
    is_one_of_many: bool = False


class KubernetesService:
    """Creates and repairs the objects; safe to run by several servers.

    Servers that share a store know each other by Leases; the endpoints are those whose Lease has not expired.
    """

    def __init__(self, server: LocalTransport, clock: Clock, own: Advertised, network: Network) -> None:
        self._server = server
        self._clock = clock
        self._own = own
        self._network = network

    async def run(self) -> None:
        """Check the objects from time to time."""
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            try:
                await self.ensure()
            except APIError as error:
                # The next round may succeed.
                _LOG.warning("cannot write the service %s/%s: %s", _NAMESPACE, _NAME, error)

    async def ensure(self) -> None:
        """Create what is missing and repair what differs."""
        service = self._service()
        addresses = await self._addresses()
        # The address stays when the range has changed.
        writes = [self._ensure("", "services", service, {"spec": {"ports": service["spec"]["ports"]}})]
        endpoints, endpoint_slice = self._endpoints(addresses), self._slice(addresses)
        kept = {field: endpoint_slice[field] for field in ("endpoints", "ports")}
        exists = bool(addresses)
        writes += [
            self._ensure("", "endpoints", endpoints, {"subsets": endpoints["subsets"]}, creates=exists),
            self._ensure("discovery.k8s.io", "endpointslices", endpoint_slice, kept, creates=exists),
            self._ensure_range(),
        ]
        # Together they share group commits.
        await asyncio.gather(*writes)

    async def _addresses(self) -> list[str]:
        """Return the addresses of the servers, sorted."""
        own = [self._own.host] if self._own.host else []
        if not self._own.is_one_of_many:
            return own
        now = self._clock.now()
        if own:
            await self._renew_lease(now)
        listing = await self._server.handle(
            own_request("list", *_LEASES, namespace=_LEASE_NAMESPACE, query={"labelSelector": _SERVERS_SELECTOR})
        )
        others = [item for item in listing["items"] if _is_alive(item, now)]
        return sorted({*own, *(str(item["metadata"]["annotations"][_ADDRESS_ANNOTATION]) for item in others)})

    async def _renew_lease(self, now: datetime) -> None:
        host = self._own.host
        name = f"apiserver-{hashlib.sha256(f'{host}:{self._own.port}'.encode()).hexdigest()[:26]}"
        lease = {
            "metadata": {
                "name": name,
                "namespace": _LEASE_NAMESPACE,
                "labels": dict([_SERVERS_SELECTOR.split("=")]),
                "annotations": {_ADDRESS_ANNOTATION: host},
            },
            "spec": {
                "holderIdentity": name,
                "leaseDurationSeconds": _LEASE_SECONDS,
                "renewTime": format_micro_time(now),
            },
        }
        try:
            found = await self._server.handle(own_request("get", *_LEASES, namespace=_LEASE_NAMESPACE, name=name))
            body = found | {"spec": lease["spec"]}
            await self._server.handle(own_request("update", *_LEASES, namespace=_LEASE_NAMESPACE, name=name, body=body))
        except NotFoundError:
            await self._server.handle(own_request("create", *_LEASES, namespace=_LEASE_NAMESPACE, body=lease))

    async def _ensure_range(self) -> None:
        """Create the ServiceCIDR of the range; one that differs is the operator's."""
        try:
            await self._server.handle(own_request("get", *_RANGES, name=_NAME))
        except NotFoundError:
            made = {"metadata": {"name": _NAME}, "spec": {"cidrs": [str(self._network)]}}
            try:
                made = await self._server.handle(own_request("create", *_RANGES, body=made))
            except AlreadyExistsError:
                return
            condition = {
                "type": "Ready",
                "status": "True",
                "reason": "",
                "message": "Kubernetes default Service CIDR is ready",
                "lastTransitionTime": format_time(self._clock.now()),
            }
            body = made | {"status": {"conditions": [condition]}}
            await self._server.handle(own_request("update", *_RANGES, name=_NAME, subresource="status", body=body))

    async def _ensure(self, group: str, resource: str, new: Document, kept: Document, *, creates: bool = True) -> None:
        try:
            found = await self._server.handle(
                own_request("get", group, "v1", resource, namespace=_NAMESPACE, name=_NAME)
            )
        except NotFoundError:
            if not creates:
                return
            try:
                await self._server.handle(own_request("create", group, "v1", resource, namespace=_NAMESPACE, body=new))
            except AlreadyExistsError:
                # Another server is doing the same.
                return
            return
        if _contains(found, kept):
            return
        changed = found | {field: _merged(found.get(field), value) for field, value in kept.items()}
        await self._server.handle(
            own_request("update", group, "v1", resource, namespace=_NAMESPACE, name=_NAME, body=changed)
        )

    def _service(self) -> Document:
        port = _PORT | {"port": _HTTPS, "targetPort": self._own.port}
        return {
            "metadata": {"name": _NAME, "labels": {"component": "apiserver", "provider": "kubernetes"}},
            "spec": {"type": "ClusterIP", "clusterIP": str(self._network[1]), "ports": [port]},
        }

    def _endpoints(self, addresses: list[str]) -> Document:
        subset = {"addresses": [{"ip": address} for address in addresses], "ports": [_PORT | {"port": self._own.port}]}
        labels = {"endpointslice.kubernetes.io/skip-mirror": "true"}
        return {"metadata": {"name": _NAME, "labels": labels}, "subsets": [subset] if addresses else []}

    def _slice(self, addresses: list[str]) -> Document:
        version = ipaddress.ip_address(addresses[0]).version if addresses else self._network.version
        return {
            "metadata": {"name": _NAME, "labels": {"kubernetes.io/service-name": _NAME}},
            "addressType": f"IPv{version}",
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address in addresses],
            "ports": [_PORT | {"port": self._own.port}],
        }


def advertised_host(bound: str, detected: str) -> str:
    """Return the address by which others reach a server; empty for one that only this machine reaches.

    `bound` is the address it listens on, `detected` this machine's. Endpoints may not have loopback addresses.
    """
    try:
        address = ipaddress.ip_address(bound or "::")
    except ValueError:
        return ""
    found = ipaddress.ip_address(detected) if address.is_unspecified and detected else address
    return "" if found.is_loopback or found.is_unspecified or found.is_link_local else str(found)


def _is_alive(lease: Document, now: datetime) -> bool:
    spec = lease.get("spec") or {}
    if _ADDRESS_ANNOTATION not in (lease["metadata"].get("annotations") or {}) or not spec.get("renewTime"):
        return False
    return (now - parse_time(spec["renewTime"])).total_seconds() < (spec.get("leaseDurationSeconds") or 0)


def _contains(found: object, wanted: object) -> bool:
    """Report whether the stored value has everything that is wanted; it may have more, such as defaults."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(_contains(found.get(name), value) for name, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(_contains, found, wanted))
    return found == wanted


def _merged(found: object, wanted: object) -> object:
    return found | wanted if isinstance(found, dict) and isinstance(wanted, dict) else wanted
