"""Dry runs of the group cycle on a cluster without some of its Pods.

The Pods are hidden: taken out of the cache and of what plugins know besides, so that the group cycle itself runs, with
everything that it looks at. Nothing else happens meanwhile, and the end of the dry run leaves everything as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType

from dray.api.document import NamespacedName
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.framework.pod_info import PodInfo
from dray.framework.snapshot import Snapshot
from dray.scheduler.cache import Cache
from dray.scheduler.equivalence_class import has_known_filters
from dray.scheduler.group_cycle import GroupCycle, GroupOutcome
from dray.scheduler.profile import Profile
from dray.scheduler.queued_pod import QueuedPod


class GroupDryRun(AbstractContextManager["GroupDryRun"]):
    """The group cycle of one group while Pods are hidden; to be used in a `with` statement."""

    def __init__(
        self,
        cycle: GroupCycle,
        cache: Cache,
        snapshot: Snapshot,
        profile: Profile,
        group: PodGroup,
        members: Sequence[PodInfo],
    ) -> None:
        self._cycle = cycle
        self._cache = cache
        self._snapshot = snapshot
        self._profile = profile
        self._group = group
        self._key = NamespacedName(group.metadata.namespace or "", group.metadata.name or "")
        self._members = {member.uid: member for member in members}

    def __enter__(self) -> GroupDryRun:
        self._cache.update_snapshot(self._snapshot)
        for plugin in self._profile.group_dry_run_extensions:
            plugin.begin_group_dry_run([*self._members.values()])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for plugin in self._profile.group_dry_run_extensions:
            plugin.end_group_dry_run()
        self._cache.end_dry_run()
        self._cache.update_snapshot(self._snapshot)

    def hide(self, pods: Sequence[PodInfo]) -> None:
        """Leave out scheduled Pods."""
        self._cache.hide(pods)
        by_node: dict[str, list[PodInfo]] = {}
        for pod in pods:
            by_node.setdefault(pod.pod.spec.node_name or "", []).append(pod)
        for node_name, infos in by_node.items():
            node = self._cache.node(node_name)
            for plugin in self._profile.group_dry_run_extensions if node is not None else ():
                assert node is not None
                plugin.hide_pods(infos, node)

    def show(self, pods: Sequence[PodInfo]) -> None:
        """Undo `hide` for some Pods."""
        self._cache.show(pods)
        for plugin in self._profile.group_dry_run_extensions:
            plugin.show_pods(pods)

    def place(self) -> tuple[GroupOutcome, dict[str, str]]:
        """Run the group cycle and undo it; return its outcome, and the node of each Pod that had a place, by uid."""
        queued = self._queued(self._members)
        outcome = self._cycle.run(self._profile, self._group, self._key, queued)
        nodes = {member.queued.uid: member.node_name for member in outcome.placed}
        self._cycle.undo(self._profile, outcome)
        return outcome, nodes

    def fits(self, nodes: Mapping[str, str]) -> bool:
        """Return whether the Pods fit on their nodes, each with the earlier ones assumed and reserved."""
        outcome = self._cycle.run_on(self._profile, self._group, self._key, self._queued(nodes), nodes)
        self._cycle.undo(self._profile, outcome)
        return outcome.status.is_success

    def keep(self, nodes: Mapping[str, str]) -> bool:
        """Let plugins keep what the Pods get on their nodes; return whether they fit there."""
        outcome = self._cycle.run_on(self._profile, self._group, self._key, self._queued(nodes), nodes)
        if outcome.status.is_success:
            for member in outcome.placed:
                for plugin in self._profile.group_dry_run_extensions:
                    plugin.member_nominated(member.state, member.queued.pod, member.node_name)
        self._cycle.undo(self._profile, outcome)
        return outcome.status.is_success

    def is_monotonic(self, outcome: GroupOutcome) -> bool:
        """Return whether no filter depends on Pods of other nodes, nor accepts a node only because of Pods there."""
        return all(has_known_filters(self._profile, member.state) for member in outcome.members)

    def _queued(self, uids: Iterable[str]) -> list[QueuedPod]:
        return [QueuedPod(self._members[uid], 0.0) for uid in uids]
