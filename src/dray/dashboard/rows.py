"""Rows of the page's tables, made of API objects. Pure.

A row is a list of JSON values in the order of `COLUMNS`: a fraction of the bytes of the object that it is made of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from dray.api import classic_claims as classic
from dray.api.document import Document
from dray.api.pod_claims import TERMINAL_PHASES
from dray.api.timestamps import format_time
from dray.api.types import cdi_v1alpha1
from dray.api.types.resource_v1 import ResourceClaim
from dray.sim.claims import claim_state, request_text
from dray.sim.devices import ALL_NODES, DeviceRow, DeviceState, DeviceSurvey, attribute_text, pods_of
from dray.sim.physical_devices import PhysicalDevice, PluginResource, devices_of_pool, physical_names

if TYPE_CHECKING:
    from dray.allocator.content import Content
    from dray.allocator.pools import CounterName, Pool, PoolDevice

Row: TypeAlias = list[Any]

COLUMNS: Final[Mapping[str, Sequence[str]]] = {
    "shapes": ("cards",),
    "pools": ("driver", "pool", "node", "slices", "shape", "states", "used", "segments", "notes"),
    "nodes": ("name", "ready", "cordoned", "zone", "rack", "shape", "taints", "plugins", "pods", "created", "closed"),
    "claims": ("namespace", "name", "state", "requests", "devices", "pods", "created", "allocated", "classic"),
    "pods": (
        "namespace",
        "name",
        "state",
        "owner",
        "node",
        "claims",
        "reason",
        "created",
        "restarts",
        "gates",
    ),
    "quotas": ("namespace", "name", "resources"),
    "events": ("at", "type", "reason", "kind", "namespace", "name", "message", "count"),
    "blocked": ("kind", "namespace", "name", "reason"),
    "classes": ("name",),
    "rules": ("name", "driver", "pool", "device", "taint"),
    "namespaces": ("name",),
}
# The fields of an entry of `cards` of a shape, one for each physical device: what many pools have in common. A pool has
# the state of each device as a letter and, by position, fractions, segments and notes that the letter does not imply.
CARD_COLUMNS: Final = ("name", "classes", "model", "published")
STATE_LETTERS: Final[Mapping[str, str]] = {
    "unusable": "?",
    "unhealthy": "x",
    "tainted": "t",
    "used": "u",
    "partly": "p",
    "free": "f",
    # Claims are not listed yet.
    "loading": "l",
}
_IMPLIED_USED: Final = {"used": 1.0}

ZONE_LABEL: Final = "topology.kubernetes.io/zone"
SHAPE_LABEL: Final = "node.kubernetes.io/instance-type"
# Kubernetes has no label for racks: any whose name is "rack" counts.
_RACK: Final = "rack"
# Attributes that tell people what a device is; the first that it has.
_MODELS: Final = ("productName", "model", "product", "type")
MODEL_ATTRIBUTES: Final = frozenset(_MODELS)
# Longer texts are for the object's own page.
_REASON_LENGTH_MAX: Final = 400
# The reason of the claim controller's event.
CLAIM_NOT_CREATED: Final = "FailedResourceClaimCreation"
_HASH_LABEL: Final = "pod-template-hash"
_DEFECTS: Final = (DeviceState.UNUSABLE, DeviceState.UNHEALTHY)
_FULL: Final = frozenset({DeviceState.HELD, DeviceState.BLOCKED, DeviceState.TAINTED})


# --- Devices. ---


Shape: TypeAlias = tuple[tuple[str, tuple[str, ...], str, int], ...]
# The devices that each physical device is published as.
Cards: TypeAlias = "Mapping[str, Sequence[PoolDevice]]"
# Letters of states; fractions in use and segments by position.
CardStates: TypeAlias = tuple[str, Mapping[str, float], Mapping[str, list[Row]]]


def pool_rows(survey: DeviceSurvey, pool: Pool) -> tuple[Shape, Row]:
    """Return the shape of a pool, and its row with an empty place for the number of the shape."""
    cards = cards_of(survey, pool)
    shape, identity = shape_of(survey, cards), _identity(pool, cards)
    if survey.is_plain(pool):
        in_use = {device.name for devices in cards.values() for device in devices if survey.is_in_use(device)}
        return shape, [*identity, 0, *plain_states(pool, cards, in_use), {}]
    states, used, segments, notes = [], {}, {}, {}
    for position, (device, parts) in enumerate(devices_of_pool(survey, pool)):
        state, note = card_state(device, [row for _, row in parts])
        states.append(STATE_LETTERS[state])
        if device.used != _IMPLIED_USED.get(state, 0.0):
            used[str(position)] = round(device.used, 4)
        held = [part for part, row in parts if any(not holder.admin_access for holder in row.holders)]
        if len(parts) > 1 and held:
            segments[str(position)] = _segments(pool, device.used, held)
        if note:
            notes[str(position)] = note
    return shape, [*identity, 0, "".join(states), used, segments, notes]


def outline_rows(survey: DeviceSurvey, pool: Pool) -> tuple[Shape, Row]:
    """Return the same as `pool_rows` for a pool whose allocations are not known yet."""
    cards = cards_of(survey, pool)
    return shape_of(survey, cards), [*_identity(pool, cards), 0, *unknown_states(cards), {}]


def plain_states(pool: Pool, cards: Cards, in_use: Collection[str]) -> CardStates:
    """Return states, used fractions and segments if devices are free or allocated, and nothing else.

    The same as for any pool, in a third of the time. Nearly all pools are plain, and a first picture needs all of them.
    """
    if not in_use:
        return STATE_LETTERS["free"] * len(cards), {}, {}
    consumed = _consumed_counters(pool, in_use)
    shares: dict[str, float] = {}
    for (counter_set, counter), total in pool.counters.items():
        share = min(consumed.get((counter_set, counter), 0) / total, 1.0) if total else 0.0
        shares[counter_set] = max(share, shares.get(counter_set, 0.0))
    states, used, segments = [], {}, {}
    for position, (name, devices) in enumerate(cards.items()):
        held = [device for device in devices if device.name in in_use]
        fraction = shares.get(name) if devices[0].consumes else None
        if fraction is None:
            fraction = 1.0 if held else 0.0
        state = "free"
        if held or fraction:
            rest = [device for device in devices if device not in held]
            is_full = fraction >= 1 or all(pool.lacking_counter(device, consumed) for device in rest)
            state = "used" if is_full else "partly"
        states.append(STATE_LETTERS[state])
        if fraction != _IMPLIED_USED.get(state, 0.0):
            used[str(position)] = round(fraction, 4)
        if len(devices) > 1 and held:
            segments[str(position)] = _segments(pool, fraction, held)
    return "".join(states), used, segments


def unknown_states(cards: Cards) -> CardStates:
    """Return the same as `plain_states` while allocations are not known."""
    return STATE_LETTERS["loading"] * len(cards), {}, {}


def _consumed_counters(pool: Pool, in_use: Collection[str]) -> Mapping[CounterName, int]:
    """Return what the devices in use, by name, consume of the counters of the pool."""
    consumed: dict[CounterName, int] = {}
    if pool.counters:
        for device in [pool.index[name] for name in in_use if name in pool.index]:
            for counter, amount in device.consumes:
                consumed[counter] = consumed.get(counter, 0) + amount
    return consumed


def cards_of(survey: DeviceSurvey, pool: Pool) -> Cards:
    """Return the physical devices of a pool, each with the devices that it is published as."""
    cards: dict[str, list[PoolDevice]] = {}
    for device in survey.devices(pool):
        for name in physical_names(device):
            cards.setdefault(name, []).append(device)
    return cards


def shape_of(survey: DeviceSurvey, cards: Cards) -> Shape:
    """Return what the physical devices have in common with those of other pools."""
    return tuple(
        [
            (name, _classes_of(survey, devices), _model(devices[0].content), len(devices))
            for name, devices in cards.items()
        ]
    )


def _identity(pool: Pool, cards: Cards) -> Row:
    """Return the driver, name, node and slices of a pool."""
    first = next(iter(cards.values()))[0] if cards else None
    node = "" if first is None else first.entry.node_name or first.spec.node_name or ALL_NODES
    return [pool.driver, pool.name, node, sorted([entry.name for entry in pool.entries()])]


def _classes_of(survey: DeviceSurvey, devices: Sequence[PoolDevice]) -> tuple[str, ...]:
    found = {survey.classes_of(device) for device in devices}
    return next(iter(found)) if len(found) == 1 else tuple(sorted({name for classes in found for name in classes}))


def card_state(device: PhysicalDevice, rows: Sequence[DeviceRow]) -> tuple[str, str]:
    """Return the state of a physical device as the page shows it, and what is wrong with it.

    A defect of any part comes first. A device in use is `partly` used while a part or a share of it can be allocated.
    """
    for defect in _DEFECTS:
        found = next((row for row in rows if row.state == defect), None)
        if found is not None:
            return defect.value, found.note
    in_use = device.used > 0 or any(not holder.admin_access for row in rows for holder in row.holders)
    if in_use:
        full = device.used >= 1 or all(row.state in _FULL for row in rows)
        return ("used" if full else "partly"), ""
    if all(row.state == DeviceState.TAINTED for row in rows):
        return "tainted", rows[0].note
    return "free", ""


# The contents of devices are shared, and there are few different ones; a cluster with more is only slower.
@lru_cache(maxsize=1024)
def _model(content: Content) -> str:
    by_name = {name.rpartition("/")[2]: value for name, value in content.attributes.items()}
    texts = (attribute_text(by_name[name]) for name in _MODELS if name in by_name)
    return next((text for text in texts if text), "")


def _segments(pool: Pool, used: float, held: Sequence[PoolDevice]) -> list[Row]:
    """Return the allocated parts as [device, fraction]; the fractions add up to what is used."""
    shares = []
    for device in held:
        amounts = [amount / pool.counters[name] for name, amount in device.consumes if pool.counters.get(name)]
        shares.append(max(amounts, default=1.0))
    scale = used / sum(shares) if sum(shares) else 0.0
    return [[device.name, round(share * scale, 4)] for device, share in zip(held, shares, strict=True)]


# --- Nodes. ---


def node_row(document: Document, plugins: Sequence[PluginResource], pods: int, closed: str) -> Row:
    """Return the row of a node; `closed` is why it takes no new Pod."""
    metadata, spec = document["metadata"], document.get("spec") or {}
    labels = metadata.get("labels") or {}
    rack = next((value for name, value in sorted(labels.items()) if name.rpartition("/")[2] == _RACK), "")
    taints = [f"{item['key']}={item.get('value') or ''}:{item['effect']}" for item in spec.get("taints") or ()]
    return [
        metadata["name"],
        condition(document, "Ready").get("status", ""),
        bool(spec.get("unschedulable")),
        labels.get(ZONE_LABEL, ""),
        rack,
        labels.get(SHAPE_LABEL, ""),
        [text.replace("=:", ":") for text in taints],
        [[item.name, item.allocatable, item.unhealthy, item.used] for item in plugins],
        pods,
        metadata.get("creationTimestamp", ""),
        closed,
    ]


def condition(document: Document, type_: str) -> Document:
    """Return a condition of the object's status; empty if there is none."""
    conditions = (document.get("status") or {}).get("conditions") or ()
    return next((item for item in conditions if item.get("type") == type_), {})


# --- Claims. ---


def claim_row(claim: ResourceClaim, devices: list[str]) -> Row:
    """Return the row of a claim of resource.k8s.io that holds these devices."""
    allocation = claim.status.allocation
    metadata = claim.metadata
    created = "" if metadata.creation_timestamp is None else format_time(metadata.creation_timestamp)
    since = None if allocation is None else allocation.allocation_timestamp
    allocated = "" if allocation is None else created if since is None else format_time(since)
    return [
        metadata.namespace,
        metadata.name,
        claim_state(claim).value,
        [request_text(request) for request in claim.spec.devices.requests],
        devices,
        list(pods_of(claim)),
        created,
        allocated,
        False,
    ]


def classic_claim_row(document: Document, claim: cdi_v1alpha1.ResourceClaim) -> Row:
    """Return the row of a claim of cdi.k8s.io; what its driver allocates has no name in the API."""
    users = classic.status_of(claim).reserved_for
    metadata = claim.metadata
    state = "deleting" if metadata.deletion_timestamp else "pending"
    if state == "pending" and classic.is_allocated(claim):
        state = "reserved" if users else "allocated"
    return [
        metadata.namespace,
        metadata.name,
        state,
        [claim.spec.resource_class_name],
        [],
        [user.name for user in users if classic.is_pod_reference(user)],
        document["metadata"].get("creationTimestamp", ""),
        "",
        True,
    ]


# --- Pods. ---


def pod_row(pod: Document) -> Row:
    """Return the row of a Pod."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    state, reason = pod_state(pod)
    return [
        metadata["namespace"],
        metadata["name"],
        state,
        pod_owner(metadata),
        spec.get("nodeName") or "",
        claim_names(pod),
        reason[:_REASON_LENGTH_MAX],
        metadata.get("creationTimestamp", ""),
        sum(item.get("restartCount") or 0 for item in status.get("containerStatuses") or ()),
        [gate["name"] for gate in spec.get("schedulingGates") or ()],
    ]


def warned_row(row: Row, warning: str) -> Row:
    """Return the row of a Pod about which there is a Warning event.

    A Pod that seemed to be starting is shown as failing. For a pending Pod, the condition only says that a claim is
    missing; the event says why.
    """
    columns = COLUMNS["pods"]
    state, reason = columns.index("state"), columns.index("reason")
    is_pending = row[state] == "pending" and warning.startswith(CLAIM_NOT_CREATED)
    if not warning or not (is_pending or row[state] == "starting"):
        return row
    changed = list(row)
    changed[state], changed[reason] = "pending" if is_pending else "error", warning[:_REASON_LENGTH_MAX]
    return changed


def pod_state(pod: Document) -> tuple[str, str]:
    """Return the state of a Pod, and why it is not running."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    if pod["metadata"].get("deletionTimestamp"):
        return "deleting", ""
    phase = status.get("phase") or "Pending"
    if phase in TERMINAL_PHASES:
        return phase.lower(), _joined(status.get("reason"), status.get("message"))
    waiting = next(_waiting(status), None)
    if waiting is not None:
        return "error", waiting
    if phase == "Running":
        return "running", ""
    if spec.get("nodeName"):
        return "starting", ""
    return "pending", condition(pod, "PodScheduled").get("message") or ""


def _waiting(status: Document) -> Iterator[str]:
    """Yield why containers cannot start, as far as it is not the usual course."""
    for item in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (item.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "", "ContainerCreating", "PodInitializing"):
            yield _joined(waiting["reason"], waiting.get("message"))


def _joined(reason: str | None, message: str | None) -> str:
    return ": ".join(part for part in (reason, message) if part)


def pod_owner(metadata: Document) -> str:
    """Return the workload as `Kind/name`: the Deployment of a ReplicaSet; empty for a Pod of its own."""
    owner = next((item for item in metadata.get("ownerReferences") or () if item.get("controller")), None)
    if owner is None:
        return ""
    suffix = f"-{(metadata.get('labels') or {}).get(_HASH_LABEL, '')}"
    if owner["kind"] == "ReplicaSet" and len(suffix) > 1 and owner["name"].endswith(suffix):
        return f"Deployment/{owner['name'].removesuffix(suffix)}"
    return f"{owner['kind']}/{owner['name']}"


def claim_names(pod: Document) -> list[str]:
    """Return the names of the claims of a Pod, as far as they exist."""
    status = pod.get("status") or {}
    made = {item["name"]: item.get("resourceClaimName") for item in status.get("resourceClaimStatuses") or ()}
    entries = (pod.get("spec") or {}).get("resourceClaims") or ()
    names = [item.get("resourceClaimName") or made.get(item["name"]) for item in entries]
    names.append((status.get("extendedResourceClaimStatus") or {}).get("resourceClaimName"))
    return [name for name in names if name]


# --- Others. ---


def rule_row(rule: Document) -> Row:
    """Return the row of a DeviceTaintRule; what it does not restrict is empty."""
    spec = rule.get("spec") or {}
    selector, taint = spec.get("deviceSelector") or {}, spec.get("taint") or {}
    value = f"={taint['value']}" if taint.get("value") else ""
    text = f"{taint.get('key', '')}{value}:{taint.get('effect', '')}"
    return [rule["metadata"]["name"], *(selector.get(name) or "" for name in ("driver", "pool", "device")), text]


def quota_row(quota: Document) -> Row:
    """Return the row of a quota; resources are [name, used, hard]."""
    hard = (quota.get("spec") or {}).get("hard") or {}
    used = (quota.get("status") or {}).get("used") or {}
    metadata = quota["metadata"]
    return [metadata["namespace"], metadata["name"], [[name, used.get(name, "0"), hard[name]] for name in sorted(hard)]]


def event_row(event: Document) -> Row:
    """Return the row of an event."""
    about = event.get("involvedObject") or {}
    return [
        event_time(event),
        event.get("type", ""),
        event.get("reason", ""),
        about.get("kind", ""),
        about.get("namespace", ""),
        about.get("name", ""),
        (event.get("message") or "")[:_REASON_LENGTH_MAX],
        (event.get("series") or {}).get("count") or event.get("count") or 1,
    ]


def event_time(event: Document) -> str:
    """Return when the event was last observed."""
    series = (event.get("series") or {}).get("lastObservedTime")
    created = event["metadata"].get("creationTimestamp", "")
    return str(series or event.get("lastTimestamp") or event.get("eventTime") or created)


def blocked_row(replica_set: Document) -> Row | None:
    """Return the row of a ReplicaSet that cannot create its Pods; None for others."""
    failure = condition(replica_set, "ReplicaFailure")
    if failure.get("status") != "True":
        return None
    metadata = replica_set["metadata"]
    kind, _, name = pod_owner(metadata).partition("/")
    message = _joined(failure.get("reason"), failure.get("message"))
    return [kind or "ReplicaSet", metadata["namespace"], name or metadata["name"], message[:_REASON_LENGTH_MAX]]
