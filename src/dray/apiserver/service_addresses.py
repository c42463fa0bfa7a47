"""Allocates the cluster addresses and node ports of Services.

The Services in the cache are the index of what is taken; a write reserves its values until the cache has seen it.
Addresses are also recorded as IPAddress objects (`ip_addresses.py`), which several API servers share. Two of them may
give one node port away twice if both do so within the delay of their watches.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from ipaddress import ip_address
from typing import Final

from dray.api.document import Document, NamespacedName, key_of
from dray.api.errors import InternalError, InvalidError
from dray.api.field_errors import FieldError, FieldErrors, Path, invalid
from dray.api.services import (
    NODE_PORTS,
    Network,
    cluster_ips,
    drop_unused,
    family_errors,
    is_in_range,
    keep_allocated,
    needs_cluster_ip,
    needs_health_check_port,
    needs_node_ports,
    node_ports,
    set_families,
)

# As kubeadm has it, but smaller.
SERVICE_CLUSTER_IP_RANGE: Final = "10.96.0.0/16"
# Values of writes that the cache may not have seen; far more than are written within its delay.
_RESERVED_MAX: Final = 1024
# Values that are drawn before all are looked at in order, up to the bound.
_ATTEMPTS_MAX: Final = 64
_SCANNED_MAX: Final = 1 << 20
# The part of a range that is only given on request: its least and greatest size, and its share of the range.
_STATIC_ADDRESSES: Final = (16, 256, 16)
_STATIC_PORTS: Final = (16, 128, 32)


def _ignore(_addresses: Iterable[str]) -> None:
    """Do nothing."""


class ServiceAddresses:
    """The addresses and ports in use, by who uses them."""

    def __init__(self, network: Network, source: random.Random) -> None:
        self.network: Final = network
        self._random = source
        # An address or a port, and the Service that has it.
        self._owners: dict[Hashable, NamespacedName] = {}
        self._values: dict[NamespacedName, tuple[Hashable, ...]] = {}
        self._reserved: OrderedDict[Hashable, NamespacedName] = OrderedDict()
        # Called with the addresses that a Service no longer has.
        self.on_release: Callable[[Iterable[str]], None] = _ignore

    def observe(self, service: Document, *, deleted: bool) -> None:
        """Record the newest state of a Service."""
        key = key_of(service)
        before = self._values.pop(key, ())
        for value in before:
            self._owners.pop(value, None)
        values = () if deleted else tuple(_values_of(service.get("spec") or {}))
        if released := [value for value in before if isinstance(value, str) and value not in values]:
            self.on_release(released)
        if deleted:
            return
        for value in values:
            self._owners[value] = key
            self._reserved.pop(value, None)
        self._values[key] = values

    def complete(self, service: Document, old: Document | None) -> None:
        """Set the missing addresses and ports of a new or changed Service; nothing is reserved yet."""
        spec: Document = service.setdefault("spec", {})
        if old is not None:
            keep_allocated(spec, old.get("spec") or {})
            drop_unused(spec, old.get("spec") or {})
        set_families(spec, self.network)
        if needs_cluster_ip(spec) and not spec.get("clusterIP"):
            spec["clusterIP"] = self._free_address(service)
            spec["clusterIPs"] = [spec["clusterIP"]]
        if needs_node_ports(spec):
            self._complete_ports(service, spec)
        if needs_health_check_port(spec) and not spec.get("healthCheckNodePort"):
            spec["healthCheckNodePort"] = self._free_port(service, set())

    def _complete_ports(self, service: Document, spec: Document) -> None:
        chosen: dict[int, tuple[int, set[str]]] = {}
        ports = spec.get("ports") or ()
        taken = {port["nodePort"] for port in ports if port.get("nodePort")}
        for port in ports:
            number, protocol = port.get("port") or 0, port.get("protocol") or ""
            if port.get("nodePort"):
                continue
            known = chosen.get(number)
            if known is not None and protocol not in known[1]:
                # The same port of another protocol has the same port on nodes.
                port["nodePort"] = known[0]
                known[1].add(protocol)
                continue
            port["nodePort"] = self._free_port(service, taken)
            taken.add(port["nodePort"])
            chosen[number] = (port["nodePort"], {protocol})

    def reserve(self, service: Document) -> tuple[Hashable, ...]:
        """Reserve the values of a Service that is about to be stored; raises `InvalidError` if one is not free."""
        key, spec = key_of(service), service.get("spec") or {}
        errors = family_errors(spec, self.network)
        errors += self._address_errors(spec, key) + self._port_errors(spec, key)
        if errors:
            raise InvalidError("", "Service", key.name, errors)
        values = tuple(value for value in _values_of(spec) if self.owner(value) is None)
        for value in values:
            self._reserve(value, key)
        return values

    def _address_errors(self, spec: Document, key: NamespacedName) -> FieldErrors:
        errors: FieldErrors = []
        for address in cluster_ips(spec):
            if self.owner(address) == key:
                continue
            if not is_in_range(address, self.network):
                errors.append(self._bad_address(spec, address, self._range_text(address)))
            elif self.owner(address) is not None:
                errors.append(self._bad_address(spec, address, "provided IP is already allocated"))
        return errors

    def _port_errors(self, spec: Document, key: NamespacedName) -> FieldErrors:
        errors: FieldErrors = []
        for path, port in node_ports(spec):
            if self.owner(port) == key:
                continue
            if port not in NODE_PORTS:
                low, high = NODE_PORTS[0], NODE_PORTS[-1]
                text = f"provided port is not in the valid range. The range of valid ports is {low}-{high}"
                errors.append(invalid(Path(path), port, text))
            elif self.owner(port) is not None:
                errors.append(invalid(Path(path), port, "provided port is already allocated"))
        return errors

    def release(self, values: Iterable[Hashable]) -> None:
        """Give back what was reserved for a write that was not stored."""
        for value in values:
            self._reserved.pop(value, None)

    def _reserve(self, value: Hashable, key: NamespacedName) -> None:
        self._reserved[value] = key
        if len(self._reserved) > _RESERVED_MAX:
            self._reserved.popitem(last=False)

    def owner(self, value: Hashable) -> NamespacedName | None:
        """Return the Service that has an address or a port, or for which it is reserved."""
        return self._owners.get(value) or self._reserved.get(value)

    def cluster_ips(self) -> dict[str, NamespacedName]:
        """Return the addresses of stored Services."""
        return {value: key for value, key in self._owners.items() if isinstance(value, str)}

    def bad_address(self, service: Document, address: str) -> InvalidError:
        """Return the error of an address that another Service has."""
        error = self._bad_address(service.get("spec") or {}, address, "provided IP is already allocated")
        return InvalidError("", "Service", key_of(service).name, [error])

    def _free_address(self, service: Document) -> str:
        # Neither the network, nor the first address, which is the API server's, nor the last one.
        last = self.network.num_addresses - 1
        static = _static_size(last - 1, _STATIC_ADDRESSES)
        position = self._free(range(1 + static, last), range(2, 1 + static), lambda place: str(self.network[place]))
        if position is None:
            name = key_of(service).name
            raise InternalError(f'failed to allocate a serviceIP for Service "{name}": range is full')
        return str(self.network[position])

    def _free_port(self, service: Document, taken: set[int]) -> int:
        static = _static_size(len(NODE_PORTS), _STATIC_PORTS)
        ports = self._free(NODE_PORTS[static:], NODE_PORTS[:static], lambda port: port, lambda port: port not in taken)
        if ports is None:
            name = key_of(service).name
            raise InternalError(f'failed to allocate a nodePort for Service "{name}": range is full')
        return ports

    def _free(
        self,
        dynamic: range,
        static: range,
        value_of: Callable[[int], Hashable],
        is_allowed: Callable[[int], bool] = lambda _place: True,
    ) -> int | None:
        """Return a free place: a random one of the dynamic part, then any, then one of the static part."""
        for place in self._candidates(dynamic, static):
            if is_allowed(place) and self.owner(value_of(place)) is None:
                return place
        return None

    def _candidates(self, dynamic: range, static: range) -> Iterator[int]:
        if dynamic:
            for _ in range(_ATTEMPTS_MAX):
                yield self._random.choice(dynamic)
        yield from dynamic[:_SCANNED_MAX]
        yield from static

    def _range_text(self, address: str) -> str:
        return (
            f"the provided IP ({ip_address(address)}) is not in the valid range. The range of valid IPs is "
            f"{self.network}"
        )

    @staticmethod
    def _bad_address(spec: Document, address: str, text: str) -> FieldError:
        return invalid(Path("spec.clusterIPs"), spec["clusterIPs"], f"failed to allocate IP {address}: {text}")


def _values_of(spec: Document) -> Iterable[Hashable]:
    yield from cluster_ips(spec)
    yield from dict.fromkeys(port for _, port in node_ports(spec))


def _static_size(size: int, bounds: tuple[int, int, int]) -> int:
    least, greatest, share = bounds
    return min(max(least, size // share), greatest, size)
