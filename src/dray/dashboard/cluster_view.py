"""The tables that the page shows, kept up to date from changes of API objects. Pure.

Devices are counted as by `dray top`: the functions are the same. A change of an object makes only those pools and nodes
stale that it concerns; `refresh` computes them, as many at a time as its caller wants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

from dray.allocator import Allocations, Inventory
from dray.allocator.pools import pool_key
from dray.allocator.taints import TaintRule
from dray.api.codec import from_document
from dray.api.document import Document
from dray.api.types import cdi_v1alpha1
from dray.api.types.core_v1 import Node, Pod
from dray.api.types.resource_v1 import DeviceClass, ResourceClaim, ResourceSlice
from dray.dashboard import rows
from dray.dashboard.rows import COLUMNS, Row
from dray.sim.devices import DeviceSurvey, Holder, holders_of, unhealthy_devices_of
from dray.sim.physical_devices import devices_of_pool, plugin_resources_of, requested_resources
from dray.sim.snapshot import CLASSIC_CLAIM

KINDS: Final = (
    "DeviceClass",
    "DeviceTaintRule",
    "ResourceSlice",
    "ResourceClaim",
    CLASSIC_CLAIM,
    "Node",
    "Pod",
    "Namespace",
    "ResourceQuota",
    "ReplicaSet",
    "Event",
)
# Pools are computed once all of these have been listed.
DEVICE_KINDS: Final = frozenset({"DeviceClass", "DeviceTaintRule", "ResourceSlice", "ResourceClaim"})
# The newest events, for the timeline; older ones are on the pages of their objects.
EVENTS_MAX: Final = 1000
# Events are sorted out once there are so many more.
_EVENTS_SLACK: Final = 200


class ClusterView:
    """The tables of one user. `changes` has what changed since the last call."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, Row]] = {name: {} for name in COLUMNS}
        self._inventory = Inventory()
        self._allocations = Allocations()
        self._holders: dict[str, list[Holder]] = {}
        # Devices that Pods report as unhealthy, by device; and the devices that a Pod reports.
        self._unhealthy: dict[str, str] = {}
        self._reported: dict[str, tuple[str, ...]] = {}
        self._survey = DeviceSurvey(self._inventory, self._allocations, self._holders, self._unhealthy)
        self._pool_of_slice: dict[str, str] = {}
        self._nodes: dict[str, Document] = {}
        # Pods that are neither finished nor unscheduled, by node; and what they use of resources of device plugins.
        self._pods_on: dict[str, set[str]] = {}
        self._used: dict[str, dict[str, dict[str, int]]] = {}
        # Scheduled Pods that do not run yet, and the latest warnings about Pods.
        self._starting: dict[str, Document] = {}
        self._warnings: dict[str, tuple[str, str]] = {}
        self._stale_pools: dict[str, None] = {}
        self._stale_nodes: dict[str, None] = {}
        self._changed: dict[tuple[str, str], None] = {}
        self._apply: Mapping[str, Callable[[Document | None, Document | None], None]] = {
            "DeviceClass": self._apply_class,
            "DeviceTaintRule": self._apply_rule,
            "ResourceSlice": self._apply_slice,
            "ResourceClaim": self._apply_claim,
            CLASSIC_CLAIM: self._apply_classic_claim,
            "Node": self._apply_node,
            "Pod": self._apply_pod,
            "Namespace": partial(self._apply_row, "namespaces", lambda new: [_name(new)]),
            "ResourceQuota": partial(self._apply_row, "quotas", rows.quota_row),
            "ReplicaSet": partial(self._apply_row, "blocked", rows.blocked_row),
            "Event": self._apply_event,
        }

    def apply(self, kind: str, old: Document | None, new: Document | None) -> None:
        """Apply the change of an object, in the hub version: `new` is None if it was deleted."""
        self._apply[kind](old, new)

    @property
    def is_stale(self) -> bool:
        """Whether pools or nodes are to be computed."""
        return bool(self._stale_pools or self._stale_nodes)

    def refresh(self, count: int, *, pools: bool = True) -> None:
        """Compute at most so many stale pools and nodes; without pools as long as they are not all listed."""
        while count > 0 and self._stale_nodes:
            self._refresh_node(_pop_first(self._stale_nodes))
            count -= 1
        while pools and count > 0 and self._stale_pools:
            self._refresh_pool(_pop_first(self._stale_pools))
            count -= 1

    def changes(self) -> dict[str, tuple[dict[str, Row], list[str]]]:
        """Return new and changed rows by key, and the keys of removed ones, by table."""
        self._trim_events(_EVENTS_SLACK)
        found: dict[str, tuple[dict[str, Row], list[str]]] = {}
        for table, key in self._changed:
            changed, removed = found.setdefault(table, ({}, []))
            row = self.tables[table].get(key)
            if row is None:
                removed.append(key)
            else:
                changed[key] = row
        self._changed.clear()
        return found

    # --- Devices. ---

    def _apply_class(self, old: Document | None, new: Document | None) -> None:
        name = _name(old, new)
        if new is None:
            self._inventory.remove_class(name)
        else:
            self._inventory.apply_class(from_document(DeviceClass, new))
        self._put("classes", name, None if new is None else [name])
        if old is None or new is None or old.get("spec") != new.get("spec"):
            self._stale_pools.update(dict.fromkeys(self._pool_of_slice.values()))

    def _apply_rule(self, old: Document | None, new: Document | None) -> None:
        if new is None:
            self._inventory.remove_taint_rule(_name(old, new))
        else:
            self._inventory.apply_taint_rule(new)
        changed = [TaintRule.from_document(item) for item in (old, new) if item is not None]
        if old is not None and new is not None and changed[0] == changed[1]:
            return
        for key in dict.fromkeys(self._pool_of_slice.values()):
            driver, _, pool = key.partition("/")
            if any(rule.driver in (None, driver) and rule.pool in (None, pool) for rule in changed):
                self._stale_pools[key] = None

    def _apply_slice(self, old: Document | None, new: Document | None) -> None:
        name = _name(old, new)
        before = self._pool_of_slice.pop(name, None)
        if before is not None:
            self._stale_pools[before] = None
        if new is None:
            self._inventory.remove_slice(name)
            return
        resource_slice = from_document(ResourceSlice, new)
        self._inventory.apply_slice(resource_slice)
        key = pool_key(resource_slice.spec.driver, resource_slice.spec.pool.name)
        self._pool_of_slice[name] = key
        self._stale_pools[key] = None

    def _apply_claim(self, old: Document | None, new: Document | None) -> None:
        if old is not None:
            self._release(from_document(ResourceClaim, old), removed=new is None)
        if new is None:
            self._put("claims", _key(old or {}), None)
            return
        claim = from_document(ResourceClaim, new)
        self._allocations.apply_claim(claim)
        for key, holder in holders_of(claim):
            self._holders.setdefault(key, []).append(holder)
            self._stale_device(key)
        self._put("claims", _key(new), rows.claim_row(claim))

    def _release(self, claim: ResourceClaim, *, removed: bool) -> None:
        if removed:
            self._allocations.remove_claim(claim)
        for key, holder in holders_of(claim):
            remaining = [item for item in self._holders.get(key, ()) if item != holder]
            if remaining:
                self._holders[key] = remaining
            else:
                self._holders.pop(key, None)
            self._stale_device(key)

    def _apply_classic_claim(self, old: Document | None, new: Document | None) -> None:
        # A claim of the other group may have the same name.
        row = None if new is None else rows.classic_claim_row(from_document(cdi_v1alpha1.ResourceClaim, new))
        self._put("claims", f"classic:{_key(new or old or {})}", row)

    def _stale_device(self, key: str) -> None:
        self._stale_pools[key.rpartition("/")[0]] = None

    def _refresh_pool(self, key: str) -> None:
        pool = self._inventory.pool(key)
        row = None
        if pool is not None:
            row = rows.pool_row(pool, list(devices_of_pool(self._survey, pool)))
        self._put("pools", key, row)

    # --- Nodes and Pods. ---

    def _apply_node(self, old: Document | None, new: Document | None) -> None:
        name = _name(old, new)
        if new is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = new
        self._stale_nodes[name] = None

    def _refresh_node(self, name: str) -> None:
        document = self._nodes.get(name)
        if document is None:
            self._put("nodes", name, None)
            return
        plugins = plugin_resources_of(from_document(Node, document), self._used.get(name, {}))
        self._put("nodes", name, rows.node_row(document, plugins, len(self._pods_on.get(name, ()))))

    def _apply_pod(self, old: Document | None, new: Document | None) -> None:
        if old is not None:
            self._count_pod(old, present=False)
        if new is not None:
            self._count_pod(new, present=True)
        self._report_health(new or old or {}, present=new is not None)
        self._put_pod(_key(new or old or {}), new)

    def _put_pod(self, key: str, pod: Document | None) -> None:
        if pod is None:
            self._starting.pop(key, None)
            self._warnings.pop(key, None)
            self._put("pods", key, None)
            return
        phase = (pod.get("status") or {}).get("phase") or "Pending"
        if (pod.get("spec") or {}).get("nodeName") and phase == "Pending":
            self._starting[key] = pod
        else:
            self._starting.pop(key, None)
        self._put("pods", key, rows.pod_row(pod, self._warnings.get(key, ("", ""))[1]))

    def _count_pod(self, pod: Document, *, present: bool) -> None:
        node = (pod.get("spec") or {}).get("nodeName")
        done = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        if not node or done:
            return
        key = _key(pod)
        pods = self._pods_on.setdefault(node, set())
        if present == (key in pods):
            return
        pods.symmetric_difference_update({key})
        self._stale_nodes[node] = None
        if not _requests_devices(pod):
            return
        for resource, amount in requested_resources(from_document(Pod, pod)).items():
            used = self._used.setdefault(node, {}).setdefault(resource, {})
            if present:
                used[key] = amount
            else:
                used.pop(key, None)

    def _report_health(self, pod: Document, *, present: bool) -> None:
        key = _key(pod)
        reported = dict(unhealthy_devices_of(from_document(Pod, pod))) if present and _reports_health(pod) else {}
        before = self._reported.pop(key, ())
        for device in before:
            self._unhealthy.pop(device, None)
            self._stale_device(device)
        for device, message in reported.items():
            self._unhealthy[device] = message
            self._stale_device(device)
        if reported:
            self._reported[key] = tuple(reported)

    # --- Others. ---

    def _apply_event(self, old: Document | None, new: Document | None) -> None:
        event = new or old or {}
        self._put("events", event["metadata"].get("uid") or _key(event), None if new is None else rows.event_row(event))
        about = event.get("involvedObject") or {}
        if event.get("type") != "Warning" or about.get("kind") != "Pod":
            return
        key = f"{about.get('namespace', '')}/{about.get('name', '')}"
        at = rows.event_time(event)
        if new is None:
            # Events outlive Pods: what they said is kept as long as they are.
            if self._warnings.get(key, ("", ""))[0] == at:
                del self._warnings[key]
        elif at >= self._warnings.get(key, ("", ""))[0]:
            self._warnings[key] = at, f"{event.get('reason', '')}: {event.get('message') or ''}"
            if key in self._starting:
                self._put_pod(key, self._starting[key])

    def _trim_events(self, slack: int) -> None:
        events = self.tables["events"]
        if len(events) <= EVENTS_MAX + slack:
            return
        for key in sorted(events, key=lambda key: str(events[key][0]))[: len(events) - EVENTS_MAX]:
            self._put("events", key, None)

    def _apply_row(
        self,
        table: str,
        row_of: Callable[[Document], Row | None],
        old: Document | None,
        new: Document | None,
    ) -> None:
        self._put(table, _key(new or old or {}), None if new is None else row_of(new))

    def _put(self, table: str, key: str, row: Row | None) -> None:
        known = self.tables[table]
        if row is None:
            if known.pop(key, None) is not None:
                self._changed[table, key] = None
        elif known.get(key) != row:
            known[key] = row
            self._changed[table, key] = None


def _pop_first(table: dict[str, None]) -> str:
    key = next(iter(table))
    del table[key]
    return key


def _name(*documents: Document | None) -> str:
    """Return the name of the first document that is there."""
    return str(next(item for item in documents if item)["metadata"]["name"])


def _key(document: Document) -> str:
    metadata = document["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])


def _requests_devices(pod: Document) -> bool:
    """Return whether a container names a resource that a device plugin may serve; most Pods need no decoding then."""
    return any("/" in name for part in _resources(pod) for name in part)


def _resources(pod: Document) -> Iterator[Document]:
    spec = pod.get("spec") or {}
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        resources = container.get("resources") or {}
        yield resources.get("requests") or {}
        yield resources.get("limits") or {}


def _reports_health(pod: Document) -> bool:
    status = pod.get("status") or {}
    statuses = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    return any(item.get("allocatedResourcesStatus") for item in statuses)
