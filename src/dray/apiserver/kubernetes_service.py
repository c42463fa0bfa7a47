"""Keeps the Service `default/kubernetes` and its endpoints, by which Pods and clients find the API server."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from typing import Final

from dray.api.document import Document
from dray.api.errors import AlreadyExistsError, APIError, NotFoundError
from dray.apiserver.local_transport import LocalTransport, own_request

_LOG: Final = logging.getLogger("dray.apiserver.kubernetes_service")
# kube-apiserver's interval.
_CHECK_SECONDS: Final = 10.0
_NAMESPACE: Final = "default"
_NAME: Final = "kubernetes"
_PORT: Final = {"name": "https", "protocol": "TCP"}
_HTTPS: Final = 443


class KubernetesService:
    """Creates and repairs the objects; safe to run by several servers."""

    def __init__(self, server: LocalTransport, address: str, cluster_ip: str) -> None:
        self._server = server
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._cluster_ip = cluster_ip

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
        # The address stays when the range has changed.
        writes = [self._ensure("", "services", service, {"spec": {"ports": service["spec"]["ports"]}})]
        if self._is_address():
            endpoints, endpoint_slice = self._endpoints(), self._slice()
            kept = {field: endpoint_slice[field] for field in ("endpoints", "ports")}
            writes += [
                self._ensure("", "endpoints", endpoints, {"subsets": endpoints["subsets"]}),
                self._ensure("discovery.k8s.io", "endpointslices", endpoint_slice, kept),
            ]
        # Together they share group commits.
        await asyncio.gather(*writes)

    async def _ensure(self, group: str, resource: str, new: Document, kept: Document) -> None:
        try:
            found = await self._server.handle(
                own_request("get", group, "v1", resource, namespace=_NAMESPACE, name=_NAME)
            )
        except NotFoundError:
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

    def _is_address(self) -> bool:
        try:
            ipaddress.ip_address(self._host)
        except ValueError:
            return False
        return True

    def _service(self) -> Document:
        port = _PORT | {"port": _HTTPS, "targetPort": self._port}
        return {
            "metadata": {"name": _NAME, "labels": {"component": "apiserver", "provider": "kubernetes"}},
            "spec": {"type": "ClusterIP", "clusterIP": self._cluster_ip, "ports": [port]},
        }

    def _endpoints(self) -> Document:
        subset = {"addresses": [{"ip": self._host}], "ports": [_PORT | {"port": self._port}]}
        labels = {"endpointslice.kubernetes.io/skip-mirror": "true"}
        return {"metadata": {"name": _NAME, "labels": labels}, "subsets": [subset]}

    def _slice(self) -> Document:
        version = ipaddress.ip_address(self._host).version
        return {
            "metadata": {"name": _NAME, "labels": {"kubernetes.io/service-name": _NAME}},
            "addressType": f"IPv{version}",
            "endpoints": [{"addresses": [self._host], "conditions": {"ready": True}}],
            "ports": [_PORT | {"port": self._port}],
        }


def _contains(found: object, wanted: object) -> bool:
    """Report whether the stored value has everything that is wanted; it may have more, such as defaults."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(_contains(found.get(name), value) for name, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(_contains, found, wanted))
    return found == wanted


def _merged(found: object, wanted: object) -> object:
    return found | wanted if isinstance(found, dict) and isinstance(wanted, dict) else wanted
