"""Which allocated devices have NoExecute taints that their claims do not tolerate, and when Pods are evicted. Pure.

Claims are indexed by device, pool and driver, so that an event costs only what it affects: a slice its own devices, a
rule the claims that its selector can match.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from dray.allocator.taints import TaintRule, tolerates
from dray.api.devices import newest_generation, results_of
from dray.api.document import NamespacedName
from dray.api.pod_claims import extended_resource_claim_name, is_for_pod, is_pod_done, is_reserved_for, pod_claims
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import (
    DeviceRequestAllocationResult,
    DeviceTaint,
    DeviceToleration,
    ResourceClaim,
    ResourceSlice,
)

NO_EXECUTE: Final = "NoExecute"
EVENT_REASON: Final = "DeviceTaintManagerEviction"
CONDITION_REASON: Final = "DeletionByDeviceTaintManager"
CONDITION_MESSAGE: Final = "Device Taint manager: deleting due to NoExecute taint"


class DeviceId(NamedTuple):
    """A device of the cluster."""

    driver: str
    pool: str
    device: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A DeviceTaintRule that evicts."""

    selector: TaintRule
    uid: str
    time_added: datetime | None


@dataclass(frozen=True, slots=True)
class Eviction:
    """When Pods are evicted and because of which rules; taints of slices belong to no rule."""

    when: datetime
    # Uids, sorted.
    rules: tuple[str, ...]
    # How long the taint is tolerated: nobody waits longer than that, whatever the clocks say.
    tolerated_seconds: float = field(default=0.0, compare=False)

    def wait_seconds(self, now: datetime) -> float:
        """Return how long to wait from now on."""
        return min(max((self.when - now).total_seconds(), 0.0), self.tolerated_seconds)


def eviction_time(taint: DeviceTaint, time_added: datetime, tolerations: Iterable[DeviceToleration]) -> datetime | None:
    """Return when the taint evicts the consumers of a claim with these tolerations; None for never."""
    matching = [toleration for toleration in tolerations if tolerates(toleration, taint)]
    if any(toleration.toleration_seconds is None for toleration in matching):
        return None
    seconds = min((max(item.toleration_seconds or 0, 0) for item in matching), default=0)
    try:
        return time_added + timedelta(seconds=seconds)
    except OverflowError:
        # Beyond the range of timestamps.
        return None


class _Slice(NamedTuple):
    """The relevant part of a slice."""

    generation: int
    devices: tuple[str, ...]
    # Device -> its NoExecute taints; devices without any are left out.
    tainted: dict[str, tuple[DeviceTaint, ...]]


class Pools:
    """NoExecute taints of published devices, from the newest generation of each pool."""

    def __init__(self) -> None:
        # Pool -> name of a slice -> the slice.
        self._slices: dict[tuple[str, str], dict[str, _Slice]] = {}
        # Pool -> device -> its NoExecute taints; pools without any are left out.
        self.tainted: dict[tuple[str, str], dict[str, tuple[DeviceTaint, ...]]] = {}

    def change(self, old: ResourceSlice | None, new: ResourceSlice | None) -> list[DeviceId]:
        """Update a slice; return the devices whose taints changed."""
        changed: list[DeviceId] = []
        if old is not None and (new is None or _pool_of(old) != _pool_of(new)):
            changed += self._put(_pool_of(old), old.metadata.name or "", None)
        if new is not None:
            changed += self._put(_pool_of(new), new.metadata.name or "", _read(new))
        return changed

    def taints(self, device: DeviceId) -> tuple[DeviceTaint, ...]:
        """Return the NoExecute taints of one device."""
        return self.tainted.get((device.driver, device.pool), {}).get(device.device, ())

    def count_selected(self, rule: TaintRule) -> int:
        """Return how many published devices a rule selects."""
        return sum(
            rule.selects(driver, pool, device)
            for (driver, pool), slices in self._slices.items()
            if rule.driver in (None, driver) and rule.pool in (None, pool)
            for item in _newest(slices)
            for device in item.devices
        )

    def _put(self, pool: tuple[str, str], name: str, new: _Slice | None) -> list[DeviceId]:
        slices = self._slices.setdefault(pool, {})
        if new is None:
            slices.pop(name, None)
        else:
            slices[name] = new
        before = self.tainted.pop(pool, {})
        after = {device: taints for item in _newest(slices) for device, taints in item.tainted.items()}
        if after:
            self.tainted[pool] = after
        if not slices:
            del self._slices[pool]
        names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        return [DeviceId(*pool, name) for name in names]


class Claims:
    """Allocated claims, indexed by their devices."""

    def __init__(self) -> None:
        self._claims: dict[NamespacedName, ResourceClaim] = {}
        # (driver, pool, device), (driver, pool) and (driver,) -> keys of claims, in insertion order.
        self._holders: dict[tuple[str, ...], dict[NamespacedName, None]] = {}

    def put(self, key: NamespacedName, claim: ResourceClaim | None) -> None:
        """Update a claim; None removes it."""
        old = self._claims.pop(key, None)
        if old is not None:
            for index_key in _index_keys(old):
                holders = self._holders.get(index_key, {})
                holders.pop(key, None)
                if not holders:
                    self._holders.pop(index_key, None)
        if claim is not None and claim.status.allocation is not None:
            self._claims[key] = claim
            for index_key in _index_keys(claim):
                self._holders.setdefault(index_key, {})[key] = None

    def get(self, key: NamespacedName) -> ResourceClaim | None:
        """Return one allocated claim."""
        return self._claims.get(key)

    def holding(self, device: DeviceId) -> tuple[NamespacedName, ...]:
        """Return the claims that a device is allocated to."""
        return tuple(self._holders.get(device, ()))

    def selected(self, rule: TaintRule) -> tuple[NamespacedName, ...]:
        """Return the claims with a device that the rule selects."""
        parts = (rule.driver, rule.pool, rule.device)
        known = next((index for index, part in enumerate(parts) if part is None), len(parts))
        candidates = self._holders.get(tuple(part or "" for part in parts[:known]), {}) if known else self._claims
        return tuple(
            key
            for key in candidates
            if any(
                rule.selects(item.driver, item.pool, item.device)
                for item in results_of(self._claims[key].status.allocation)
            )
        )


class DeviceTaints:
    """Pools, claims and rules: everything that decides about evictions."""

    def __init__(self) -> None:
        self.pools = Pools()
        self.claims = Claims()
        # Rules that evict, by name.
        self.rules: dict[str, Rule] = {}

    def claim_eviction(self, claim: ResourceClaim, simulated: Rule | None = None) -> Eviction | None:
        """Return when the consumers of a claim are evicted; with a simulated rule only that rule counts."""
        if simulated is None and not self.rules and not self.pools.tainted:
            return None
        first: tuple[datetime, float] | None = None
        rules: set[str] = set()
        for result in results_of(claim.status.allocation):
            for taint, time_added, uid in self._taints(result, simulated):
                due = eviction_time(taint, time_added, result.tolerations)
                if due is None:
                    continue
                tolerated = (due - time_added).total_seconds()
                first = (due, tolerated) if first is None else min(first, (due, tolerated))
                if uid:
                    rules.add(uid)
        return Eviction(first[0], tuple(sorted(rules)), first[1]) if first is not None else None

    def pod_eviction(self, pod: Pod, simulated: Rule | None = None) -> Eviction | None:
        """Return when the Pod is evicted: with the first of its claims."""
        # Unscheduled and finished Pods use no devices.
        if not pod.spec.node_name or is_pod_done(pod):
            return None
        evictions = [
            eviction
            for claim in self._claims_of(pod)
            if (eviction := self.claim_eviction(claim, simulated)) is not None
        ]
        if not evictions:
            return None
        rules = sorted({rule for eviction in evictions for rule in eviction.rules})
        first = min(evictions, key=lambda eviction: (eviction.when, eviction.tolerated_seconds))
        return replace(first, rules=tuple(rules))

    def _claims_of(self, pod: Pod) -> Iterator[ResourceClaim]:
        namespace = pod.metadata.namespace or ""
        for entry in pod_claims(pod):
            claim = self.claims.get(NamespacedName(namespace, entry.claim_name or ""))
            if claim is None or (entry.generated and not is_for_pod(claim, pod)):
                continue
            if is_reserved_for(claim, pod):
                yield claim
        special = self.claims.get(NamespacedName(namespace, extended_resource_claim_name(pod)))
        if special is not None and is_for_pod(special, pod) and is_reserved_for(special, pod):
            yield special

    def _taints(
        self, result: DeviceRequestAllocationResult, simulated: Rule | None
    ) -> Iterator[tuple[DeviceTaint, datetime, str]]:
        """Yield the taints of an allocated device with the time each was added and the uid of its rule."""
        if simulated is None:
            for taint in self.pools.taints(DeviceId(result.driver, result.pool, result.device)):
                if taint.time_added is not None:
                    yield taint, taint.time_added, ""
        for rule in self.rules.values() if simulated is None else (simulated,):
            if rule.time_added is not None and rule.selector.selects(result.driver, result.pool, result.device):
                yield rule.selector.taint, rule.time_added, rule.uid


def was_or_is_allocated(old: ResourceClaim | None, new: ResourceClaim | None) -> bool:
    """Return whether a claim is allocated before or after a change."""
    return (old is not None and old.status.allocation is not None) or (
        new is not None and new.status.allocation is not None
    )


def _index_keys(claim: ResourceClaim) -> set[tuple[str, ...]]:
    found: set[tuple[str, ...]] = set()
    for item in results_of(claim.status.allocation):
        found |= {DeviceId(item.driver, item.pool, item.device), (item.driver, item.pool), (item.driver,)}
    return found


def _pool_of(item: ResourceSlice) -> tuple[str, str]:
    return item.spec.driver, item.spec.pool.name


def _read(item: ResourceSlice) -> _Slice:
    tainted = {
        device.name: taints
        for device in item.spec.devices
        if device.taints and (taints := tuple(taint for taint in device.taints if taint.effect == NO_EXECUTE))
    }
    return _Slice(item.spec.pool.generation, tuple(device.name for device in item.spec.devices), tainted)


def _newest(slices: dict[str, _Slice]) -> list[_Slice]:
    return newest_generation(slices.values(), lambda item: item.generation)
