"""Pods on a bridge of this node, with addresses of the node's podCIDR."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Collection
from ipaddress import IPv4Network
from pathlib import Path
from typing import Final

from dray.node.network import commands
from dray.node.network.addresses import AddressesExhaustedError, PodRecord, PodRecords
from dray.node.network.links import bridge_name, bridge_steps, pod_steps, remove_link, veth_name
from dray.node.runtimes.runtime import RuntimeFailure, Sandbox
from dray.node.untrusted_files import write_private
from dray.runtime.logs import fields

_log = logging.getLogger(__name__)
# The controller gives a new Node its range within a second; the Pod is retried after that.
_RANGE_SECONDS_MAX: Final = 10.0


def _ignore() -> None:
    """Do nothing."""


class BridgeNetwork:
    """Implements `PodNetwork`. `use_range` is called as soon as the Node has its podCIDR."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self.agent: Final = str(folder)
        self.bridge: Final = bridge_name(self.agent)
        self._file = folder / "pods.json"
        self.records = _read(self._file)
        self._saving = asyncio.Lock()
        self._range: IPv4Network | None = None
        self._has_range = asyncio.Event()
        self._mtu = commands.uplink_mtu()
        # Pods that are connected; a restarted agent connects them again, which changes nothing for them.
        self._connected: set[str] = set()
        # Called when the host ports may have changed.
        self.on_change: Callable[[], None] = _ignore

    @property
    def range(self) -> IPv4Network | None:
        """The addresses of this node's Pods; None until they are known."""
        return self._range

    async def use_range(self, cidr: str) -> None:
        """Make the bridge for the node's podCIDR; raises `RuntimeFailure`."""
        network = IPv4Network(cidr)
        if network == self._range:
            return
        await commands.run_steps(bridge_steps(self.bridge, network, self._mtu))
        try:
            commands.write_sysctl("net.ipv4.ip_forward", "1")
            # The way by the node is the right one also between its own Pods.
            commands.write_sysctl(f"net.ipv4.conf.{self.bridge}.send_redirects", "0")
        except OSError as error:
            raise RuntimeFailure(f"cannot switch forwarding on: {error}") from error
        self._range = network
        self._has_range.set()

    async def add(self, sandbox: Sandbox) -> tuple[str, ...]:
        """Connect a Pod with the bridge, and return its address."""
        if sandbox.host_network:
            return ()
        try:
            async with asyncio.timeout(_RANGE_SECONDS_MAX):
                await self._has_range.wait()
        except TimeoutError as error:
            text = "the Node has no podCIDR: the controllers need --allocate-node-cidrs"
            raise RuntimeFailure(text) from error
        assert self._range is not None
        try:
            records = self.records.with_pod(sandbox.uid, self._range, sandbox.host_ports)
        except AddressesExhaustedError as error:
            raise RuntimeFailure(str(error)) from error
        if records != self.records:
            await self._save(records)
        record = records.pods[sandbox.uid]
        if sandbox.uid not in self._connected or not commands.holds_namespace(self._path(sandbox.uid)):
            await self._connect(sandbox.uid, record, self._range)
        return (record.address,)

    async def _connect(self, uid: str, record: PodRecord, network: IPv4Network) -> None:
        path, veth = self._path(uid), veth_name(self.agent, uid)
        exists = commands.holds_namespace(path) and commands.has_link(veth)
        await commands.make_namespace(path)
        steps = pod_steps(self.bridge, veth, str(path), record.address, str(network[1]), self._mtu)
        # The last step puts the address right where the link is there: running connections stay.
        await commands.run_steps(steps[-1:] if exists else steps)
        self._connected.add(uid)
        if record.host_ports:
            self.on_change()

    def namespace(self, sandbox: Sandbox) -> str:
        """Return the path of the Pod's namespace."""
        return "" if sandbox.host_network else str(self._path(sandbox.uid))

    def namespace_of(self, pod_uid: str) -> str:
        """Return the path of the namespace that a Pod has."""
        path = self._path(pod_uid)
        return str(path) if commands.holds_namespace(path) else ""

    async def remove(self, pod_uid: str) -> None:
        """Remove the Pod's link and namespace, and free its address."""
        record = self.records.pods.get(pod_uid)
        path = self._path(pod_uid)
        if record is None and not path.exists():
            return
        self._connected.discard(pod_uid)
        await commands.run_step(remove_link(veth_name(self.agent, pod_uid)))
        await asyncio.to_thread(commands.remove_namespace, path)
        # Last: as long as anything is left, the address stays taken.
        await self._save(self.records.without(pod_uid))
        if record is not None and record.host_ports:
            self.on_change()

    async def keep_only(self, pod_uids: Collection[str]) -> None:
        """Remove what other Pods have."""
        folder = self._path("x").parent
        found = {*self.records.pods, *(path.name for path in folder.glob("*"))}
        for uid in sorted(found.difference(pod_uids)):
            try:
                await self.remove(uid)
            except (RuntimeFailure, OSError) as error:
                _log.warning("the network of a removed Pod is left", extra=fields(pod=uid, error=str(error)))

    def _path(self, uid: str) -> Path:
        return self._folder / "namespaces" / uid

    async def _save(self, records: PodRecords) -> None:
        self.records = records
        async with self._saving:
            # A save that waited writes what is true now.
            content = json.dumps(self.records.to_document(), indent=1).encode()
            await asyncio.to_thread(write_private, self._file, content)


def _read(file: Path) -> PodRecords:
    try:
        return PodRecords.from_document(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return PodRecords()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        # The addresses in use are found nowhere else, so that going on could give one away twice.
        raise RuntimeFailure(f"{file} is damaged ({error}); remove it when no Pod of this node runs") from error
