"""The tables that the page shows, kept up to date from changes of API objects. Pure.

Devices are counted as by `dray top`: the functions are the same. A change of an object makes only those pools and nodes
stale that it concerns; `refresh` computes them, as many at a time as its caller wants. No change does work that grows
with the cluster, but those of classes and taint rules that select many devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from dray.allocator import Inventory
from dray.allocator.pools import pool_key
from dray.allocator.taints import TaintRule
from dray.api.codec import from_document
from dray.api.document import Document
from dray.api.types.core_v1 import Node
from dray.dashboard import rows
from dray.dashboard.held_devices import HeldDevices
from dray.dashboard.pool_templates import PoolTemplates
from dray.dashboard.rows import COLUMNS, Row, Shape
from dray.dashboard.summaries import ClaimSummary, EventSummary, PodSummary, SliceSummary, Summary
from dray.sim.devices import DeviceSurvey
from dray.sim.physical_devices import plugin_resources_of
from dray.sim.snapshot import CLASSIC_CLAIM
from dray.sim.usable_nodes import node_obstacle

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
# Devices are shown once all of these have been listed, and their states once all of those.
OUTLINE_KINDS: Final = frozenset({"DeviceClass", "ResourceSlice"})
DEVICE_KINDS: Final = OUTLINE_KINDS | {"DeviceTaintRule", "ResourceClaim"}
# The tables of the picture of the cluster, which are sent before the others, and the kinds that have no other rows.
PICTURE_TABLES: Final = ("classes", "shapes", "nodes", "pools")
PICTURE_KINDS: Final = frozenset({"DeviceClass", "ResourceSlice", "Node"})
# The newest events, for the timeline; older ones are on the pages of their objects.
EVENTS_MAX: Final = 1000
# Events are sorted out once there are so many more.
_EVENTS_SLACK: Final = 200
_SHAPE: Final = COLUMNS["pools"].index("shape")


class ClusterView:
    """The tables of users with the same rights. `changes` has what changed since the last call."""

    def __init__(self, *, are_states_known: bool = True) -> None:
        # Until then, pools have the names of their devices only: all devices would seem to be free.
        self._are_states_known = are_states_known
        self.tables: dict[str, dict[str, Row]] = {name: {} for name in COLUMNS}
        self._inventory = Inventory()
        self._held = HeldDevices()
        # Devices that Pods report as unhealthy, by device; and the devices that a Pod reports.
        self._unhealthy: dict[str, str] = {}
        # How many of them are in a pool, by the key of the pool.
        self._unhealthy_in: Counter[str] = Counter()
        # The inventory of the survey has only the pools for which there is no template.
        self._survey = DeviceSurvey(self._inventory, self._held, self._held, self._unhealthy)
        self._templates = PoolTemplates(self._survey)
        self._surveyed_slices: set[str] = set()
        self._slices: dict[str, dict[str, SliceSummary]] = {}
        self._shapes = _Shapes()
        self._nodes: dict[str, Document] = {}
        # Pods that are neither finished nor unscheduled, by node; and what they use of resources of device plugins.
        self._pods_on: Counter[str] = Counter()
        self._used: dict[str, dict[str, dict[str, int]]] = {}
        # Pods that do not run yet, without warnings, and the latest warnings about Pods.
        self._pending: dict[str, Row] = {}
        self._warnings: dict[str, tuple[str, str]] = {}
        self._stale_pools: dict[str, None] = {}
        self._stale_nodes: dict[str, None] = {}
        # Claims without a current row; None if the claim was deleted.
        self._stale_claims: dict[str, ClaimSummary | None] = {}
        # Keys of changed rows by table.
        self._changed: dict[str, dict[str, None]] = {name: {} for name in COLUMNS}
        self._apply: Mapping[str, Callable[[Summary | None, Summary | None], None]] = {
            "DeviceClass": self._apply_class,
            "DeviceTaintRule": self._apply_rule,
            "ResourceSlice": self._apply_slice,
            "ResourceClaim": self._apply_claim,
            CLASSIC_CLAIM: self._apply_classic_claim,
            "Node": self._apply_node,
            "Pod": self._apply_pod,
            "Namespace": lambda old, new: self._apply_row("namespaces", old, new),
            "ResourceQuota": lambda old, new: self._apply_row("quotas", old, new),
            "ReplicaSet": lambda old, new: self._apply_row("blocked", old, new),
            "Event": self._apply_event,
        }

    def apply(self, kind: str, old: Summary | None, new: Summary | None) -> None:
        """Apply the change of an object: `new` is None if it was deleted."""
        self._apply[kind](old, new)

    @property
    def is_picture_stale(self) -> bool:
        """Whether pools or nodes are to be computed."""
        return bool(self._stale_pools or self._stale_nodes)

    @property
    def is_stale(self) -> bool:
        """Whether anything is to be computed."""
        return self.is_picture_stale or bool(self._stale_claims)

    def set_states_known(self) -> None:
        """Compute the states of devices from now on: all claims and taint rules have been applied."""
        if not self._are_states_known:
            self._are_states_known = True
            self._stale_pools.update(dict.fromkeys(self._slices))

    def refresh(self, count: int) -> None:
        """Compute at most so many rows; those of the picture first."""
        while count > 0 and self._stale_nodes:
            self._refresh_node(_pop_first(self._stale_nodes))
            count -= 1
        while count > 0 and self._stale_pools:
            self._refresh_pool(_pop_first(self._stale_pools))
            count -= 1
        while count > 0 and self._stale_claims:
            key = next(iter(self._stale_claims))
            summary = self._stale_claims.pop(key)
            self._put("claims", key, None if summary is None else summary.row)
            count -= 1

    def changes(self, tables: Sequence[str] = tuple(COLUMNS)) -> dict[str, tuple[dict[str, Row], list[str]]]:
        """Return new and changed rows by key, and the keys of removed ones, by table, for these tables."""
        self._trim_events(_EVENTS_SLACK)
        found: dict[str, tuple[dict[str, Row], list[str]]] = {}
        for table in tables:
            keys, known = self._changed[table], self.tables[table]
            if keys:
                changed = {key: known[key] for key in keys if key in known}
                found[table] = changed, [key for key in keys if key not in known]
                keys.clear()
        return found

    # --- Devices. ---

    def _apply_class(self, old: Summary | None, new: Summary | None) -> None:
        name = _key(old, new)
        if new is None:
            self._inventory.remove_class(name)
        else:
            self._inventory.apply_class(new.value)
        self._put("classes", name, None if new is None else [name])
        if old is None or new is None or old.value.spec != new.value.spec:
            self._stale_pools.update(dict.fromkeys(self._slices))

    def _apply_rule(self, old: Summary | None, new: Summary | None) -> None:
        if new is None:
            self._inventory.remove_taint_rule(_key(old, new))
        else:
            self._inventory.apply_taint_rule(new.value)
        self._put("rules", _key(old, new), None if new is None else rows.rule_row(new.value))
        changed = [TaintRule.from_document(item.value) for item in (old, new) if item is not None]
        if old is not None and new is not None and changed[0] == changed[1]:
            return
        for key in self._slices:
            driver, _, pool = key.partition("/")
            if any(rule.driver in (None, driver) and rule.pool in (None, pool) for rule in changed):
                self._stale_pools[key] = None

    def _apply_slice(self, old: Summary | None, new: Summary | None) -> None:
        if old is not None:
            before: SliceSummary = old.value
            key = pool_key(before.driver, before.pool.name)
            self._leave_survey((before,))
            del self._slices[key][before.name]
            if not self._slices[key]:
                del self._slices[key]
            self._stale_pools[key] = None
        if new is not None:
            after: SliceSummary = new.value
            key = pool_key(after.driver, after.pool.name)
            self._slices.setdefault(key, {})[after.name] = after
            self._stale_pools[key] = None

    def _apply_claim(self, old: Summary | None, new: Summary | None) -> None:
        for key, holder in old.value.holders if old is not None else ():
            self._stale_pools[self._held.remove(key, holder)] = None
        for key, holder in new.value.holders if new is not None else ():
            self._stale_pools[self._held.add(key, holder)] = None
        self._stale_claims[_key(old, new)] = None if new is None else new.value

    def _apply_classic_claim(self, old: Summary | None, new: Summary | None) -> None:
        # A claim of the other group may have the same name.
        self._put("claims", f"classic:{_key(old, new)}", None if new is None else new.value)

    def _refresh_pool(self, key: str) -> None:
        slices = self._slices.get(key)
        row = None
        if slices:
            shape, row = self._pool_rows(key, slices.values())
            number, is_new = self._shapes.acquire(key, shape)
            row[_SHAPE] = number
            if is_new:
                self._put("shapes", str(number), [shape])
        else:
            self._shapes.release(key)
        self._put("pools", key, row)
        for number in self._shapes.take_unused():
            self._put("shapes", str(number), None)

    def _pool_rows(self, key: str, slices: Collection[SliceSummary]) -> tuple[Shape, Row]:
        driver, _, name = key.partition("/")
        is_special = key in self._unhealthy_in or self._survey.is_selected_by_rules(driver, name)
        template = None if is_special else self._templates.find(slices)
        if template is not None:
            self._leave_survey(slices)
            if not self._are_states_known:
                return template.shape, template.outline_row(slices)
            return template.shape, template.row(slices, self._held.names_in_use(key))
        for item in slices:
            if item.name not in self._surveyed_slices:
                self._surveyed_slices.add(item.name)
                self._inventory.apply_slice(item.decoded())
        pool = self._inventory.pool(key)
        assert pool is not None
        return (rows.pool_rows if self._are_states_known else rows.outline_rows)(self._survey, pool)

    def _leave_survey(self, slices: Collection[SliceSummary]) -> None:
        """Remove slices from the survey, as far as they are in it."""
        for item in slices if self._surveyed_slices else ():
            if item.name in self._surveyed_slices:
                self._surveyed_slices.remove(item.name)
                self._inventory.remove_slice(item.name)

    # --- Nodes and Pods. ---

    def _apply_node(self, old: Summary | None, new: Summary | None) -> None:
        name = _key(old, new)
        if new is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = new.value
        self._stale_nodes[name] = None

    def _refresh_node(self, name: str) -> None:
        document = self._nodes.get(name)
        if document is None:
            self._put("nodes", name, None)
            return
        node, pods = from_document(Node, document), self._pods_on[name]
        plugins = plugin_resources_of(node, self._used.get(name, {}))
        self._put("nodes", name, rows.node_row(document, plugins, pods, node_obstacle(node, pods)))

    def _apply_pod(self, old: Summary | None, new: Summary | None) -> None:
        key = _key(old, new)
        before, after = (None if item is None else item.value for item in (old, new))
        self._count_pod(key, before, after)
        self._report_health(before, after)
        if after is None:
            self._pending.pop(key, None)
            self._warnings.pop(key, None)
            self._put("pods", key, None)
            return
        if after.shows_warnings:
            self._pending[key] = after.row
        else:
            self._pending.pop(key, None)
        self._put("pods", key, rows.warned_row(after.row, self._warnings.get(key, ("", ""))[1]))

    def _count_pod(self, key: str, before: PodSummary | None, after: PodSummary | None) -> None:
        if before and after and (before.node, before.requests) == (after.node, after.requests):
            return
        for pod, step in ((before, -1), (after, 1)):
            if pod is None or not pod.node:
                continue
            node = pod.node
            self._pods_on[node] += step
            self._stale_nodes[node] = None
            for resource, amount in pod.requests.items():
                used = self._used.setdefault(node, {}).setdefault(resource, {})
                if step > 0:
                    used[key] = amount
                else:
                    used.pop(key, None)

    def _report_health(self, before: PodSummary | None, after: PodSummary | None) -> None:
        for device in before.unhealthy if before is not None else ():
            if self._unhealthy.pop(device, None) is not None:
                self._count_unhealthy(device, -1)
        for device, message in after.unhealthy.items() if after is not None else ():
            if device not in self._unhealthy:
                self._count_unhealthy(device, 1)
            self._unhealthy[device] = message
            self._stale_pools[device.rpartition("/")[0]] = None

    def _count_unhealthy(self, device: str, step: int) -> None:
        pool = device.rpartition("/")[0]
        self._unhealthy_in[pool] += step
        if not self._unhealthy_in[pool]:
            del self._unhealthy_in[pool]
        self._stale_pools[pool] = None

    # --- Others. ---

    def _apply_event(self, old: Summary | None, new: Summary | None) -> None:
        event: EventSummary = (new or old).value  # type: ignore[union-attr]
        self._put("events", event.key, None if new is None else event.row)
        if not event.warned:
            return
        key, at = event.warned, event.row[0]
        if new is None:
            # Events outlive Pods: what they said is kept as long as they are.
            if self._warnings.get(key, ("", ""))[0] == at:
                del self._warnings[key]
        elif at >= self._warnings.get(key, ("", ""))[0]:
            self._warnings[key] = at, event.warning
            if key in self._pending:
                self._put("pods", key, rows.warned_row(self._pending[key], event.warning))

    def _trim_events(self, slack: int) -> None:
        events = self.tables["events"]
        if len(events) <= EVENTS_MAX + slack:
            return
        for key in sorted(events, key=lambda key: str(events[key][0]))[: len(events) - EVENTS_MAX]:
            self._put("events", key, None)

    def _apply_row(self, table: str, old: Summary | None, new: Summary | None) -> None:
        self._put(table, _key(old, new), None if new is None else new.value)

    def _put(self, table: str, key: str, row: Row | None) -> None:
        known = self.tables[table]
        if row is None:
            if known.pop(key, None) is not None:
                self._changed[table][key] = None
        elif known.get(key) != row:
            known[key] = row
            self._changed[table][key] = None


class _Shapes:
    """Numbers of the shapes that pools have; one that no pool has any more is removed."""

    def __init__(self) -> None:
        self._numbers: dict[Shape, int] = {}
        self._users: Counter[Shape] = Counter()
        self._of_pool: dict[str, Shape] = {}
        self._unused: list[int] = []
        self._next = 1

    def acquire(self, pool: str, shape: Shape) -> tuple[int, bool]:
        """Return the number of a pool's shape, and whether no pool had it before."""
        known = self._numbers.get(shape)
        if known is not None and self._of_pool.get(pool) == shape:
            return known, False
        number = known
        if number is None:
            number = self._numbers[shape] = self._next
            self._next += 1
        self._users[shape] += 1
        self.release(pool)
        self._of_pool[pool] = shape
        return number, known is None

    def release(self, pool: str) -> None:
        """Forget the shape of a pool."""
        shape = self._of_pool.pop(pool, None)
        if shape is None:
            return
        self._users[shape] -= 1
        if not self._users[shape]:
            del self._users[shape]
            self._unused.append(self._numbers.pop(shape))

    def take_unused(self) -> list[int]:
        """Return the numbers of shapes that no pool has any more, once."""
        taken, self._unused = self._unused, []
        return taken


def _pop_first(table: dict[str, None]) -> str:
    key = next(iter(table))
    del table[key]
    return key


def _key(*summaries: Summary | None) -> str:
    """Return the key of the first object that is there."""
    return next(item for item in summaries if item is not None).metadata.key
