"""The names of a cluster's Services and endpoints, as the Kubernetes DNS specification has them. Pure."""

from __future__ import annotations

import ipaddress
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from dray.api.document import Document
from dray.api.services import NONE, cluster_ips
from dray.node.dns.messages import AAAA, ANY, CNAME, NAME_ERROR, PTR, SOA, SRV, A, Record, Response
from dray.node.network.service_ports import SERVICE_LABEL

DOMAIN: Final = "cluster.local"
# CoreDNS' times to live.
SERVICE_SECONDS: Final = 30
OTHER_SECONDS: Final = 5
_POD: Final = re.compile(r"\d{1,3}(-\d{1,3}){3}")
_VERSIONS: Final = {A: 4, AAAA: 6}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address of a Service, with its ports by name and protocol."""

    label: str
    address: str
    ports: tuple[tuple[str, str, int], ...]


@dataclass(frozen=True, slots=True)
class _Question:
    """A query for a name of a Service."""

    name: str
    kind: int
    namespace: str
    service: str

    @property
    def full(self) -> str:
        """The name of the Service."""
        return f"{self.service}.{self.namespace}.svc.{DOMAIN}"


@dataclass(frozen=True, slots=True)
class Zone:
    """Answers queries from the objects that the functions find."""

    service: Callable[[str, str], Document | None]
    # The EndpointSlices of a Service by namespace and name.
    slices: Callable[[str, str], Iterable[Document]]
    services: Callable[[], Iterable[Document]]
    all_slices: Callable[[], Iterable[Document]]
    random: random.Random

    def is_own(self, name: str) -> bool:
        """Whether the zone answers for a name."""
        lower = name.lower()
        return lower == DOMAIN or lower.endswith(f".{DOMAIN}")

    def lookup(self, name: str, kind: int) -> Response:
        """Answer a query for a name of the zone; the records have the name as it was asked."""
        labels = name.lower().split(".")[: -len(DOMAIN.split("."))]
        match labels[::-1]:
            case []:
                found: list[Record] | None = []
            case ["svc"] | ["pod"]:
                found = []
            case ["pod", _namespace, address] if _POD.fullmatch(address):
                found = self._addresses(name, kind, [address.replace("-", ".")], OTHER_SECONDS)
            case ["svc", namespace]:
                known = any(item["metadata"].get("namespace") == namespace for item in self.services())
                found = [] if known else None
            case ["svc", namespace, service, *rest]:
                return self._of_service(_Question(name, kind, namespace, service), rest)
            case _:
                found = None
        return self._response(found)

    def reverse(self, name: str) -> Response | None:
        """Answer for the name of an address; None if it is not one of the cluster's."""
        address = _address_of(name)
        if address is None:
            return None
        for service in self.services():
            if address in cluster_ips(service.get("spec") or {}):
                target = _service_name(service["metadata"])
                return Response(answers=(Record(name, PTR, SERVICE_SECONDS, target),))
        for item in self.all_slices():
            metadata = item["metadata"]
            owner = (metadata.get("labels") or {}).get(SERVICE_LABEL)
            for endpoint in endpoints([item]):
                if owner and endpoint.address == address:
                    target = f"{endpoint.label}.{owner}.{metadata.get('namespace')}.svc.{DOMAIN}"
                    return Response(answers=(Record(name, PTR, OTHER_SECONDS, target),))
        return None

    def _response(self, found: Sequence[Record] | None, additional: Sequence[Record] = ()) -> Response:
        """Return records; with none, how long that may be kept, and that the name does not exist if it is None."""
        if found:
            return Response(answers=tuple(found), additional=tuple(additional))
        value = f"ns.dns.{DOMAIN} hostmaster.{DOMAIN} 1 7200 1800 86400 {OTHER_SECONDS}"
        authority = (Record(DOMAIN, SOA, OTHER_SECONDS, value),)
        return Response(NAME_ERROR if found is None else 0, authority=authority)

    def _of_service(self, asked: _Question, rest: list[str]) -> Response:
        document = self.service(asked.namespace, asked.service)
        if document is None:
            return self._response(None)
        spec = document.get("spec") or {}
        if spec.get("type") == "ExternalName":
            alias = Record(asked.name, CNAME, OTHER_SECONDS, str(spec.get("externalName") or ""))
            return self._response(None if rest else [alias])
        if spec.get("clusterIP") == NONE:
            return self._headless(asked, rest)
        if not rest:
            return self._response(self._addresses(asked.name, asked.kind, cluster_ips(spec), SERVICE_SECONDS))
        return self._service_port(asked, rest, spec)

    def _headless(self, asked: _Question, rest: list[str]) -> Response:
        ready = endpoints(self.slices(asked.namespace, asked.service))
        if len(rest) > 1:
            return self._endpoint_ports(asked, rest, ready)
        addresses = [item.address for item in ready if not rest or item.label == rest[0]]
        self.random.shuffle(addresses)
        found = self._addresses(asked.name, asked.kind, addresses, OTHER_SECONDS)
        return self._response(found if addresses else None)

    def _addresses(self, name: str, kind: int, addresses: Iterable[str], seconds: int) -> list[Record]:
        found = []
        for address in addresses:
            try:
                version = ipaddress.ip_address(address).version
            except ValueError:
                continue
            own = A if version == _VERSIONS[A] else AAAA
            if kind in (own, ANY):
                found.append(Record(name, own, seconds, address))
        return found

    def _service_port(self, asked: _Question, rest: list[str], spec: Document) -> Response:
        numbers = [
            item["port"]
            for item in spec.get("ports") or ()
            if _port_labels(item.get("name") or "", item.get("protocol") or "TCP") == rest
        ]
        records = [Record(asked.name, SRV, SERVICE_SECONDS, f"0 100 {number} {asked.full}") for number in numbers]
        return self._srv(asked, records, self._addresses(asked.full, ANY, cluster_ips(spec), SERVICE_SECONDS))

    def _endpoint_ports(self, asked: _Question, rest: list[str], ready: list[Endpoint]) -> Response:
        targets = [
            (f"{item.label}.{asked.full}", number, item.address)
            for item in ready
            for name, protocol, number in item.ports
            if _port_labels(name, protocol) == rest
        ]
        weight = max(100 // max(len(targets), 1), 1)
        records = [
            Record(asked.name, SRV, OTHER_SECONDS, f"0 {weight} {number} {target}") for target, number, _ in targets
        ]
        extra = [
            record
            for target, _, address in targets
            for record in self._addresses(target, ANY, [address], OTHER_SECONDS)
        ]
        return self._srv(asked, records, extra)

    def _srv(self, asked: _Question, records: list[Record], extra: list[Record]) -> Response:
        if not records:
            return self._response(None)
        return self._response(records, extra) if asked.kind in (SRV, ANY) else self._response([])


def _port_labels(name: str, protocol: str) -> list[str]:
    """Return the labels of a port, from the right."""
    return [f"_{protocol.lower()}", f"_{name.lower()}"]


def endpoints(slices: Iterable[Document]) -> list[Endpoint]:
    """Return the ready endpoints of slices, each address once."""
    found: dict[str, Endpoint] = {}
    for item in slices:
        ports = tuple(
            (port.get("name") or "", port.get("protocol") or "TCP", port["port"])
            for port in item.get("ports") or ()
            if port.get("port")
        )
        for endpoint in item.get("endpoints") or ():
            if (endpoint.get("conditions") or {}).get("ready") is False:
                continue
            for address in endpoint.get("addresses") or ():
                label = endpoint.get("hostname") or re.sub(r"[.:]", "-", address)
                known = found.get(address)
                found[address] = Endpoint(label, address, (*(known.ports if known else ()), *ports))
    return list(found.values())


def _service_name(metadata: Document) -> str:
    return f"{metadata['name']}.{metadata.get('namespace')}.svc.{DOMAIN}"


def _address_of(name: str) -> str | None:
    """Return the address that a name below in-addr.arpa or ip6.arpa stands for."""
    labels = name.lower().split(".")
    if labels[-2:] == ["in-addr", "arpa"]:
        text = ".".join(reversed(labels[:-2]))
    elif labels[-2:] == ["ip6", "arpa"]:
        digits = "".join(reversed(labels[:-2]))
        text = ":".join(digits[place : place + 4] for place in range(0, len(digits), 4))
    else:
        return None
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None
