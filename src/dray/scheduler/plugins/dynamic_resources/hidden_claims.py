"""Claims of Pods that are hidden in the dry run of a group: their devices count as free. Pure.

The group cycle runs on the real allocations, so claims are left out of those, and not of a copy. The rules are those of
the dry run for a Pod: a claim is released when every user is hidden; never one of the group itself, nor one with
devices that other nodes can use, nor one that is reserved for a group, which outlives its Pods.
"""

from __future__ import annotations

from collections.abc import Sequence

from dray.allocator import Allocations
from dray.api.types.core_v1 import Pod
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.scheduler.plugins.dynamic_resources.nominated_devices import NominatedDevices, Nominees
from dray.scheduler.plugins.dynamic_resources.pod_state import DryRun, PodState
from dray.scheduler.plugins.dynamic_resources.preemption import DevicePreemption


class HiddenClaims:
    """The claims that are released in one dry run."""

    def __init__(
        self,
        preemption: DevicePreemption,
        allocations: Allocations,
        nominees: Nominees,
        members: Sequence[PodInfo],
    ) -> None:
        self._preemption = preemption
        self._allocations = allocations
        self._nominees = nominees
        self._priority = members[0].priority
        claims = [claim for member in members for claim in preemption.claims_of(member.pod)]
        # The hidden Pods and the released claims, as in the dry run for a Pod.
        self._dry_run = DryRun(frozenset(claim.metadata.uid for claim in claims))
        self._node_of: dict[str, str] = {}

    def hide(self, pods: Sequence[PodInfo], node: NodeInfo) -> None:
        """Release the claims of Pods on a node that nobody else uses."""
        for pod in pods:
            self._dry_run.removed[pod.uid] = pod.key
        for pod in pods:
            for claim in self._preemption.released_with(self._dry_run, self._priority, pod, node):
                uid = claim.metadata.uid or ""
                self._dry_run.released[uid] = claim
                self._node_of[uid] = node.name
                self._allocations.hide(uid)

    def show(self, pods: Sequence[PodInfo]) -> None:
        """Undo `hide` for some Pods."""
        for pod in pods:
            self._dry_run.removed.pop(pod.uid, None)
            for claim in self._preemption.claims_of(pod.pod):
                uid = claim.metadata.uid or ""
                if self._dry_run.released.pop(uid, None) is not None:
                    self._allocations.show(uid)

    def end(self) -> None:
        """Undo `hide` for all Pods."""
        for uid in self._dry_run.released:
            self._allocations.show(uid)
        self._dry_run.released.clear()
        self._dry_run.removed.clear()

    def keep(self, own: PodState | None, pod: Pod, node_name: str) -> None:
        """Keep the devices that are reserved for a member, and track the claims that have to be deallocated before."""
        found = () if own is None else own.results.allocations.get(node_name, ())
        claims = () if own is None else own.binding.chosen.claims[: own.binding.chosen.count]
        devices = NominatedDevices(node_name, tuple(zip(claims, found, strict=False)))
        users = dict(self._dry_run.removed)
        released = {uid: users for uid in self._dry_run.released if self._node_of[uid] == node_name}
        self._nominees.record(pod.metadata.uid or "", devices, released)
