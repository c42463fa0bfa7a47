"""Counts of placed Pods that follow the snapshot: a change of one node costs what changed on it, not all Pods.

Pure. A *view* holds one aggregate, for example the number of Pods per zone that match a selector. Views are created
when a Pod first needs them, read the log of changes when they are used again, and are dropped when nobody uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar, cast

import msgspec

from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.framework.snapshot import Snapshot

# Changes that views may be behind; when the log is full, all views read it.
LOG_MAX: Final = 512
# Views, and full logs after which an unused view is dropped.
VIEWS_MAX: Final = 1024
UNUSED_LOGS_MAX: Final = 32

_SHARED: Final = "PodIndex"


class NodeChange(msgspec.Struct, frozen=True):
    """The difference between two states of a node; an added node has no `before`, a removed one no `after`."""

    before: NodeInfo | None
    after: NodeInfo | None
    # Whether labels or taints differ: then `removed` and `added` have all Pods of the node.
    relabelled: bool
    removed: Sequence[PodInfo]
    added: Sequence[PodInfo]


class View(Protocol):
    """An aggregate over nodes and their Pods."""

    def apply(self, change: NodeChange) -> None:
        """Update the aggregate."""


V = TypeVar("V", bound=View)


class _Entry:
    __slots__ = ("position", "used_in", "view")

    def __init__(self, view: View) -> None:
        self.view = view
        # The number of log entries that the view has read.
        self.position = 0
        # The number of the log in which it was used last.
        self.used_in = 0


class PodIndex:
    """The views of one snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._version = -1
        # The nodes as the log has them.
        self._nodes: dict[str, NodeInfo] = {}
        self._log: list[NodeChange] = []
        self._logs = 0
        self._entries: dict[Hashable, _Entry] = {}

    def view(self, key: Hashable, create: Callable[[], V]) -> V:
        """Return the view of the key, which must determine what `create` returns; valid until the snapshot changes."""
        self._follow()
        entry = self._entries.get(key)
        if entry is None:
            entry = self._build(key, create())
        elif entry.position < len(self._log):
            self._read(entry)
        entry.used_in = self._logs
        return cast("V", entry.view)

    def _build(self, key: Hashable, view: View) -> _Entry:
        if len(self._entries) >= VIEWS_MAX:
            oldest = min(self._entries, key=lambda item: self._entries[item].used_in)
            del self._entries[oldest]
        entry = self._entries[key] = _Entry(view)
        for node in self._nodes.values():
            view.apply(_difference(None, node))
        entry.position = len(self._log)
        return entry

    def _read(self, entry: _Entry) -> None:
        apply = entry.view.apply
        for change in self._log[entry.position :]:
            apply(change)
        entry.position = len(self._log)

    def _follow(self) -> None:
        """Log the changes of the snapshot."""
        snapshot = self._snapshot
        if snapshot.version == self._version:
            return
        names = snapshot.changed_since(self._version)
        self._version = snapshot.version
        if names is None:
            names = self._names_after_replacement()
        nodes = self._nodes
        # A node that changed more than once is named more than once.
        for name in dict.fromkeys(names):
            before, after = nodes.get(name), snapshot.get(name)
            if before is after:
                continue
            if after is None:
                del nodes[name]
            else:
                nodes[name] = after
            change = _difference(before, after)
            if change.relabelled or change.removed or change.added:
                self._log.append(change)
            if len(self._log) >= LOG_MAX:
                self._empty_log()

    def _names_after_replacement(self) -> list[str]:
        present = {node.name for node in self._snapshot.nodes}
        return [*(name for name in self._nodes if name not in present), *present]

    def _empty_log(self) -> None:
        """Let all views read the log, and drop the unused ones."""
        oldest = self._logs - UNUSED_LOGS_MAX
        self._entries = {key: entry for key, entry in self._entries.items() if entry.used_in >= oldest}
        for entry in self._entries.values():
            self._read(entry)
            entry.position = 0
        self._log.clear()
        self._logs += 1


def pod_index_of(snapshot: Snapshot, shared: dict[str, Any]) -> PodIndex:
    """Return the index that the plugins of all profiles share."""
    index: PodIndex = shared.setdefault(_SHARED, PodIndex(snapshot))
    return index


def _difference(before: NodeInfo | None, after: NodeInfo | None) -> NodeChange:
    if before is None:
        assert after is not None
        return NodeChange(None, after, relabelled=True, removed=(), added=tuple(after.pods.values()))
    if after is None:
        return NodeChange(before, None, relabelled=True, removed=tuple(before.pods.values()), added=())
    old, new = before.pods, after.pods
    if before.labels != after.labels or before.hard_taints != after.hard_taints:
        return NodeChange(before, after, relabelled=True, removed=tuple(old.values()), added=tuple(new.values()))
    return NodeChange(before, after, relabelled=False, removed=_missing(old, new), added=_missing(new, old))


def _missing(pods: Mapping[str, PodInfo], others: Mapping[str, PodInfo]) -> tuple[PodInfo, ...]:
    """Return the Pods that the others lack, or have in another version."""
    return tuple([info for uid, info in pods.items() if others.get(uid) is not info])
