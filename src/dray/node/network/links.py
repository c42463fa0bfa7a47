"""The commands that set up the gateway of a node's Pods and the routes to other nodes. Pure.

The gateway is an address on a link of its own, so that it is there before the first Pod.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Final

_LINK_PREFIX: Final = "dray"
_LINK_ID_LENGTH: Final = 8
# Texts of `ip` for what is there already, or is gone.
_EXISTS: Final = ("File exists",)
_GONE: Final = ("Cannot find device", "No such process", "does not exist")


@dataclass(frozen=True, slots=True)
class Step:
    """A command; failures whose text contains one of `tolerated` count as success."""

    argv: tuple[str, ...]
    stdin: str = ""
    tolerated: tuple[str, ...] = ()


def short_id(text: str, length: int) -> str:
    """Return some letters and digits that stand for a text, in names that must be short."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def link_name(agent: str) -> str:
    """Return the name of the gateway's link of one agent; several agents may run on one machine."""
    return f"{_LINK_PREFIX}{short_id(agent, _LINK_ID_LENGTH)}"


def is_link_name(name: str) -> bool:
    """Return whether an interface has the name of an agent's link."""
    return name.startswith(_LINK_PREFIX) and len(name) == len(_LINK_PREFIX) + _LINK_ID_LENGTH


def gateway_steps(name: str, network: IPv4Network) -> tuple[Step, ...]:
    """Return how to make the link, a bridge without ports, or to correct the one that exists."""
    return (
        Step(("ip", "link", "add", name, "type", "bridge"), tolerated=_EXISTS),
        Step(("ip", "address", "replace", f"{network[1]}/32", "dev", name)),
        Step(("ip", "link", "set", name, "up")),
    )


def service_route(name: str, services: str, network: IPv4Network) -> Step:
    """Return the route of cluster IPs: without one, a connection fails before rules can redirect it."""
    return Step(("ip", "route", "replace", services, "dev", name, "src", str(network[1])))


def remove_link(name: str) -> Step:
    """Return how to remove a link."""
    return Step(("ip", "link", "delete", name), tolerated=_GONE)


def route_protocol(agent: str) -> str:
    """Return a number for the routes of one agent, of those that no routing daemon uses."""
    return str(100 + int(short_id(agent, 4), 16) % 80)


def parse_routes(output: str) -> dict[str, str]:
    """Return ranges and gateways in the output of `ip route show`."""
    words = [line.split() for line in output.splitlines()]
    return {line[0]: line[2] for line in words if len(line) > 2 and line[1] == "via"}  # noqa: PLR2004 - the words


@dataclass(frozen=True, slots=True)
class Routes:
    """The routes to the Pods of other nodes: ranges by the address of the node that has them."""

    # Marks the routes of one agent, so that they are found again.
    protocol: str
    gateways: Mapping[str, str]

    def steps_from(self, before: Routes) -> Iterable[Step]:
        """Yield how to come here from what was set before."""
        for cidr, gateway in sorted(self.gateways.items()):
            if before.gateways.get(cidr) != gateway:
                # A node that is not reached directly has another way to its Pods.
                unreachable = ("Nexthop has invalid gateway", "Network is unreachable")
                route = ("ip", "route", "replace", cidr, "via", gateway, "proto", self.protocol)
                yield Step(route, tolerated=unreachable)
        for cidr in sorted(before.gateways.keys() - self.gateways.keys()):
            yield Step(("ip", "route", "delete", cidr, "proto", self.protocol), tolerated=_GONE)
