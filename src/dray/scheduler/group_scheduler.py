"""One attempt to schedule a PodGroup: the group cycle, what follows for each Pod, and the group's condition."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from dray.api.document import NamespacedName
from dray.api.pod_groups import SCHEDULED, SCHEDULER_ERROR, UNSCHEDULABLE, group_key_of, min_count
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.framework.pod_info import PodInfo
from dray.framework.snapshot import Snapshot
from dray.framework.status import Status
from dray.lib.clock import Clock
from dray.scheduler import metrics as results
from dray.scheduler.binder import Attempt, Binder
from dray.scheduler.cache import Cache
from dray.scheduler.diagnosis import REASON_ERROR, REASON_UNSCHEDULABLE, Failure
from dray.scheduler.gang_binding import GangBinding
from dray.scheduler.group_cycle import UNSCHEDULABLE as GROUP_UNSCHEDULABLE
from dray.scheduler.group_cycle import GroupCycle, GroupOutcome, Member, check_members
from dray.scheduler.group_dry_run import GroupDryRun
from dray.scheduler.group_metrics import GroupMetrics
from dray.scheduler.group_queue import GroupQueue
from dray.scheduler.group_reporter import GroupReporter
from dray.scheduler.nominations import Nominations
from dray.scheduler.pod_groups import PodGroups
from dray.scheduler.post_filter import run_group_post_filter
from dray.scheduler.profile import Profile
from dray.scheduler.queued_group import QueuedGroup
from dray.scheduler.queued_pod import QueuedPod


@dataclass(frozen=True, slots=True)
class PodSteps:
    """What the scheduler does for each Pod after the group cycle."""

    # Start the binding cycle of an attempt.
    start_binding: Callable[[Attempt], None]
    # Undo an attempt that was not permitted, and requeue its Pod.
    undo: Callable[[Attempt, Status], Awaitable[None]]
    # Report that a Pod has no node: (Pod, profile, start of the attempt, failure).
    report: Callable[[QueuedPod, Profile, float, Failure], None]
    # Return whether a Pod still exists and has no node.
    is_pending: Callable[[QueuedPod], bool]
    # Set or clear the nomination of a Pod in memory; and end that of a Pod, by uid, in memory and in its status.
    nominate: Callable[[PodInfo, str], None]
    end_nomination: Callable[[str], None]


class GroupScheduler:
    """Schedules groups; one per scheduler."""

    def __init__(  # noqa: PLR0913 - the parts of the scheduler that it works with
        self,
        clock: Clock,
        *,
        queue: GroupQueue,
        cache: Cache,
        cycle: GroupCycle,
        binder: Binder,
        nominations: Nominations,
        pod_groups: PodGroups,
        profiles: Mapping[str, Profile],
        snapshot: Snapshot,
        metrics: GroupMetrics,
        reporter: GroupReporter,
        steps: PodSteps,
    ) -> None:
        self._clock = clock
        self._queue = queue
        self._cache = cache
        self._cycle = cycle
        self._binder = binder
        self._nominations = nominations
        self._pod_groups = pod_groups
        self._profiles = profiles
        self._snapshot = snapshot
        self._metrics = metrics
        self._reporter = reporter
        self._steps = steps
        # Whether a group cycle is being undone: what it releases was never visible to other Pods.
        self.is_undoing = False
        # The uids of all Pods of a group that were nominated together, by the uid of each: nominations end as a whole.
        self._nominated: dict[str, tuple[str, ...]] = {}
        nominations.on_end(self._nomination_ended)
        # The bindings of gangs that are not decided yet.
        self._gangs: dict[NamespacedName, GangBinding] = {}

    def bound_pods_changed(self, key: NamespacedName) -> None:
        """Look again how many Pods a group still needs, after a change of the PodGroup or of its bound Pods.

        The condition of a group that has enough is written here, too: a restart may have prevented it before.
        """
        group = self._pod_groups.get(key)
        if group is None:
            return
        needed = self._needed(key, group)
        if needed <= 0:
            self._reporter.set_condition(group, SCHEDULED, "")
        gang = self._gangs.get(key)
        if gang is not None:
            gang.need(needed)

    def _needed(self, key: NamespacedName, group: PodGroup) -> int:
        """Return how many more Pods of a group have to be bound."""
        return min_count(group) - self._pod_groups.bound_count(key)

    def _still_needed(self, key: NamespacedName) -> int:
        group = self._pod_groups.get(key)
        return 0 if group is None else self._needed(key, group)

    async def attempt(self, queued: QueuedGroup, profile: Profile) -> None:
        """Run the group cycle; the Pods are bound beside the next one."""
        started = self._clock.monotonic()
        group = self._pod_groups.get(queued.key)
        members = [item for item in queued.in_order() if self._is_schedulable(item)]
        if group is None or not members:
            self._queue.finish_group(queued, members, started, placed=False, is_error=True)
            return
        scheduled = self._pod_groups.scheduled(queued.key)
        problem = check_members(group, [*(item.info for item in members), *scheduled.values()])
        if problem:
            self._fail_all(queued, group, profile, members, started, problem)
            return
        outcome = self._run_cycle(profile, group, queued.key, members)
        self._metrics.searched(self._clock.monotonic() - started)
        if outcome.status.is_success:
            await self._bind(queued, group, profile, outcome, started)
        elif outcome.status.is_rejected:
            await self._reject(queued, group, profile, outcome, started)
        else:
            self._fail_all(queued, group, profile, members, started, outcome.status.message)

    def _is_schedulable(self, queued: QueuedPod) -> bool:
        if queued.pod.metadata.deletion_timestamp is not None or self._cache.node_of(queued.uid) is not None:
            return False
        return self._steps.is_pending(queued)

    def _run_cycle(
        self, profile: Profile, group: PodGroup, key: NamespacedName, members: Sequence[QueuedPod]
    ) -> GroupOutcome:
        self.is_undoing = True
        try:
            return self._cycle.run(profile, group, key, members)
        finally:
            self.is_undoing = False

    @contextmanager
    def dry_run(self, group: PodGroup, members: Sequence[PodInfo]) -> Iterator[GroupDryRun]:
        """Begin the dry run of a group; its nominations end."""
        self._forget_nominated(member.uid for member in members)
        for member in members:
            if self._nominations.node_of(member.uid):
                self._steps.nominate(member, "")
        profile = self._profiles[members[0].pod.spec.scheduler_name or ""]
        self.is_undoing = True
        try:
            with GroupDryRun(self._cycle, self._cache, self._snapshot, profile, group, members) as dry_run:
                yield dry_run
        finally:
            self.is_undoing = False

    # --- Nominations. ---

    def _nomination_ended(self, uid: str, _node_name: str, placed: bool) -> None:  # noqa: FBT001 - a callback
        """End the nominations of the other Pods, too, unless the Pod is placed: without it they hold room in vain."""
        together = self._nominated.pop(uid, ())
        if placed:
            return
        self._forget_nominated(together)
        for other in together:
            if other != uid:
                self._steps.end_nomination(other)

    def end_nominations_without_enough_pods(self) -> None:
        """End the nominations of Pods whose group lacks others: it may never be tried, and they hold devices in vain.

        Such a nomination is left in the status of a Pod when the scheduler was stopped, or could not remove it.
        """
        for info in self._nominations.all():
            key = group_key_of(info.pod)
            if key is not None and self._lacks_pods(key):
                self._steps.end_nomination(info.uid)

    def _lacks_pods(self, key: NamespacedName) -> bool:
        group = self._pod_groups.get(key)
        return group is None or self._pod_groups.known_count(key) < min_count(group)

    def _forget_nominated(self, uids: Iterable[str]) -> None:
        """Let the nominations of Pods end one by one."""
        for uid in uids:
            self._nominated.pop(uid, None)

    # --- Success. ---

    async def _bind(
        self, queued: QueuedGroup, group: PodGroup, profile: Profile, outcome: GroupOutcome, started: float
    ) -> None:
        placed = outcome.placed
        gang = self._gang(queued.key, group)
        gang.on_decision(lambda is_bound: self._reporter.set_condition(group, SCHEDULED, "") if is_bound else None)
        attempts = [self._attempt_of(member, profile, gang, started) for member in placed]
        for attempt in attempts:
            self._nominations.remove(attempt.queued.uid)
            gang.expect(attempt.queued.uid)
        rejected: list[tuple[Attempt, Status]] = []
        for attempt in attempts:
            status = self._binder.permit(attempt)
            if status.is_success:
                self._steps.start_binding(attempt)
            else:
                rejected.append((attempt, status))
        left = [member for member in outcome.members if member.assumed is None]
        for member in left:
            self._steps.report(member.queued, profile, started, _own_failure(member))
        for attempt, status in rejected:
            gang.ended(attempt.queued.uid)
            await self._steps.undo(attempt, status)
        now = self._clock.monotonic()
        self._queue.finish_group(queued, [member.queued for member in left], now, placed=True)
        self._metrics.attempted(results.SCHEDULED, profile.scheduler_name, now - started)

    def _attempt_of(self, member: Member, profile: Profile, gang: GangBinding, started: float) -> Attempt:
        assert member.assumed is not None
        return Attempt(member.queued, profile, member.state, member.assumed.pod, member.node_name, started, gang=gang)

    def _gang(self, key: NamespacedName, group: PodGroup) -> GangBinding:
        """Return what the Pods wait for between PreBind and Bind; one does not if enough others are bound."""
        needed = self._needed(key, group)
        gang = self._gangs.get(key)
        if gang is None:
            gang = GangBinding(needed, lambda: self._still_needed(key))
            if needed <= 0:
                return gang
            self._gangs[key] = gang
            gang.on_decision(lambda is_bound: self._gang_decided(key, gang, is_bound=is_bound))
        return gang

    def _gang_decided(self, key: NamespacedName, gang: GangBinding, *, is_bound: bool) -> None:
        del self._gangs[key]
        if is_bound:
            # Pods that come while these are being bound need not wait for others.
            self._pod_groups.gang_bound(key, gang.ready_uids)

    # --- Failure. ---

    async def _reject(
        self, queued: QueuedGroup, group: PodGroup, profile: Profile, outcome: GroupOutcome, started: float
    ) -> None:
        reasons = [GROUP_UNSCHEDULABLE, *outcome.status.reasons]
        post_filter = await run_group_post_filter(profile, group, outcome)
        if post_filter.message:
            reasons.append(post_filter.message)
        text = ", ".join(reasons)
        nominated: Mapping[str, str] = post_filter.nominated or {}
        self._forget_nominated(member.queued.uid for member in outcome.members)
        for member in outcome.members:
            node_name = nominated.get(member.queued.uid, "")
            if member.diagnosis is None:
                failure = Failure(REASON_UNSCHEDULABLE, text, nominated=node_name)
            else:
                failure = _own_failure(member, node_name)
            self._steps.report(member.queued, profile, started, failure)
        self._nominated.update(dict.fromkeys(nominated, tuple(nominated)))
        now = self._clock.monotonic()
        members = [member.queued for member in outcome.members]
        self._queue.finish_group(queued, members, now, placed=False, is_error=post_filter.is_error)
        self._metrics.attempted(results.UNSCHEDULABLE, profile.scheduler_name, now - started)
        self._reporter.set_condition(group, UNSCHEDULABLE, text)

    def _fail_all(
        self,
        queued: QueuedGroup,
        group: PodGroup,
        profile: Profile,
        members: Sequence[QueuedPod],
        started: float,
        message: str,
    ) -> None:
        self._forget_nominated(item.uid for item in members)
        for item in members:
            self._steps.report(item, profile, started, Failure(REASON_ERROR, message, nominated=""))
        now = self._clock.monotonic()
        self._queue.finish_group(queued, members, now, placed=False, is_error=True)
        self._metrics.attempted(results.ERROR, profile.scheduler_name, now - started)
        self._reporter.set_condition(group, SCHEDULER_ERROR, message)


def _own_failure(member: Member, nominated: str = "") -> Failure:
    assert member.diagnosis is not None
    return Failure(REASON_UNSCHEDULABLE, member.diagnosis.message(), nominated=nominated)
