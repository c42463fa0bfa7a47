"""The devices kept for nominated Pods, and the claims of preempted Pods until they are deallocated. Pure.

A record lives as long as the nomination of its Pod. The claims of victims are tracked until their allocations are
gone, even if the preemptor is: until then their devices are neither free nor in use by anybody who needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from dray.allocator import Allocations
from dray.api.document import NamespacedName
from dray.api.types.resource_v1 import AllocationResult, ResourceClaim

# Returns whether a Pod (key, uid) exists and is not being deleted.
IsAlive = Callable[[NamespacedName, str], bool]

# Freed claims whose node is remembered for queueing hints.
_FREED_MAX: Final = 1024


class NominatedDevices(msgspec.Struct, frozen=True):
    """What a nominated Pod will get on its node; by uid of the claim, or its name if it does not exist yet."""

    node_name: str
    allocations: tuple[tuple[ResourceClaim, AllocationResult], ...]


class Nominees:
    """The records of all nominated Pods, and the tracked claims of all nodes."""

    def __init__(self, allocations: Allocations, is_alive: IsAlive) -> None:
        self._allocations = allocations
        self._is_alive = is_alive
        # By uid of the Pod.
        self._records: dict[str, NominatedDevices] = {}
        # Records of the node before, while a Pod is nominated to another one.
        self._superseded: dict[str, NominatedDevices] = {}
        # Node -> uid of the claim -> the Pods that were preempted, by uid.
        self._tracked: dict[str, dict[str, Mapping[str, NamespacedName]]] = {}
        self._node_of_claim: dict[str, str] = {}
        # Claims that were tracked -> node, the latest last.
        self._freed: dict[str, str] = {}
        # Grows with each change.
        self.version = 0

    def record(
        self, pod_uid: str, devices: NominatedDevices, released: Mapping[str, Mapping[str, NamespacedName]]
    ) -> None:
        """Keep devices for a Pod, and track the claims, each with its former users, that have to be deallocated."""
        self.version += 1
        before = self._records.get(pod_uid)
        if before is not None and before.node_name != devices.node_name:
            # The Pod is about to be nominated to another node, so the old nomination ends.
            self._superseded[pod_uid] = before
        self._records[pod_uid] = devices
        # A claim that was deallocated and allocated again elsewhere may have been observed only afterwards.
        self._forget([uid for uid in released if self._node_of_claim.get(uid, devices.node_name) != devices.node_name])
        for uid, users in released.items():
            self._tracked.setdefault(devices.node_name, {})[uid] = users
            self._node_of_claim[uid] = devices.node_name

    def get(self, pod_uid: str) -> NominatedDevices | None:
        """Return the record of a Pod."""
        return self._records.get(pod_uid)

    def end(self, pod_uid: str, node_name: str) -> NominatedDevices | None:
        """Remove the record of a Pod that is not nominated to the node any more."""
        self.version += 1
        for records in (self._superseded, self._records):
            record = records.get(pod_uid)
            if record is not None and record.node_name == node_name:
                del records[pod_uid]
                self._stop_tracking_alive(node_name)
                return record
        return None

    def _stop_tracking_alive(self, node_name: str) -> None:
        """Forget the claims of Pods that are not evicted after all: they are nobody's but theirs."""
        tracked = self._tracked.get(node_name, {})
        self._forget([uid for uid, users in tracked.items() if self._any_alive(users)])

    def tracked_on(self, node_name: str) -> tuple[str, ...]:
        """Return the tracked claims of a node that are still allocated."""
        tracked = self._tracked.get(node_name)
        if not tracked:
            return ()
        left = tuple(uid for uid in tracked if self._allocations.uses_of(uid) is not None)
        if len(left) < len(tracked):
            hidden = self._allocations.is_hidden
            self._forget([uid for uid in tracked if uid not in left and not hidden(uid)])
        return left

    def settling_on(self, node_name: str) -> tuple[str, ...]:
        """Return those of them whose Pods are gone or going, so that they will be deallocated."""
        left = self.tracked_on(node_name)
        return tuple(uid for uid in left if not self._any_alive(self._tracked[node_name][uid])) if left else ()

    def _any_alive(self, users: Mapping[str, NamespacedName]) -> bool:
        return any(self._is_alive(key, uid) for uid, key in users.items())

    def claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        """Stop tracking a claim that is not allocated any more, or has other users."""
        if not self._node_of_claim:
            return
        claim = new if new is not None else old
        uid = "" if claim is None else claim.metadata.uid or ""
        node_name = self._node_of_claim.get(uid)
        if node_name is None:
            return
        users = self._tracked[node_name][uid]
        if (
            new is None
            or new.status.allocation is None
            or any(consumer.uid not in users for consumer in new.status.reserved_for)
        ):
            self._forget((uid,))

    def node_of_freed(self, claim: ResourceClaim) -> str:
        """Return the node on which a claim, just deallocated, was tracked; empty if it was not."""
        return self._freed.get(claim.metadata.uid or "", "")

    def _forget(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self.version += 1
            node_name = self._node_of_claim.pop(uid)
            tracked = self._tracked[node_name]
            del tracked[uid]
            if not tracked:
                del self._tracked[node_name]
            self._freed[uid] = node_name
            if len(self._freed) > _FREED_MAX:
                del self._freed[next(iter(self._freed))]
