"""The commands that set up the links of a node with a bridge. Pure.

A Pod has its address alone, with the bridge as its gateway: what it sends to another Pod of the node passes through the
node's own network, where the rules for Services apply in both directions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Final

from dray.node.network.addresses import short_id

INTERFACE: Final = "eth0"
_BRIDGE_PREFIX: Final = "dray"
_BRIDGE_ID_LENGTH: Final = 8
# Texts of `ip` for what is there already, or is gone.
_EXISTS: Final = ("File exists",)
_GONE: Final = ("Cannot find device", "No such process", "does not exist")


@dataclass(frozen=True, slots=True)
class Step:
    """A command; failures whose text contains one of `tolerated` count as success."""

    argv: tuple[str, ...]
    stdin: str = ""
    tolerated: tuple[str, ...] = ()


def bridge_name(agent: str) -> str:
    """Return the name of the bridge of one agent; several agents may run on one machine."""
    return f"{_BRIDGE_PREFIX}{short_id(agent, _BRIDGE_ID_LENGTH)}"


def is_bridge_name(name: str) -> bool:
    """Return whether an interface has the name of an agent's bridge."""
    return name.startswith(_BRIDGE_PREFIX) and len(name) == len(_BRIDGE_PREFIX) + _BRIDGE_ID_LENGTH


def veth_name(agent: str, uid: str) -> str:
    """Return the name of a Pod's link on the node."""
    return f"veth{short_id(f'{agent} {uid}', 10)}"


def bridge_steps(name: str, network: IPv4Network, mtu: int) -> tuple[Step, ...]:
    """Return how to make the bridge, or to correct the one that exists."""
    return (
        Step(("ip", "link", "add", name, "type", "bridge"), tolerated=_EXISTS),
        Step(("ip", "address", "replace", f"{network[1]}/{network.prefixlen}", "dev", name)),
        Step(("ip", "link", "set", name, "mtu", str(mtu), "up")),
    )


def service_route(name: str, services: str, network: IPv4Network) -> Step:
    """Return the route of cluster IPs: without one, a connection fails before rules can redirect it."""
    return Step(("ip", "route", "replace", services, "dev", name, "src", str(network[1])))


def pod_steps(bridge: str, veth: str, namespace: str, address: str, gateway: str, mtu: int) -> tuple[Step, ...]:
    """Return how to connect a namespace with the bridge; a half-made link is made anew."""
    inside = (
        f"address replace {address}/32 dev {INTERFACE}\n"
        f"link set {INTERFACE} up\n"
        f"route replace {gateway} dev {INTERFACE} scope link\n"
        f"route replace default via {gateway} dev {INTERFACE}\n"
    )
    return (
        Step(("ip", "link", "delete", veth), tolerated=_GONE),
        Step(
            tuple(f"ip link add {veth} mtu {mtu} type veth peer name {INTERFACE} mtu {mtu} netns {namespace}".split())
        ),
        Step(("ip", "link", "set", veth, "master", bridge)),
        # With br_netfilter, a Pod that calls its own Service gets the packet back by the link it came from.
        Step(("ip", "link", "set", veth, "up", "type", "bridge_slave", "hairpin", "on")),
        Step(("nsenter", f"--net={namespace}", "ip", "-batch", "-"), stdin=inside),
    )


def remove_link(name: str) -> Step:
    """Return how to remove a link."""
    return Step(("ip", "link", "delete", name), tolerated=_GONE)


def new_namespace(path: str) -> Step:
    """Return how to make a network namespace with loopback, held by a bind mount at the path."""
    return Step(("unshare", f"--net={path}", "ip", "link", "set", "lo", "up"))


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
