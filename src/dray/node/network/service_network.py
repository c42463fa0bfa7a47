"""The way of Pods to Services and to other nodes: follows the API objects, and keeps routes and rules as they say."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from dray.api.document import Document, NamespacedName
from dray.api.errors import APIError
from dray.api.services import NONE
from dray.api.types.core_v1 import Node
from dray.client.interface import Client
from dray.client.resources import ENDPOINT_SLICES, NODES, SERVICE_CIDRS, SERVICES
from dray.client.shared_informers import SharedInformerFactory
from dray.lib.clock import Clock
from dray.node.agent.pod.network_files import parse_resolv
from dray.node.dns.server import PORT as DNS_PORT
from dray.node.dns.server import DnsServer
from dray.node.dns.zone import Zone
from dray.node.network.commands import run_step, run_steps
from dray.node.network.links import Routes, Step, parse_routes, route_protocol, service_route
from dray.node.network.pod_network import RoutedNetwork
from dray.node.network.relay import Relay
from dray.node.network.rule_writer import RuleWriter
from dray.node.network.rules import NetworkState
from dray.node.network.service_ports import SERVICE_LABEL, Target, service_ports
from dray.node.runtimes.runtime import RuntimeFailure
from dray.runtime.logs import fields
from dray.runtime.tasks import ChildTasks, TaskGroup

_log = logging.getLogger(__name__)
CONDITION: Final = "dray.dev/ServiceNetwork"
KUBERNETES: Final = NamespacedName("default", "kubernetes")
KUBE_DNS: Final = NamespacedName("kube-system", "kube-dns")
_RETRY_SECONDS: Final = 5.0
_BY_SERVICE: Final = "service"


@dataclass(frozen=True, slots=True)
class NetworkParts:
    """What the network of a node is made of."""

    client: Client
    informers: SharedInformerFactory
    clock: Clock
    tasks: ChildTasks
    node_name: str
    api_server: tuple[str, int]
    network: RoutedNetwork


class ServiceNetwork:
    """Runs in the agent as long as it does; routes and rules stay when it stops."""

    def __init__(self, parts: NetworkParts) -> None:
        self._parts = parts
        informers = parts.informers
        # For the routes to other nodes. Every change of a Node goes to all agents that watch them.
        self._nodes = informers.informer(NODES)
        self._services = informers.informer(SERVICES)
        self._slices = informers.informer(ENDPOINT_SLICES, indexes={_BY_SERVICE: _service_of})
        self._routes = Routes(route_protocol(parts.network.agent), {})
        self._has_dns = False
        self._replaced: dict[NamespacedName, Target] = {}
        self._nodes_changed = asyncio.Event()
        self._failure: str | None = "the network is being set up"
        self.writer: Final = RuleWriter(self.state, parts.clock)
        # Called when the condition may have changed.
        self.on_condition: Callable[[], None] = lambda: None
        self.writer.on_result = self._report

    @property
    def is_in_force(self) -> bool:
        """Whether Pods reach Services by their addresses."""
        return self._failure is None and self.writer.is_in_force

    def condition(self) -> tuple[str, str, str, str]:
        """Return type, status, reason and message of the Node's condition."""
        if self.is_in_force:
            return CONDITION, "True", "RulesWritten", "Pods and the node reach Services by their cluster IPs"
        message = self._failure or self.writer.failure or "the rules have not been written yet"
        return CONDITION, "False", "RulesNotWritten", message

    def _report(self) -> None:
        self.on_condition()

    def replace(self, service: NamespacedName, target: Target) -> None:
        """Let this node reach a Service in its own way."""
        self._replaced[service] = target
        self.writer.changed()

    def state(self) -> NetworkState:
        """Return what the rules follow from."""
        network = self._parts.network
        return NetworkState(
            agent=network.agent,
            pod_range=str(network.range) if network.range is not None else "",
            other_ranges=tuple(self._routes.gateways),
            services=service_ports(
                self._services.lister.list(), self._slices.lister.list(), self._parts.node_name, self._replaced
            ),
        )

    async def run(self) -> None:
        """Follow the API until cancelled."""
        self._nodes.add_handler(lambda _old, _new: self._nodes_changed.set())
        await self._nodes.wait_for_sync()
        for informer in (self._services, self._slices):
            informer.add_handler(self._service_changed)
        for waiting in (self._services, self._slices):
            await waiting.wait_for_sync()
        async with TaskGroup("service network") as group:
            group.spawn(self._follow_nodes(group), "routes")
            await group.wait()

    def _service_changed(self, _old: Document | None, _new: Document | None) -> None:
        self.writer.changed()

    async def _follow_nodes(self, group: TaskGroup) -> None:
        is_first = True
        while True:
            self._nodes_changed.clear()
            try:
                if await self._set_up(is_first=is_first):
                    is_first = False
                self._note(None)
            except (RuntimeFailure, OSError) as error:
                self._note(str(error))
            if not is_first and not self.writer.is_running:
                self.writer.is_running = True
                group.spawn(self.writer.run(), "rules")
            self.writer.changed()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if self._failure is None else _RETRY_SECONDS):
                    await self._nodes_changed.wait()

    async def _set_up(self, *, is_first: bool) -> bool:
        """Set up the gateway and the routes; return whether everything that is needed once is there."""
        parts = self._parts
        own = next((node for node in self._nodes.lister.list() if node.metadata.name == parts.node_name), None)
        cidr = _range_of(own) if own is not None else ""
        if not cidr:
            raise RuntimeFailure("the Node has no podCIDR: the controllers need --allocate-node-cidrs")
        await parts.network.use_range(cidr)
        if is_first:
            await self._route_services()
            await self._relay_api_server()
            await self._serve_dns()
        others = dict(self._other_ranges())
        if is_first:
            # Those of an earlier run.
            known = await run_step(Step(("ip", "route", "show", "proto", self._routes.protocol)))
            self._routes = Routes(self._routes.protocol, parse_routes(known))
        routes = Routes(self._routes.protocol, others)
        await run_steps(routes.steps_from(self._routes))
        self._routes = routes
        return True

    async def _route_services(self) -> None:
        network = self._parts.network
        assert network.range is not None
        try:
            found = await self._parts.client.get(SERVICE_CIDRS, "kubernetes", "")
        except APIError as error:
            # Another API server than Dray's may not have it; the default route serves as well.
            _log.info("no route to the range of Services", extra=fields(error=str(error)))
            return
        for cidr in (found.get("spec") or {}).get("cidrs") or ():
            if ":" not in cidr:
                await run_step(service_route(network.link, cidr, network.range))

    async def _relay_api_server(self) -> None:
        host, port = self._parts.api_server
        if not _is_loopback(host):
            return
        relay = Relay(Target(host, port), self._parts.tasks)
        self._replaced[KUBERNETES] = await relay.start(self._parts.network.gateway)

    async def _serve_dns(self) -> None:
        """Serve DNS at the gateway; while the port is taken, Pods have the node's resolvers."""
        zone = Zone(
            service=lambda namespace, name: self._services.lister.get(name, namespace),
            slices=lambda namespace, name: self._slices.lister.by_index(_BY_SERVICE, NamespacedName(namespace, name)),
            services=self._services.lister.list,
            all_slices=self._slices.lister.list,
            random=random.Random(),  # noqa: S311 - spreads load
        )
        server = DnsServer(zone, _resolvers, self._parts.clock, self._parts.tasks)
        try:
            await server.start(self._parts.network.gateway)
        except OSError as error:
            _log.warning("no DNS is served", extra=fields(address=self._parts.network.gateway, error=str(error)))
            return
        self._replaced[KUBE_DNS] = Target(self._parts.network.gateway, DNS_PORT)
        self._has_dns = True

    @property
    def dns_servers(self) -> tuple[str, ...]:
        """The addresses by which Pods reach the DNS server; none if there is none."""
        if not self._has_dns:
            return ()
        service = self._services.lister.get(KUBE_DNS.name, KUBE_DNS.namespace)
        address = ((service or {}).get("spec") or {}).get("clusterIP") or ""
        return (address if address and address != NONE else self._parts.network.gateway,)

    def _other_ranges(self) -> Iterator[tuple[str, str]]:
        """Yield the ranges of other nodes, with the addresses of those nodes; several agents may share a machine."""
        own: set[str] = set()
        others: list[tuple[str, set[str]]] = []
        for node in self._nodes.lister.list():
            addresses = {item.address for item in node.status.addresses if item.type == "InternalIP"}
            if node.metadata.name == self._parts.node_name:
                own = addresses
            elif _range_of(node):
                others.append((_range_of(node), addresses))
        for cidr, addresses in others:
            usable = sorted(address for address in addresses if ":" not in address)
            # An agent on this machine has routes of its own here.
            if usable and not addresses & own and not _is_loopback(usable[0]):
                yield cidr, usable[0]

    def _note(self, failure: str | None) -> None:
        if failure != self._failure:
            self._failure = failure
            if failure is not None:
                _log.warning("the network of Pods is not set up", extra=fields(error=failure))
            self.on_condition()


def _service_of(item: Document) -> tuple[NamespacedName, ...]:
    name = (item["metadata"].get("labels") or {}).get(SERVICE_LABEL)
    return (NamespacedName(item["metadata"].get("namespace") or "", name),) if name else ()


def _resolvers() -> tuple[str, ...]:
    """Return the resolvers of the node."""
    try:
        return parse_resolv(Path("/etc/resolv.conf").read_text(encoding="utf-8")).servers
    except (OSError, UnicodeDecodeError):
        return ()


def _range_of(node: Node) -> str:
    ranges: list[str] = [*node.spec.pod_cidrs, *((node.spec.pod_cidr,) if node.spec.pod_cidr else ())]
    return next((cidr for cidr in ranges if ":" not in cidr), "")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
