"""Gives each Node a range of addresses for its Pods, out of the cluster's."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from ipaddress import ip_network
from typing import Final

from dray.api.document import NamespacedName
from dray.api.errors import NotFoundError
from dray.api.services import Network
from dray.api.types.core_v1 import Node
from dray.client.controller import Requeue, Result
from dray.client.event_recorder import NORMAL, ObjectReference
from dray.client.interface import Patch, PatchType, WriteOptions
from dray.client.resources import NODES
from dray.controllers.reconciler import ControllerContext, Reconciler, own_key

NOT_AVAILABLE: Final = "CIDRNotAvailable"
# A range may have become free with a Node.
_RETRY_SECONDS: Final = 30.0
_OPTIONS: Final = WriteOptions(field_manager="node-ipam-controller")


class NodeRanges:
    """The ranges of a cluster; the lowest free one is next."""

    def __init__(self, cluster: str, prefix_length: int) -> None:
        network: Network = ip_network(cluster)
        self.prefix_length: Final = max(prefix_length, network.prefixlen)
        self.cluster: Final = network

    def free(self, taken: Iterable[str]) -> str | None:
        """Return a range that overlaps none of those that are taken; None if there is no more."""
        used = [ip_network(cidr) for cidr in taken]
        inside = {item for item in used if item.version == self.cluster.version}
        for candidate in self.cluster.subnets(new_prefix=self.prefix_length):
            if candidate in inside:
                continue
            if not any(candidate.overlaps(item) for item in inside):
                return str(candidate)
        return None


class NodeIpamController(Reconciler[NamespacedName]):
    """Sets `spec.podCIDR` of new Nodes; a range is free again when its Node is gone."""

    name = "node-ipam-controller"
    component = "cidrAllocator"

    def __init__(self, context: ControllerContext, ranges: NodeRanges) -> None:
        super().__init__(context)
        self._nodes = context.informers.informer(NODES)
        self._ranges = ranges
        # Ranges of writes that the cache may not have seen, by Node.
        self._given: dict[str, str] = {}
        self.controller.watch(self._nodes, own_key)

    async def reconcile(self, key: NamespacedName) -> Result:
        """Give one Node its range."""
        node = self._nodes.lister.get(key.name)
        if node is None or _ranges_of(node):
            self._given.pop(key.name, None)
            return None
        taken = [cidr for other in self._nodes.lister.list() for cidr in _ranges_of(other)]
        chosen = self._given.get(key.name) or self._ranges.free((*taken, *self._given.values()))
        if chosen is None:
            about = ObjectReference(NODES.group_version_kind, "", key.name, key.name)
            self._recorder.event_for(about, NORMAL, NOT_AVAILABLE, f"Node {key.name} status is now: {NOT_AVAILABLE}")
            return Requeue(_RETRY_SECONDS)
        self._given[key.name] = chosen
        patch = {"spec": {"podCIDR": chosen, "podCIDRs": [chosen]}}
        with suppress(NotFoundError):
            await self._client.patch(NODES, key.name, "", Patch(PatchType.MERGE, patch), _OPTIONS)
        return None


def _ranges_of(node: Node) -> tuple[str, ...]:
    return tuple(node.spec.pod_cidrs) or ((node.spec.pod_cidr,) if node.spec.pod_cidr else ())
