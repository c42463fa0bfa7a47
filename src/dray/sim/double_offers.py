"""Devices that a device plugin and a driver of a node both offer, each without knowing of the other. Pure.

Neither the scheduler nor the kubelet can see it: the plugin counts devices, the driver names them, and both give out
the same ones. What gives it away: a class with the plugin's resource as `extendedResourceName` that matches devices of
the node, drivers known to serve the devices of a plugin, and ids of the plugin's devices, which the status of Pods
shows, that devices of a slice have as an attribute.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from dray.api.pod_claims import is_pod_done
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import DeviceClass
from dray.sim.devices import DeviceRow, DeviceState

if TYPE_CHECKING:
    from dray.sim.physical_devices import PluginResource

# The DRA drivers of vendors who also have device plugins, by the resource or the domain of resources.
_DRIVERS: Final[Mapping[str, str]] = {
    "nvidia.com/gpu": "gpu.nvidia.com",
    "nvidia.com/gpu.shared": "gpu.nvidia.com",
    "nvidia.com/mig-": "gpu.nvidia.com",
    "amd.com/gpu": "gpu.amd.com",
    "gpu.intel.com/": "gpu.intel.com",
    "qat.intel.com/": "qat.intel.com",
    "habana.ai/gaudi": "gaudi.intel.com",
}
# Attributes by which a device is known, in small letters.
IDENTITIES: Final = frozenset(("uuid", "pcibusid", "pciaddress", "serial", "serialnumber"))
# The vendors' names of both, which are public.
VENDOR_NAMES: Final = frozenset(_DRIVERS) | frozenset(_DRIVERS.values())
_PREFIXES: Final = tuple(name for name in _DRIVERS if name.endswith(("/", "-")))


@dataclass(frozen=True, slots=True)
class DoubleOffer:
    """A resource of a device plugin and the devices of a driver on the same node that are the same."""

    node: str
    resource: str
    driver: str
    pool: str
    # How this is known.
    why: str
    # The devices of the slice.
    rows: Sequence[DeviceRow]
    # How many the plugin offers, and has given to Pods.
    count: int
    used: int
    # The Pods with devices of the plugin.
    pods: tuple[str, ...]
    # Those of which the device is known, by its key.
    known: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """Whether a claim can still get one of the devices."""
        return any(row.state not in (DeviceState.TAINTED, DeviceState.HELD, DeviceState.UNUSABLE) for row in self.rows)

    @property
    def held(self) -> Sequence[DeviceRow]:
        """Return the devices that claims have."""
        return [row for row in self.rows if any(not holder.admin_access for holder in row.holders)]

    @property
    def collisions(self) -> Mapping[str, str]:
        """Return the devices that a claim and a Pod by the plugin have, with that Pod, as far as they are known."""
        held = {row.key for row in self.held}
        return {key: pod for key, pod in self.known.items() if key in held}

    @property
    def certain_collisions(self) -> int:
        """How many devices are in use twice at least."""
        return max(len(self.collisions), len(self.held) + self.used - len(self.rows), 0)

    def claimant(self, row: DeviceRow) -> str:
        """Return the other side of a device: the resource, and who may have it by the plugin."""
        if row.key in self.known:
            return f"{self.resource} (Pod {self.known[row.key]})"
        others = [pod for pod in self.pods if pod not in self.known.values()]
        if not others:
            return self.resource
        return f"{self.resource} ({'maybe' if len(others) == 1 else 'maybe one of'} {', '.join(others)})"

    def taken_through_plugin(self) -> Iterator[str]:
        """Yield the keys of devices that no claim has and a Pod has by the plugin; of equal ones, the last."""
        held = {row.key for row in self.held}
        left = min(self.used, len(self.rows) - len(held))
        free = [row.key for row in self.rows if row.key not in held]
        chosen = [key for key in free if key in self.known]
        chosen += [key for key in reversed(free) if key not in self.known]
        yield from chosen[:left]


def double_offers(
    rows: Iterable[DeviceRow], resources: Iterable[PluginResource], classes: Iterable[DeviceClass], pods: Iterable[Pod]
) -> list[DoubleOffer]:
    """Return what both a plugin and a driver offer, by node and resource."""
    plugins = [item for item in resources if item.allocatable]
    nodes = {item.node for item in plugins}
    if not nodes:
        return []
    by_pool: dict[tuple[str, str, str], list[DeviceRow]] = {}
    for row in rows:
        if row.node in nodes:
            by_pool.setdefault((row.node, row.driver, row.pool), []).append(row)
    names: dict[str, set[str]] = {}
    for item in classes:
        if item.spec.extended_resource_name:
            names.setdefault(item.spec.extended_resource_name, set()).add(item.metadata.name or "")
    ids = _plugin_ids(pods, nodes) if by_pool else {}
    found = []
    for plugin in plugins:
        for (node, driver, pool), devices in by_pool.items():
            if node == plugin.node:
                own_ids = ids.get((node, plugin.name), {})
                same, why = _same(plugin.name, driver, devices, names.get(plugin.name, set()), own_ids)
                if same:
                    found.append(_offer(plugin, driver, pool, same, why, own_ids))
    return found


def _offer(
    plugin: PluginResource, driver: str, pool: str, rows: Sequence[DeviceRow], why: str, ids: Mapping[str, str]
) -> DoubleOffer:
    known = {row.key: ids[found] for row in rows for found in _identities(row) if found in ids}
    return DoubleOffer(
        plugin.node, plugin.name, driver, pool, why, rows, plugin.allocatable, plugin.used, plugin.pods, known
    )


def _same(
    resource: str, driver: str, rows: Sequence[DeviceRow], classes: set[str], ids: Mapping[str, str]
) -> tuple[Sequence[DeviceRow], str]:
    """Return the devices of a pool that the resource stands for, and how that is known."""
    if of_class := [row for row in rows if not classes.isdisjoint(row.classes)]:
        name = min(classes.intersection(of_class[0].classes))
        return of_class, f"DeviceClass {name} has extendedResourceName {resource}"
    if any(found in ids for row in rows for found in _identities(row)):
        return rows, "Pods have devices of the plugin with ids of the driver's devices"
    if known_driver(resource) == driver:
        return rows, f"{driver} is the driver of the devices that {resource} counts"
    return (), ""


def known_driver(resource: str) -> str:
    """Return the DRA driver of the devices that a well-known resource counts; empty if none is known."""
    prefix = next((name for name in _PREFIXES if resource.startswith(name)), "")
    return _DRIVERS.get(resource) or _DRIVERS.get(prefix, "")


def _identities(row: DeviceRow) -> Iterator[str]:
    """Yield what a plugin may call the device: values of attributes such as uuid and PCI address."""
    for name, value in row.attributes.items():
        if is_identity(name):
            yield value


def is_identity(attribute: str) -> bool:
    """Return whether each device has another value of the attribute."""
    return attribute.rpartition("/")[2].lower() in IDENTITIES


def _plugin_ids(pods: Iterable[Pod], nodes: set[str]) -> dict[tuple[str, str], dict[str, str]]:
    """Return the Pods by the ids of their devices of plugins, by node and resource."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for pod in pods:
        node = pod.spec.node_name or ""
        if node not in nodes or is_pod_done(pod):
            continue
        name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
            for resource in status.allocated_resources_status:
                if not resource.name.startswith("claim:"):
                    own = found.setdefault((node, resource.name), {})
                    own |= {device.resource_id: name for device in resource.resources}
    return found
