"""Preemption and PostFilter of DynamicResources: devices that others have to give up for a Pod or a group."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from dray.api.errors import APIError
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import PlacedMember
from dray.framework.pod_info import PodInfo
from dray.framework.status import SUCCESS, Status, error, unresolvable, unschedulable
from dray.scheduler.plugins.dynamic_resources import writes
from dray.scheduler.plugins.dynamic_resources.device_filter import NAME
from dray.scheduler.plugins.dynamic_resources.device_state import DeviceState
from dray.scheduler.plugins.dynamic_resources.filter_step import FilterStep
from dray.scheduler.plugins.dynamic_resources.group_claims import DEALLOCATED, GroupClaims
from dray.scheduler.plugins.dynamic_resources.hidden_claims import HiddenClaims
from dray.scheduler.plugins.dynamic_resources.pod_state import PodState
from dray.scheduler.plugins.dynamic_resources.preemption import SETTLING, DevicePreemption

DELETED: Final = "deletion of ResourceClaim completed"


class PreemptionStep:
    """Frees unused claims, and changes copied states for the dry runs; None as `devices` means no dry runs."""

    def __init__(
        self, devices: DeviceState, filter_step: FilterStep, groups: GroupClaims, preemption: DevicePreemption | None
    ) -> None:
        self._devices = devices
        self._filter_step = filter_step
        self._groups = groups
        self._writer = devices.writer
        self.preemption = preemption
        self._hidden: HiddenClaims | None = None

    # --- Dry runs and nominations. ---

    def add_pods(self, state: CycleState, others: Sequence[PodInfo], node: NodeInfo) -> Status:
        """Put back the claims of removed Pods; hold the devices of nominated ones."""
        if self.preemption is not None:
            self.preemption.add_pods(state[NAME].dry_run, others, node)
        return SUCCESS

    def remove_pods(self, state: CycleState, others: Sequence[PodInfo], node: NodeInfo) -> Status:
        """Release the claims of Pods that nobody else uses."""
        if self.preemption is not None:
            self.preemption.remove_pods(state[NAME].dry_run, state.pod_info.priority, others, node)
        return SUCCESS

    def dependencies(self, state: CycleState, removed: Sequence[PodInfo]) -> Sequence[object] | None:
        """Return the claims of the removed Pods; None if other Pods use them, too."""
        return () if self.preemption is None else self.preemption.dependencies(state[NAME].dry_run, removed)

    def check_preemption(self, node: NodeInfo) -> Status:
        """Let a preemptor wait until the claims of its victims are deallocated."""
        if self.preemption is not None and self.preemption.is_settling(node):
            return unschedulable(SETTLING)
        return SUCCESS

    def pod_nominated(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        """Keep the devices that the Pod will get on the node."""
        if self.preemption is None:
            return SUCCESS
        own: PodState = state[NAME]
        # The best alternatives that are possible without all the victims.
        own.dry_run.last_found = None
        status = self._filter_step.filter(own, state.pod_info, node)
        own.dry_run.first_pass.pop(node.name, None)
        if status is SUCCESS:
            self.preemption.record(own, pod, node.node)
        return status

    # --- Dry runs of groups. ---

    def begin_group_dry_run(self, members: Sequence[PodInfo]) -> None:
        """Prepare for Pods to be hidden."""
        if self.preemption is not None:
            self.preemption.hides_pods = True
            self._hidden = HiddenClaims(self.preemption, self._devices.allocations, self._devices.nominees, members)

    def hide_pods(self, pods: Sequence[PodInfo], node: NodeInfo) -> None:
        """Count the claims of Pods on a node that nobody else uses as free."""
        if self._hidden is not None:
            self._hidden.hide(pods, node)

    def show_pods(self, pods: Sequence[PodInfo]) -> None:
        """Count the claims of Pods as allocated again."""
        if self._hidden is not None:
            self._hidden.show(pods)

    def member_nominated(self, state: CycleState, pod: Pod, node_name: str) -> None:
        """Keep the devices that are reserved for a member in the dry run."""
        if self._hidden is not None:
            self._hidden.keep(state.get(NAME), pod, node_name)

    def end_group_dry_run(self) -> None:
        """Count all claims as allocated again."""
        if self.preemption is not None and self._hidden is not None:
            self._hidden.end()
            self._hidden = None
            self.preemption.hides_pods = False

    # --- PostFilter. ---

    async def free_claim(self, own: PodState, pod: Pod) -> Status:
        """Deallocate one unused claim that excluded nodes; its update requeues the Pod.

        Without such a claim there is no reason to report.
        """
        if own.leftovers:
            return await self._delete_leftovers(own.leftovers, pod)
        # Seeded, so that the choice is reproducible; random, so that it is not always the same claim.
        order = random.Random(f"{pod.metadata.uid} {pod.metadata.resource_version}")  # noqa: S311 - not for security
        candidates = [own.claims.all[position] for position in sorted(own.results.unavailable)]
        order.shuffle(candidates)
        for claim in candidates:
            if not writes.may_free(claim, pod) or self._devices.is_used_by_scheduled_pod(claim, pod):
                continue
            try:
                if not await self._writer.free_for(claim, pod):
                    continue
            except APIError as failure:
                return error(str(failure))
            # What was freed may suffice, so nothing is preempted in this attempt.
            return unresolvable(DEALLOCATED)
        return unschedulable()

    async def free_claims_of_group(self, group: PodGroup, members: Sequence[PlacedMember], scheduled: int) -> Status:
        """Deallocate claims that the group holds without running."""
        states: list[tuple[Pod, PodState]] = []
        for member in members:
            pod = member.state.pod_info.pod
            own: PodState | None = member.state.get(NAME)
            if own is not None and own.leftovers:
                return await self._delete_leftovers(own.leftovers, pod)
            if pod.spec.resource_claims:
                states.append((pod, member.state.get(NAME) or self._groups.state_without_attempt(pod)))
        return await self._groups.free(group, states, scheduled)

    async def _delete_leftovers(self, claims: Sequence[ResourceClaim], pod: Pod) -> Status:
        try:
            removed = [await self._devices.extended_claims.remove(claim, pod) for claim in claims]
        except APIError as failure:
            return error(str(failure))
        except writes.ClaimChangedError as why:
            return unresolvable(str(why))
        return unresolvable(DELETED) if all(removed) else unschedulable()
