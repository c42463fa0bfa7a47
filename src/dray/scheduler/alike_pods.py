"""Results of filters that are kept for Pods which are alike, each until something changes that it depends on. Pure.

Unschedulable Pods come in crowds that are alike, and between two attempts few nodes change. What a result on a node
depends on is known by logs of changes: of the nodes, of nominations, and of what plugins name besides (devices). So an
attempt costs what has changed, not what there is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final, Generic, TypeVar

import msgspec

from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import FILTER, DryRunSignature
from dray.framework.snapshot import Snapshot
from dray.scheduler.nominations import Nominations
from dray.scheduler.profile import Profile

T = TypeVar("T")

# Kinds of Pods whose results are kept; beyond that the least recently used goes.
KINDS_MAX: Final = 32
# Filters that depend on the node and on these fields of the Pod alone.
_BY_FIELDS: Final = frozenset(
    {"NodeUnschedulable", "NodeName", "TaintToleration", "NodeAffinity", "NodePorts", "NodeResourcesFit"}
)
# A search that has to look at more than this share of the nodes is not worth the bookkeeping.
_UNDECIDED_SHARE: Final = 4
_encode = msgspec.json.Encoder().encode


def has_known_filters(profile: Profile, state: CycleState) -> bool:
    """Return whether all filters of the attempt are known: they accept no node only because of other Pods there."""
    return all(
        plugin.name in _BY_FIELDS or plugin.name in profile.signed_filters
        for plugin in profile.at(FILTER)
        if plugin.name not in state.skip_filter
    )


def kind_of(profile: Profile, state: CycleState) -> Hashable | None:
    """Return everything about the Pod that its filters depend on; None if that is not known."""
    if not has_known_filters(profile, state):
        return None
    signatures = tuple([plugin.dry_run_signature(state) for plugin in signed_filters(profile, state)])
    if None in signatures:
        return None
    info = state.pod_info
    spec = info.pod.spec
    fields = _encode((spec.tolerations, spec.node_selector, spec.affinity, spec.node_name))
    # Of the plugins whose PreFilter returned Skip, none that is known depends on more than the Pod.
    return profile.scheduler_name, info.priority, info.requests, info.host_ports, fields, signatures


def signed_filters(profile: Profile, state: CycleState) -> list[DryRunSignature]:
    """Return the active filters that depend on more than the node and fields of the Pod."""
    return [plugin for name, plugin in profile.signed_filters.items() if name not in state.skip_filter]


class NodeResults(Generic[T]):
    """The results of one kind of Pods by node."""

    def __init__(self, snapshot: Snapshot, nominations: Nominations, plugins: Iterable[DryRunSignature]) -> None:
        self._snapshot = snapshot
        self._nominations = nominations
        self._plugins = tuple(plugins)
        self.by_node: dict[str, T] = {}
        # Nodes whose result was dropped, and not kept again since.
        self.dropped: dict[str, None] = {}
        # Part of a plugin -> the nodes whose results depend on it.
        self._by_part: dict[tuple[str, str], dict[str, None]] = {}
        self._versions: list[Any] = [None] * (2 + len(self._plugins))
        self.refresh()

    def refresh(self) -> bool:
        """Drop what has changed since the last call; return False if everything was dropped."""
        known = self._versions
        self._versions = [self._snapshot.version, self._nominations.version]
        self._versions += [plugin.parts_version() for plugin in self._plugins]
        if known == self._versions:
            return True
        changed: list[str] = []
        logs: list[tuple[Callable[[Any], Iterable[str] | None], str]] = [
            (self._snapshot.changed_since, ""),
            (self._nominations.changed_since, ""),
            *((plugin.parts_changed_since, plugin.name) for plugin in self._plugins),
        ]
        for version, (changed_since, plugin) in zip(known, logs, strict=True):
            names = None if version is None else changed_since(version)
            if names is None:
                self.by_node.clear()
                self._by_part.clear()
                self.dropped.clear()
                return False
            for name in names:
                changed.extend(self._by_part.pop((plugin, name), ()) if plugin else (name,))
        for name in changed:
            if self.by_node.pop(name, None) is not None:
                self.dropped[name] = None
        return True

    def keep(self, node: NodeInfo, result: T) -> None:
        """Keep the result on a node, as of the last refresh."""
        name = node.name
        self.by_node[name] = result
        self.dropped.pop(name, None)
        for plugin in self._plugins:
            for part in plugin.parts_of(node):
                self._by_part.setdefault((plugin.name, part), {})[name] = None


class AlikePods(Generic[T]):
    """The results of several kinds of Pods."""

    def __init__(self, snapshot: Snapshot, nominations: Nominations) -> None:
        self._snapshot = snapshot
        self._nominations = nominations
        # The most recently used goes last.
        self._kinds: dict[Hashable, NodeResults[T]] = {}

    def __bool__(self) -> bool:
        return bool(self._kinds)

    def known(self, kind: Hashable) -> NodeResults[T] | None:
        """Return what is known, and current, of a kind."""
        results = self._kinds.pop(kind, None)
        if results is None:
            return None
        self._kinds[kind] = results
        return results if results.refresh() else None

    def results(self, profile: Profile, state: CycleState, kind: Hashable) -> NodeResults[T]:
        """Return what is known of a kind; empty at first."""
        results = self._kinds.pop(kind, None)
        if results is None:
            results = NodeResults(self._snapshot, self._nominations, signed_filters(profile, state))
        results.refresh()
        self._kinds[kind] = results
        if len(self._kinds) > KINDS_MAX:
            del self._kinds[next(iter(self._kinds))]
        return results

    def forget(self, kind: Hashable) -> None:
        """Drop what is known of a kind."""
        self._kinds.pop(kind, None)

    def clear(self) -> None:
        """Drop everything."""
        self._kinds.clear()
