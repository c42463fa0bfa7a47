"""Claims in group cycles: allocations that Pods of a group share, and claims that a group holds without running."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from dray.api.errors import APIError
from dray.api.pod_claims import pod_claims
from dray.api.pod_groups import group_claim_of, group_reservation
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import AllocationResult, ResourceClaim
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.client.objects import key_of
from dray.framework.cycle_state import CycleState
from dray.framework.pod_info import PodInfo
from dray.framework.status import Status, error, unresolvable, unschedulable
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.dynamic_resources import writes
from dray.scheduler.plugins.dynamic_resources.checks import IsClassic, NotReadyError, claims_of
from dray.scheduler.plugins.dynamic_resources.device_state import DeviceState
from dray.scheduler.plugins.dynamic_resources.pod_state import ClaimsOfPod, GroupShare, PodState
from dray.scheduler.plugins.dynamic_resources.writes import ClaimChangedError

DEALLOCATED: Final = "deallocation of ResourceClaim completed"
GROUP_DEALLOCATED: Final = "deallocation of PodGroup ResourceClaim completed"
GROUP_UNRESERVED: Final = "ResourceClaim unreserved for PodGroup"


class GroupClaims:
    """The part of DynamicResources that knows groups."""

    def __init__(self, handle: Handle, devices: DeviceState, is_classic: IsClassic) -> None:
        self._pod_groups = handle.pod_groups
        self._devices = devices
        self._is_classic = is_classic
        self._tracker = devices.tracker
        self._writer = devices.writer
        self._enabled = handle.features.enabled("DRAWorkloadResourceClaims")

    def shared_by(
        self, state: CycleState, pod: Pod, claims: Sequence[ResourceClaim]
    ) -> tuple[GroupShare, Sequence[ResourceClaim]]:
        """Return what a Pod shares with its group, and its claims.

        A claim for which an earlier Pod of the same cycle has chosen an allocation is allocated for this one, too.
        """
        chosen: dict[str, tuple[ResourceClaim, AllocationResult]] = {}
        reserved = state.group.reserved if state.group is not None else ()
        for claim in claims:
            allocation = self._tracker.in_flight_allocation(claim) if claim.status.allocation is None else None
            if allocation is not None and self._tracker.in_flight_pods.get(claim.metadata.uid or "") in reserved:
                chosen[claim.metadata.uid or ""] = (claim, allocation)
        group = self._pod_groups.group_of(pod) if self._enabled else None
        user, of_group = None, frozenset[str]()
        if group is not None:
            user = group_reservation(group)
            names = {entry.entry: entry.claim_name for entry in pod_claims(pod)}
            shared = {names.get(entry.name) for entry in pod.spec.resource_claims if group_claim_of(entry, group)}
            of_group = frozenset(item.metadata.uid or "" for item in claims if item.metadata.name in shared)
        seen = [_as_chosen(claim, chosen.get(claim.metadata.uid or "")) for claim in claims]
        return GroupShare(state.group is not None, user, of_group, chosen), seen

    async def free(self, group: PodGroup, members: Sequence[tuple[Pod, PodState]], scheduled: int) -> Status:
        """Deallocate claims of a group that cannot be scheduled: others may need their devices.

        Claims of single Pods go at once, since a group that holds some of its devices could keep another one from
        running that holds the rest. Of the claims of the group one goes, if no Pod of the group is scheduled.
        """
        try:
            if await self._free_claims_of_pods(members):
                return unresolvable(DEALLOCATED)
            constraints = group.spec.scheduling_constraints
            if scheduled or (constraints is not None and constraints.topology):
                return unschedulable()
            for claim, pods in self._group_claims(members):
                if writes.may_free(claim, group):
                    is_used = self._devices.is_used_by_scheduled_pod(claim, pods[0])
                    if not is_used and await self._writer.free_for(claim, *pods):
                        return unresolvable(GROUP_DEALLOCATED)
                elif writes.unreserved(claim, group.metadata.uid or "") is not None:
                    await self._writer.unreserve_group(claim, group)
                    return unresolvable(GROUP_UNRESERVED)
        except (APIError, ClaimChangedError) as failure:
            return error(str(failure))
        return unschedulable()

    def state_without_attempt(self, pod: Pod) -> PodState:
        """Return the state of a Pod that was not tried, because its group was rejected before."""
        try:
            claims = claims_of(pod, self._tracker.get, self._is_classic)
        except NotReadyError:
            claims = []
        group, seen = self.shared_by(CycleState(PodInfo(pod)), pod, claims)
        return PodState(ClaimsOfPod.of(pod, seen), group)

    async def _free_claims_of_pods(self, members: Sequence[tuple[Pod, PodState]]) -> bool:
        freed = False
        for pod, own in members:
            for claim in own.claims.all:
                current = self._tracker.get(key_of(claim))
                if current is None or current.metadata.uid != claim.metadata.uid or not writes.may_free(current, pod):
                    continue
                if not self._devices.is_used_by_scheduled_pod(current, pod):
                    freed = await self._writer.free_for(current, pod) or freed
        return freed

    def _group_claims(self, members: Sequence[tuple[Pod, PodState]]) -> Iterator[tuple[ResourceClaim, list[Pod]]]:
        """Yield the allocated claims of the group with the Pods that wait for them, first those that exclude nodes."""
        users: dict[str, list[Pod]] = {}
        found: dict[str, ResourceClaim] = {}
        unavailable: set[str] = set()
        for pod, own in members:
            for position, claim in enumerate(own.claims.all):
                uid = claim.metadata.uid or ""
                current = self._tracker.get(key_of(claim))
                if uid in own.group.claims and current is not None and current.status.allocation is not None:
                    found[uid] = current
                    users.setdefault(uid, []).append(pod)
                    if position in own.results.unavailable:
                        unavailable.add(uid)
        for uid in sorted(found, key=lambda uid: uid not in unavailable):
            yield found[uid], users[uid]


def _as_chosen(claim: ResourceClaim, chosen: tuple[ResourceClaim, AllocationResult] | None) -> ResourceClaim:
    if chosen is None:
        return claim
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, allocation=chosen[1]))
