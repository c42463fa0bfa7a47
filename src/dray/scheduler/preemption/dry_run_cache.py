"""Cached results of dry runs, by equivalence class of the preemptor and by node.

Logs of changes tell which results are outdated: those of nodes, of nominations, and of what plugins name besides
(devices). Users of shared claims are not part of what a result is known to depend on, so the result on the chosen node
is always confirmed by another dry run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final

from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import DryRunSignature
from dray.framework.snapshot import Snapshot
from dray.framework.status import Status
from dray.scheduler.equivalence_class import equivalence_class_of
from dray.scheduler.nominations import Nominations
from dray.scheduler.preemption.dry_run import Candidate
from dray.scheduler.profile import Profile

DryRunOn = Callable[[NodeInfo], Candidate | Status]

# Classes whose results are kept; beyond that the least recently used is dropped.
CLASSES_MAX: Final = 32


class _NodeResults:
    """The results of one equivalence class by node."""

    def __init__(self, snapshot: Snapshot, nominations: Nominations, plugins: Iterable[DryRunSignature]) -> None:
        self._snapshot = snapshot
        self._nominations = nominations
        self._plugins = tuple(plugins)
        self.by_node: dict[str, Candidate | Status] = {}
        # Part of a plugin -> the nodes whose results depend on it.
        self._by_part: dict[tuple[str, str], dict[str, None]] = {}
        self._versions: list[Any] = [None] * (2 + len(self._plugins))
        self.refresh()

    def refresh(self) -> None:
        """Drop what has changed since the last call."""
        known = self._versions
        self._versions = [self._snapshot.version, self._nominations.version]
        self._versions += [plugin.parts_version() for plugin in self._plugins]
        if known == self._versions:
            return
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
                return
            for name in names:
                changed.extend(self._by_part.pop((plugin, name), ()) if plugin else (name,))
        for name in changed:
            self.by_node.pop(name, None)

    def keep(self, node: NodeInfo, result: Candidate | Status) -> None:
        """Keep the result on a node, as of the last refresh."""
        name = node.name
        self.by_node[name] = result
        for plugin in self._plugins:
            for part in plugin.parts_of(node):
                self._by_part.setdefault((plugin.name, part), {})[name] = None


class DryRunCache:
    """The results of all equivalence classes; one for each plugin."""

    def __init__(self, snapshot: Snapshot, nominations: Nominations) -> None:
        self._snapshot = snapshot
        self._nominations = nominations
        # The most recently used is the last.
        self._classes: dict[Hashable, _NodeResults] = {}

    def cached(self, profile: Profile, state: CycleState, budgets_version: int, dry_run: DryRunOn) -> DryRunOn | None:
        """Return a dry run that looks up earlier results; None if the Pod's equivalence class is not known."""
        equivalence_class = equivalence_class_of(profile, state)
        if equivalence_class is None:
            return None
        results = self._results(profile, state, (budgets_version, equivalence_class))
        known = results.by_node
        # Devices held for the Pod's own nomination are not available to others of its class.
        own = self._nominations.node_of(state.pod_info.uid)

        def run(node: NodeInfo) -> Candidate | Status:
            if node.name == own:
                return dry_run(node)
            found = known.get(node.name)
            if found is None:
                found = dry_run(node)
                results.keep(node, found)
            return found

        return run

    def clear(self) -> None:
        """Drop all results."""
        self._classes.clear()

    def _results(self, profile: Profile, state: CycleState, key: Hashable) -> _NodeResults:
        results = self._classes.pop(key, None)
        if results is None:
            results = _NodeResults(self._snapshot, self._nominations, profile.active_filters(state).signed)
        results.refresh()
        self._classes[key] = results
        if len(self._classes) > CLASSES_MAX:
            del self._classes[next(iter(self._classes))]
        return results
