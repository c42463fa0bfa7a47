"""The addresses of the Pods of a node, from its podCIDR. Pure; the owner keeps the records in a file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network
from typing import Any, Final

from dray.node.network.host_ports import HostPort

# The network's own, the gateway's, and the broadcast address.
_RESERVED: Final = 3


class AddressesExhaustedError(Exception):
    """Every address of the node's range has a Pod."""


@dataclass(frozen=True, slots=True)
class PodRecord:
    """What a Pod has; it is recorded before anything is set up, so that a crash leaves nothing unknown."""

    address: str
    host_ports: tuple[HostPort, ...] = ()


@dataclass(frozen=True, slots=True)
class PodRecords:
    """The Pods of the node by uid; values are replaced, never changed."""

    # The address that was given last; the next Pod gets a later one, so that addresses are not reused at once.
    last: str = ""
    pods: Mapping[str, PodRecord] = field(default_factory=dict)

    def with_pod(self, uid: str, network: IPv4Network, host_ports: tuple[HostPort, ...] = ()) -> PodRecords:
        """Return the records with a Pod, which keeps an address of this network that it has."""
        known = self.pods.get(uid)
        if known is not None and _is_in(known.address, network):
            return replace(self, pods={**self.pods, uid: PodRecord(known.address, host_ports)})
        address = self._next(network)
        return PodRecords(address, {**self.pods, uid: PodRecord(address, host_ports)})

    def without(self, uid: str) -> PodRecords:
        """Return the records without a Pod."""
        return replace(self, pods={key: record for key, record in self.pods.items() if key != uid})

    def _next(self, network: IPv4Network) -> str:
        taken = {record.address for record in self.pods.values()}
        size = network.num_addresses - _RESERVED
        first = int(network.network_address) + 2
        start = int(network[0].__class__(self.last)) + 1 - first if _is_in(self.last, network) else 0
        for step in range(size):
            address = str(network[2 + (start + step) % size])
            if address not in taken:
                return address
        raise AddressesExhaustedError(f"no IP addresses available in range set: {network[1]}-{network[-2]}")

    def to_document(self) -> dict[str, Any]:
        """Return the records for the file."""
        pods = {
            uid: {
                "address": record.address,
                "hostPorts": [
                    [item.port, item.container_port, item.protocol, item.host_ip] for item in record.host_ports
                ],
            }
            for uid, record in self.pods.items()
        }
        return {"last": self.last, "pods": pods}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> PodRecords:
        """Read the records of the file; raises KeyError, TypeError or ValueError if it is damaged."""
        pods = {
            uid: PodRecord(item["address"], tuple(HostPort(*values) for values in item["hostPorts"]))
            for uid, item in document["pods"].items()
        }
        return cls(document["last"], pods)


def _is_in(address: str, network: IPv4Network) -> bool:
    return bool(address) and network.network_address.__class__(address) in network


def short_id(text: str, length: int) -> str:
    """Return some letters and digits that stand for a text, in names that must be short."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]
