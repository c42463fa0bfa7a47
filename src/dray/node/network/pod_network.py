"""The network of a node's Pods: CNI plugins of the container runtime make it, by a configuration that the agent writes.

A Pod has its address alone, with the node as its gateway: what it sends to another Pod of the node passes through the
node's own network, where the rules for Services apply in both directions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, Final

from dray.node.network import commands
from dray.node.network.links import Routes, Step, gateway_steps, link_name, parse_routes, remove_link, route_protocol
from dray.node.network.rule_writer import remove_rules
from dray.node.runtimes.runtime import RuntimeFailure

# Before those of others: runtimes use the first.
FILE: Final = "05-dray.conflist"
_CNI_VERSION: Final = "0.4.0"


def configuration(name: str, network: IPv4Network, mtu: int, addresses: str) -> Mapping[str, Any]:
    """Return the configuration; `addresses` is the folder in which the plugin keeps those in use."""
    ranges = [[{"subnet": str(network), "gateway": str(network[1])}]]
    ipam = {"type": "host-local", "dataDir": addresses, "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}]}
    return {
        "cniVersion": _CNI_VERSION,
        "name": name,
        "plugins": [
            # The agent's rules masquerade.
            {"type": "ptp", "mtu": mtu, "ipMasq": False, "ipam": ipam},
            {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True},
        ],
    }


class RoutedNetwork:
    """Sets up the network of an agent's Pods."""

    def __init__(self, folder: Path, configurations: Path) -> None:
        self._folder = folder
        self._file = configurations / FILE
        # Identifies the agent on this machine.
        self.agent: Final = str(folder)
        self.link: Final = link_name(self.agent)
        self._range: IPv4Network | None = None

    @property
    def range(self) -> IPv4Network | None:
        """The addresses of this node's Pods; None until they are known."""
        return self._range

    @property
    def gateway(self) -> str:
        """The address of the node in the network of its Pods; empty until it is known."""
        return str(self._range[1]) if self._range is not None else ""

    async def use_range(self, cidr: str) -> None:
        """Make the network for the node's podCIDR; raises `RuntimeFailure` or OSError."""
        network = IPv4Network(cidr)
        if network == self._range:
            return
        await commands.run_steps(gateway_steps(self.link, network))
        try:
            commands.write_sysctl("net.ipv4.ip_forward", "1")
        except OSError as error:
            raise RuntimeFailure(f"cannot switch forwarding on: {error}") from error
        self._write(configuration(self.link, network, commands.uplink_mtu(), str(self._folder / "addresses")))
        self._range = network

    def _write(self, content: Mapping[str, Any]) -> None:
        """Write the file at once: runtimes watch the folder."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._file.with_suffix(".new")
        temporary.write_text(json.dumps(content, indent=2), encoding="utf-8")
        temporary.rename(self._file)

    async def clean_up(self) -> None:
        """Remove configuration, rules, routes and link of the agent; raises `RuntimeFailure` or OSError."""
        if missing := commands.missing_tools():
            raise RuntimeFailure(f"needs {', '.join(missing)}")
        if self._is_own():
            self._file.unlink()
        await remove_rules(self.agent)
        protocol = route_protocol(self.agent)
        known = await commands.run_step(Step(("ip", "route", "show", "proto", protocol)))
        await commands.run_steps(Routes(protocol, {}).steps_from(Routes(protocol, parse_routes(known))))
        await commands.run_step(remove_link(self.link))

    def _is_own(self) -> bool:
        """Whether the configuration is this agent's: several may run on one machine."""
        try:
            return bool(json.loads(self._file.read_text(encoding="utf-8")).get("name") == self.link)
        except (OSError, ValueError, AttributeError):
            return False
