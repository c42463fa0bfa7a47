"""Cached results of dry runs, for preemptors that are alike. Pure.

Preemptors come in crowds that are alike, and one preemption changes one node. A result is used again while the node,
the Pods nominated to it, the disruption budgets and what plugins say are unchanged. Users of shared claims are not
part of that, so the result on the chosen node is always confirmed by another dry run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final

import msgspec

from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import FILTER, DryRunSignature
from dray.framework.status import Status
from dray.scheduler.nominations import Nominations
from dray.scheduler.preemption.dry_run import Candidate
from dray.scheduler.profile import Profile

# Results cached over all kinds of preemptors; beyond that all are dropped.
RESULTS_MAX: Final = 20_000
# Filters that depend on the node and on these fields of the Pod alone.
_BY_FIELDS: Final = frozenset(
    {"NodeUnschedulable", "NodeName", "TaintToleration", "NodeAffinity", "NodePorts", "NodeResourcesFit"}
)
_encode = msgspec.json.Encoder().encode


class _Result(msgspec.Struct, frozen=True):
    node: NodeInfo
    nominated: tuple[int, ...]
    versions: tuple[Hashable, ...]
    found: Candidate | Status


class DryRunCache:
    """The results by kind of preemptor and node; one for each plugin."""

    def __init__(self, nominations: Nominations) -> None:
        self._nominations = nominations
        self._results: dict[tuple[Hashable, str], _Result] = {}

    def cached(
        self,
        profile: Profile,
        state: CycleState,
        budgets_version: int,
        dry_run: Callable[[NodeInfo], Candidate | Status],
    ) -> Callable[[NodeInfo], Candidate | Status]:
        """Return a dry run that looks up earlier results; the same one if the Pod is unlike any other."""
        plugins = [plugin for plugin in profile.at(FILTER) if plugin.name not in state.skip_filter]
        signed = [plugin for plugin in plugins if isinstance(plugin, DryRunSignature)]
        key = _key_of(state, signed, {plugin.name for plugin in plugins})
        if key is None:
            return dry_run
        kind = (profile.scheduler_name, budgets_version, key)

        def run(node: NodeInfo) -> Candidate | Status:
            nominated = tuple(map(id, self._nominations.on(node.name)))
            versions = tuple([plugin.node_version(state, node) for plugin in signed])
            known = self._results.get((kind, node.name))
            if known is not None and known.node is node and known.nominated == nominated and known.versions == versions:
                return known.found
            found = dry_run(node)
            if len(self._results) >= RESULTS_MAX:
                self._results.clear()
            self._results[kind, node.name] = _Result(node, nominated, versions, found)
            return found

        return run

    def clear(self) -> None:
        """Drop all results."""
        self._results.clear()


def has_known_filters(profile: Profile, state: CycleState) -> bool:
    """Return whether all filters of the attempt are known: they accept no node only because of other Pods there."""
    return all(
        plugin.name in _BY_FIELDS or isinstance(plugin, DryRunSignature)
        for plugin in profile.at(FILTER)
        if plugin.name not in state.skip_filter
    )


def _key_of(state: CycleState, signed: Sequence[DryRunSignature], names: set[str]) -> Hashable | None:
    """Return everything about the Pod that its filters depend on; None if that is not known."""
    if not names <= _BY_FIELDS | {plugin.name for plugin in signed}:
        return None
    signatures = tuple([plugin.dry_run_signature(state) for plugin in signed])
    if None in signatures:
        return None
    info = state.pod_info
    spec = info.pod.spec
    fields = _encode((spec.tolerations, spec.node_selector, spec.affinity, spec.node_name))
    return info.priority, info.requests, info.host_ports, fields, signatures
