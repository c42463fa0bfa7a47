"""Runs a profile's filters on nodes: with nominated Pods, and with Pods added or removed.

A node has to pass twice: with the Pods nominated to it, whose room is not to be taken, and without them, since they may
never arrive. A dry run changes copies of the node and of the cycle state only.
"""

from __future__ import annotations

from collections.abc import Sequence

from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.framework.status import SUCCESS, Status
from dray.scheduler.nominations import Nominations
from dray.scheduler.profile import ActiveFilters, Filter, PodChanges, Profile


class AttemptError(Exception):
    """An attempt that failed; the text is the message of the Pod's condition."""


class FilterRunner:
    """The filters of one attempt; those of plugins whose PreFilter returned Skip are left out."""

    __slots__ = ("_extensions", "_filters", "_nominations")

    def __init__(self, filters: Sequence[Filter], extensions: Sequence[PodChanges], nominations: Nominations) -> None:
        self._filters = filters
        self._extensions = extensions
        self._nominations = nominations

    def run(self, state: CycleState, node: NodeInfo, filters: Sequence[Filter] = ()) -> Status:
        """Return the first rejection of a node, with and without the Pods nominated to it."""
        filters = filters or self._filters
        if node.name in self._nominations.by_node:
            nominated = self._nominations.respected_by(state.pod_info, node)
            if nominated:
                copy = state.clone()
                status = _run(filters, copy, self._add_pods(copy, nominated, node))
                if status is not SUCCESS:
                    return status
        return _run(filters, state, node)

    def check(self, state: CycleState, node: NodeInfo, filters: Sequence[Filter]) -> Status:
        """Return SUCCESS, or the first rejection of a node; raise `AttemptError` if a plugin fails."""
        status = _run(filters, state, node)
        if status is SUCCESS and node.name in self._nominations.by_node:
            # Most nodes are rejected without the Pods nominated to them, which costs less to find out.
            status = self.run(state, node, filters)
        return _checked(status)

    def check_all(self, state: CycleState, nodes: Sequence[NodeInfo], filters: ActiveFilters) -> list[Status]:
        """Return what `check` returns for each of the nodes; no Pod may be nominated to any of them.

        One filter runs after the other: that takes a few calls for all nodes instead of a few for each.
        """
        pod = state.pod_info.pod
        statuses = [SUCCESS] * len(nodes)
        positions: Sequence[int] = range(len(nodes))
        for name, filter_all in filters.bulk:
            found = filter_all(state, pod, nodes)
            if found.count(SUCCESS) == len(positions):
                continue
            # Most nodes are rejected for the reason of the one before.
            last = rejection = SUCCESS
            for position, status in zip(positions, found, strict=True):
                if status is SUCCESS:
                    continue
                if status is not last:
                    last, rejection = status, _checked(status.with_plugin(name))
                statuses[position] = rejection
            nodes = [node for position, node in zip(positions, nodes, strict=True) if statuses[position] is SUCCESS]
            positions = [position for position in positions if statuses[position] is SUCCESS]
        return statuses

    def add_nominated(self, state: CycleState, node: NodeInfo) -> NodeInfo:
        """Return the node with the Pods nominated to it, and update the state, which must be a copy."""
        return self._add_pods(state, self._nominations.respected_by(state.pod_info, node), node)

    def _add_pods(self, state: CycleState, others: Sequence[PodInfo], node: NodeInfo) -> NodeInfo:
        for other in others:
            node = self.add_pod(state, other, node)
        return node

    def add_pod(self, state: CycleState, other: PodInfo, node: NodeInfo) -> NodeInfo:
        """Return the node with the Pod, and update the state, which must be a copy."""
        changed = node.with_pod(other)
        self._update_for_added(state, (other,), changed)
        return changed

    def add_pods(self, state: CycleState, others: Sequence[PodInfo], node: NodeInfo) -> NodeInfo:
        """Return the node with several Pods, none of which it has, and update the state, which must be a copy."""
        changed = node.with_pods(others)
        self._update_for_added(state, others, changed)
        return changed

    def _update_for_added(self, state: CycleState, others: Sequence[PodInfo], node: NodeInfo) -> None:
        for plugin in self._extensions:
            if plugin.name not in state.skip_filter:
                _check(plugin.add_pods(state, state.pod_info.pod, others, node), plugin.name, "AddPod")

    def remove_pods(self, state: CycleState, others: Sequence[PodInfo], node: NodeInfo) -> NodeInfo:
        """Return the node without the Pods, and update the state, which must be a copy."""
        changed = node.without_pods([other.uid for other in others])
        for plugin in self._extensions:
            if plugin.name not in state.skip_filter:
                _check(plugin.remove_pods(state, state.pod_info.pod, others, changed), plugin.name, "RemovePod")
        return changed


def runner_of(profile: Profile, state: CycleState, nominations: Nominations) -> FilterRunner:
    """Return the filters of an attempt; called after PreFilter."""
    return FilterRunner(profile.active_filters(state).plain, profile.pre_filter_extensions, nominations)


def _run(filters: Sequence[Filter], state: CycleState, node: NodeInfo) -> Status:
    pod = state.pod_info.pod
    for name, run_filter in filters:
        status = run_filter(state, pod, node)
        if not status.is_success:
            return status.with_plugin(name)
    return SUCCESS


def _checked(status: Status) -> Status:
    """Return SUCCESS or a rejection of a node; raise for a failure of a plugin."""
    if status.is_success:
        return SUCCESS
    if not status.is_rejected:
        raise AttemptError(failure_text(status))
    return status


def failure_text(status: Status) -> str:
    """Return Kubernetes' text for a filter that failed."""
    return f'running "{status.plugin}" filter plugin: {status.message}'


def _check(status: Status, plugin: str, method: str) -> None:
    if not status.is_success:
        raise AttemptError(f'running {method} on PreFilter plugin "{plugin}": {status.message}')
