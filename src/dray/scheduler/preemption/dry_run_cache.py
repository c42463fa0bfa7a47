"""Cached results of dry runs, by equivalence class of the preemptor and by node.

Logs of changes tell which results are outdated: those of nodes, of nominations, and of what plugins name besides
(devices). What has no log is compared on the chosen node alone: the claims of the Pods whose removal was decisive. If
that does not suffice, since other Pods use them, too, or Pods are nominated to the node, the result is confirmed by
another dry run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
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
        # Of candidates: what they depend on besides what has logs, as the plugins name it.
        self._dependencies: dict[str, tuple[Sequence[object] | None, ...]] = {}
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
                self._dependencies.clear()
                self._by_part.clear()
                return
            for name in names:
                changed.extend(self._by_part.pop((plugin, name), ()) if plugin else (name,))
        for name in changed:
            self.by_node.pop(name, None)
            self._dependencies.pop(name, None)

    def keep(self, state: CycleState, node: NodeInfo, result: Candidate | Status) -> None:
        """Keep the result on a node, as of the last refresh."""
        name = node.name
        self.by_node[name] = result
        if isinstance(result, Candidate):
            self._dependencies[name] = self._dependencies_of(state, result)
        for plugin in self._plugins:
            for part in plugin.parts_of(node):
                self._by_part.setdefault((plugin.name, part), {})[name] = None

    def is_current(self, state: CycleState, candidate: Candidate) -> bool:
        """Return whether a candidate, kept since the last refresh, is known to be what a dry run would return now."""
        # What is kept for nominated Pods has no log.
        if candidate.node_name in self._nominations.by_node:
            return False
        kept = self._dependencies[candidate.node_name]
        return None not in kept and kept == self._dependencies_of(state, candidate)

    def _dependencies_of(self, state: CycleState, candidate: Candidate) -> tuple[Sequence[object] | None, ...]:
        return tuple([plugin.dry_run_dependencies(state, candidate.decisive) for plugin in self._plugins])


class CachedDryRun:
    """Dry runs for one preemptor, with the results of earlier ones of its equivalence class."""

    def __init__(self, results: _NodeResults, state: CycleState, dry_run: DryRunOn, own_node: str) -> None:
        self._results = results
        self._state = state
        self._dry_run = dry_run
        # Devices held for the Pod's own nomination are not available to others of its class.
        self._own_node = own_node
        self.known: Mapping[str, Candidate | Status] = results.by_node
        if own_node in self.known:
            self.known = {name: result for name, result in self.known.items() if name != own_node}
        # The nodes without an earlier result.
        self._tried: set[str] = set()

    def on(self, node: NodeInfo) -> Candidate | Status:
        """Return the result of a dry run on a node that is not known, and keep it."""
        found = self._dry_run(node)
        self._tried.add(node.name)
        if node.name != self._own_node:
            self._results.keep(self._state, node, found)
        return found

    def is_current(self, candidate: Candidate) -> bool:
        """Return whether a candidate is known to be what another dry run would return now."""
        return candidate.node_name in self._tried or self._results.is_current(self._state, candidate)


class DryRunCache:
    """The results of all equivalence classes; one for each plugin."""

    def __init__(self, snapshot: Snapshot, nominations: Nominations) -> None:
        self._snapshot = snapshot
        self._nominations = nominations
        # The most recently used is the last.
        self._classes: dict[Hashable, _NodeResults] = {}

    def cached(self, profile: Profile, state: CycleState, versions: Hashable, dry_run: DryRunOn) -> CachedDryRun | None:
        """Return the dry run with earlier results; None if the Pod's equivalence class is not known.

        Results depend on `versions`, too: those of everything that concerns all nodes.
        """
        equivalence_class = equivalence_class_of(profile, state)
        if equivalence_class is None:
            return None
        results = self._results(profile, state, (versions, equivalence_class))
        return CachedDryRun(results, state, dry_run, self._nominations.node_of(state.pod_info.uid))

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
