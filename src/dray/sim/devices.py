"""One row per device of a snapshot, with its state and the claims it is allocated to. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from dray.api.document import NamespacedName
from dray.api.features import FeatureGates
from dray.api.pod_claims import is_pod_done, pod_claims
from dray.api.quantity import Format, Quantity
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import DeviceAttribute, DeviceTaint, ResourceClaim
from dray.sim.snapshot import Snapshot
from dray.sim.usable_nodes import UsableNodes

if TYPE_CHECKING:
    from dray.allocator import Inventory
    from dray.allocator.allocations import UsedDevicesWithShares
    from dray.allocator.content import Content
    from dray.allocator.pools import Pool, PoolDevice, SliceEntry
    from dray.allocator.selection import SelectorGroup
    from dray.allocator.taints import TaintRule

ALL_NODES: Final = "*"
# Stands for the driver of devices that a device plugin provides.
PLUGIN_DRIVER: Final = "device plugin"
_MEBI_NANOS: Final = 2**20 * 10**9
# Where nodes are not known.
EVERY_NODE: Final = UsableNodes({}, is_known=False)


class DeviceState(enum.StrEnum):
    """State of a device; the first that applies, in this order. docs/concepts.md has the same table."""

    # Its pool is incomplete or invalid.
    UNUSABLE = "unusable"
    # Its driver reports it as unhealthy, by the status of a Pod that uses it.
    UNHEALTHY = "unhealthy"
    # In use by one claim alone.
    HELD = "held"
    # It has a taint that keeps Pods away.
    TAINTED = "tainted"
    # A sibling uses the counters that it needs.
    BLOCKED = "blocked"
    # In use by claims that share it; others may still share it.
    SHARED = "shared"
    # Nobody uses it, but a new Pod cannot: its node takes none, or it is kept for another Pod.
    WITHHELD = "withheld"
    FREE = "free"


class Holder(msgspec.Struct, frozen=True, gc=False):
    """A claim that the device, or a share of it, is allocated to."""

    claim: str
    request: str
    pods: tuple[str, ...]
    since: datetime | None = None
    admin_access: bool = False
    consumed: Mapping[str, str] | None = None


class DeviceRow(msgspec.Struct, frozen=True, gc=False):
    """One device."""

    driver: str
    pool: str
    name: str
    # `*` for a device that is not local to one node.
    node: str
    state: DeviceState
    # Why it is not free.
    note: str
    classes: tuple[str, ...]
    holders: tuple[Holder, ...]
    attributes: Mapping[str, str]
    capacity: Mapping[str, str]
    taints: tuple[str, ...]
    # What else offers the same device: a resource of a device plugin with its Pods, or a driver.
    also: str = ""

    @property
    def key(self) -> str:
        """The name in messages."""
        return f"{self.driver}/{self.pool}/{self.name}"


# Of unknown clusters every taint is shown: rules exist only where an administrator wants them.
_SHOWN: Final = FeatureGates({"DRADeviceTaintRules": True})


def device_rows(snapshot: Snapshot, gates: FeatureGates | None = None) -> list[DeviceRow]:
    """Return all devices of the newest generations, by node, driver, pool and the order in the slice."""
    view = DeviceSurvey.of(snapshot, gates)
    rows = [row for pool in view.inventory.pools() for _, row in view.rows(pool)]
    rows.sort(key=lambda row: (row.node == ALL_NODES, row.node, row.driver, row.pool))
    return rows


class DeviceSurvey:
    """Tables prepared for the state of single devices; they may change between two rows."""

    def __init__(
        self,
        inventory: Inventory,
        allocations: UsedDevicesWithShares,
        holders: Mapping[str, Sequence[Holder]],
        unhealthy: Mapping[str, str],
        feature_gates: FeatureGates | None = None,
        nodes: UsableNodes = EVERY_NODE,
    ) -> None:
        # Imported here: the CEL modules are slow to import and not needed by those who only name a state.
        from dray.allocator.compatibility import conflicting_set
        from dray.allocator.gates import Gates
        from dray.allocator.selection import SelectorGroups, attributes_of_selectors
        from dray.allocator.taints import blocks

        self.inventory = inventory
        self.allocations = allocations
        self._gates = Gates.of(feature_gates or _SHOWN)
        self._unhealthy = unhealthy
        self._nodes = nodes
        # Devices that are kept for nominated Pods, by key, with the Pod.
        self.kept: dict[str, str] = {}
        self._blocks = blocks
        self._conflicting_set = conflicting_set
        self._holders = holders
        self._groups = SelectorGroups()
        self._attributes_of_selectors = attributes_of_selectors
        self._class_attributes: frozenset[str] | None = frozenset()
        self._classes: Sequence[tuple[str, SelectorGroup]] = ()
        self._classes_version = -1
        self._descriptions: dict[Content, tuple[tuple[str, ...], Mapping[str, str], Mapping[str, str]]] = {}

    @classmethod
    def of(cls, snapshot: Snapshot, feature_gates: FeatureGates | None = None) -> DeviceSurvey:
        """Return the survey of a snapshot."""
        tables = snapshot.inventory(), snapshot.allocations(), holders_by_device(snapshot), unhealthy_devices(snapshot)
        survey = cls(*tables, feature_gates, UsableNodes.of(snapshot))
        survey.kept = kept_devices(survey, nominated_requests(snapshot))
        return survey

    @property
    def classes(self) -> Sequence[tuple[str, SelectorGroup]]:
        """The classes by name, with their selectors."""
        if self._classes_version != self.inventory.classes_version:
            self._classes_version = self.inventory.classes_version
            self._descriptions.clear()
            self._classes = [
                (name, self._groups.group([item.cel.expression for item in found.spec.selectors if item.cel], ()))
                for name, found in sorted(self.inventory.classes.items())
            ]
            expressions = [text for _, group in self._classes for text in group.class_expressions]
            self._class_attributes = self._attributes_of_selectors(expressions)
        return self._classes

    @property
    def class_attributes(self) -> frozenset[str] | None:
        """The ids of the attributes on which the classes of devices may depend; None if on all of them."""
        # Computed with the classes.
        _ = self.classes
        return self._class_attributes

    def nanos(self, quantity: str) -> int:
        """Return an amount in nano units."""
        return Quantity.parse(quantity).nanos

    def devices(self, pool: Pool) -> Iterator[PoolDevice]:
        """Yield the devices of the newest generation."""
        pool.refresh(self._gates)
        for entry in pool.entries():
            yield from entry.devices

    def classes_of(self, device: PoolDevice) -> tuple[str, ...]:
        """Return the names of the classes whose selectors match the device."""
        return self._description(device.content)[0]

    def is_in_use(self, device: PoolDevice) -> bool:
        """Return whether a claim has the device or a share of it; admin access does not count."""
        holders = self._holders.get(device.key)
        return holders is not None and any(not holder.admin_access for holder in holders)

    def is_plain(self, pool: Pool) -> bool:
        """Return whether only allocations decide on the states of the pool's devices, and none can be shared."""
        if self.is_selected_by_rules(pool.driver, pool.name) or not self.is_published_plain(pool):
            return False
        devices = (device for entry in pool.entries() for device in entry.devices)
        return not self._unhealthy or not any(device.key in self._unhealthy for device in devices)

    def is_published_plain(self, pool: Pool) -> bool:
        """Return the same as far as the slices of the pool decide it, without rules and reports of Pods."""
        pool.refresh(self._gates)
        if pool.is_grouped or any(_unusable(pool, entry) for entry in pool.entries()):
            return False
        devices = (device for entry in pool.entries() for device in entry.devices)
        return not any(device.spec.taints or device.content.allow_multiple for device in devices)

    def is_selected_by_rules(self, driver: str, pool: str) -> bool:
        """Return whether a taint rule may select devices of the pool."""
        return bool(self._rules_of(driver, pool))

    def rows(self, pool: Pool) -> Iterator[tuple[PoolDevice, DeviceRow]]:
        """Yield the devices of the newest generation, each with its row."""
        pool.refresh(self._gates)
        rules = self._rules_of(pool.driver, pool.name)
        for entry in pool.entries():
            unusable = _unusable(pool, entry)
            for device in entry.devices:
                yield device, self._row(pool, device, unusable, rules)

    def _row(self, pool: Pool, device: PoolDevice, unusable: str, rules: Sequence[TaintRule]) -> DeviceRow:
        taints: Sequence[DeviceTaint] = device.taints if self._gates.taints else ()
        if rules:
            taints = [*taints, *(rule.taint for rule in rules if rule.device in (None, device.name))]
        classes, attributes, capacity = self._description(device.content)
        holders = self._holders.get(device.key, ())
        unhealthy = self._unhealthy.get(device.key)
        if unusable:
            state, note = DeviceState.UNUSABLE, unusable
        elif unhealthy is not None:
            state, note = DeviceState.UNHEALTHY, unhealthy
        else:
            state, note = self._state(pool, device, holders, taints)
        node = device.entry.node_name or device.spec.node_name or ""
        if state is DeviceState.FREE and (withheld := self._nodes.obstacle(node) or self.kept.get(device.key, "")):
            state, note = DeviceState.WITHHELD, withheld
        return DeviceRow(
            driver=pool.driver,
            pool=pool.name,
            name=device.name,
            node=node or ALL_NODES,
            state=state,
            note=note,
            classes=classes,
            holders=tuple(holders),
            attributes=attributes,
            capacity=capacity,
            taints=tuple([taint_text(taint) for taint in taints]) if taints else (),
        )

    def _rules_of(self, driver: str, pool: str) -> Sequence[TaintRule]:
        """Return the rules that may select devices of the pool."""
        if not (self._gates.taints and self._gates.taint_rules):
            return ()
        rules = self.inventory.taint_rules.rules
        return [rule for rule in rules if rule.driver in (None, driver) and rule.pool in (None, pool)]

    def _description(self, content: Content) -> tuple[tuple[str, ...], Mapping[str, str], Mapping[str, str]]:
        """Return classes, attributes and capacity, computed once for all devices with the same content."""
        groups = self.classes
        found = self._descriptions.get(content)
        if found is None:
            if len(self._descriptions) > 2 * self.inventory.content_count:
                self._descriptions.clear()
            found = self._descriptions[content] = (
                tuple(name for name, group in groups if group.verdict(content) is None),
                {name: attribute_text(value) for name, value in sorted(content.attributes.items())},
                {name: item.value for name, item in sorted(content.capacity.items())},
            )
        return found

    def _state(
        self, pool: Pool, device: PoolDevice, holders: Sequence[Holder], taints: Sequence[DeviceTaint]
    ) -> tuple[DeviceState, str]:
        shareable = device.content.allow_multiple and self._gates.consumable_capacity
        users = [holder.claim for holder in holders if not holder.admin_access]
        if users and not shareable:
            return DeviceState.HELD, f"held by {', '.join(users)}"
        if taints and (blocking := [taint for taint in taints if self._blocks(taint)]):
            return DeviceState.TAINTED, f"tainted: {', '.join(map(taint_text, blocking))}"
        blocked = self._blocked(pool, device, in_use=bool(users))
        if blocked:
            return DeviceState.BLOCKED, blocked
        if users:
            return DeviceState.SHARED, f"shared by {', '.join(users)}"
        return DeviceState.FREE, ""

    def _blocked(self, pool: Pool, device: PoolDevice, *, in_use: bool) -> str:
        """Return why the counters or compatibility groups of the pool leave no room for the device."""
        if not device.consumes:
            return ""
        lacking = pool.lacking_counter(device, pool.used_counters(self.allocations))
        if lacking is not None:
            return f"counter {lacking[0]}/{lacking[1]} is used up"
        conflict = self._conflicting_set(pool.common_groups(self.allocations), device.groups)
        if conflict is None or in_use:
            return ""
        return f"incompatible with devices in use of counter set {conflict}"


def _unusable(pool: Pool, entry: SliceEntry) -> str:
    """Return why the devices of a slice cannot be used; empty if they can."""
    problem = pool.problem_of(entry)
    if problem is not None:
        return f"its pool is {problem}"
    if pool.is_complete(entry):
        return ""
    entries = list(pool.entries())
    wanted = max(item.slice_count for item in entries)
    return f"its pool is incomplete: {len(entries)} of {wanted} slices of generation {pool.generation}"


def nominated_requests(snapshot: Snapshot) -> Iterator[tuple[str, str, int, str]]:
    """Yield what nominated Pods are to get: the node, the class, how many devices, and the Pod."""
    for pod in snapshot.pods:
        node = pod.status.nominated_node_name
        if not node or pod.spec.node_name or is_pod_done(pod) or pod.metadata.deletion_timestamp is not None:
            continue
        for entry in pod_claims(pod):
            key = NamespacedName(pod.metadata.namespace or "", entry.claim_name or "")
            claim = snapshot.claims_by_key.get(key)
            if claim is None or claim.status.allocation is not None:
                continue
            for request in claim.spec.devices.requests:
                if (wanted := request.exactly) is not None and not wanted.admin_access:
                    label = f"{pod.metadata.namespace}/{pod.metadata.name}"
                    yield node, wanted.device_class_name, wanted.count or 1, label


def kept_devices(survey: DeviceSurvey, wanted: Iterable[tuple[str, str, int, str]]) -> dict[str, str]:
    """Return free devices of the nodes that are as many as their nominated Pods are to get, by key, with the Pod."""
    kept: dict[str, str] = {}
    by_node: dict[str, list[DeviceRow]] | None = None
    for node, class_name, count, pod in wanted:
        if by_node is None:
            by_node = {}
            for pool in survey.inventory.pools():
                for _, row in survey.rows(pool):
                    by_node.setdefault(row.node, []).append(row)
        free = (row for row in by_node.get(node, ()) if row.state is DeviceState.FREE and class_name in row.classes)
        chosen = [row.key for row in free if row.key not in kept][:count]
        kept |= dict.fromkeys(chosen, f"kept for Pod {pod}")
    return kept


def unhealthy_devices(snapshot: Snapshot) -> dict[str, str]:
    """Return the devices that the status of a Pod reports as unhealthy, by key, with what is said about them."""
    found: dict[str, str] = {}
    for pod in snapshot.pods:
        found.update(unhealthy_devices_of(pod))
    return found


def unhealthy_devices_of(pod: Pod) -> Iterator[tuple[str, str]]:
    """Yield the keys of devices that the status of the Pod reports as unhealthy, with what is said about them."""
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    for resource in (item for status in statuses for item in status.allocated_resources_status):
        for device in resource.resources:
            if device.health == "Unhealthy":
                said = f": {device.message}" if device.message else ""
                yield device.resource_id, f"unhealthy{said}; used by Pod {pod.metadata.namespace}/{pod.metadata.name}"


# Most devices have the same few amounts.
@lru_cache(maxsize=4096)
def binary_text(nanos: int) -> str:
    """Return an amount; whole mebibytes in the largest binary unit that divides it."""
    is_binary = nanos != 0 and nanos % _MEBI_NANOS == 0
    return str(Quantity(nanos, Format.BINARY_SI if is_binary else Format.DECIMAL_SI))


def holders_by_device(snapshot: Snapshot) -> dict[str, tuple[Holder, ...]]:
    """Return the claims of each device, by the device's key."""
    found: dict[str, list[Holder]] = {}
    for claim in snapshot.claims:
        for key, holder in holders_of(claim):
            found.setdefault(key, []).append(holder)
    return {key: tuple(holders) for key, holders in found.items()}


def holders_of(claim: ResourceClaim) -> Iterator[tuple[str, Holder]]:
    """Yield the keys of the devices that the claim holds."""
    allocation = claim.status.allocation
    if allocation is None:
        return
    namespace, name = claim.metadata.namespace, claim.metadata.name or ""
    label = f"{namespace}/{name}" if namespace else name
    pods = pods_of(claim)
    for result in allocation.devices.results:
        yield (
            f"{result.driver}/{result.pool}/{result.device}",
            Holder(
                claim=label,
                request=result.request,
                pods=pods,
                since=allocation.allocation_timestamp,
                admin_access=bool(result.admin_access),
                consumed=dict(result.consumed_capacity) if result.consumed_capacity else None,
            ),
        )


def pods_of(claim: ResourceClaim) -> tuple[str, ...]:
    """Return the names of the Pods that the claim is reserved for."""
    return tuple([user.name for user in claim.status.reserved_for if user.resource == "pods"])


def taint_text(taint: DeviceTaint) -> str:
    """Return `key=value:effect`, as kubectl prints taints."""
    value = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value}:{taint.effect}"


def attribute_text(attribute: DeviceAttribute) -> str:
    """Return the value as text; lists are joined with commas."""
    scalars = (attribute.bool_, attribute.int_, attribute.string, attribute.version)
    value = next((item for item in scalars if item is not None), None)
    if value is not None:
        return str(value).lower() if isinstance(value, bool) else str(value)
    lists = (attribute.bools, attribute.ints, attribute.strings, attribute.versions)
    several = next((items for items in lists if items), ())
    return ",".join(str(item).lower() if isinstance(item, bool) else str(item) for item in several)
