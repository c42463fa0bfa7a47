"""A profile: the plugins that schedule the Pods of one schedulerName, by extension point, in order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, Protocol, TypeAlias, TypeGuard, TypeVar, cast

import msgspec

from dray.api.types.core_v1 import Pod
from dray.framework.cycle_state import CycleState
from dray.framework.events import EventRegistration, Hint, HintFunction
from dray.framework.node_info import NodeInfo
from dray.framework.node_statuses import copy_of
from dray.framework.plugins import (
    EXTENSION_POINTS,
    FILTER,
    POST_FILTER,
    PRE_BIND,
    PRE_ENQUEUE,
    PRE_FILTER,
    QUEUE_SORT,
    SCORE,
    BatchScorer,
    BulkFilter,
    BulkPreFilterExtensions,
    CacheableScorer,
    DryRunSignature,
    EnqueueExtensions,
    ExtensionPoint,
    FilterPlugin,
    GroupDryRunExtensions,
    GroupPostFilter,
    NominationExtensions,
    PlacementFeasible,
    PlacementScorer,
    Plugin,
    PreBindPreFlight,
    PreFilterExtensions,
    RejectionExplainer,
    ScoreNormalizer,
    ScorePlugin,
    is_superseded,
)
from dray.framework.pod_info import PodInfo
from dray.framework.status import SUCCESS, Status, error
from dray.scheduler.diagnosis import Diagnosis
from dray.scheduler.timing import Observe, timed_points

_log = logging.getLogger(__name__)

P = TypeVar("P")

DEFAULT_SCHEDULER_NAME = "default-scheduler"

# Sets of plugins whose PreFilter returned Skip, for each of which the other filters are kept: Pods of one workload have
# the same, and a cluster has few more.
ACTIVE_FILTERS_MAX: Final = 256

# Filters that depend on the node and on these fields of the Pod alone: `equivalence_class_of`.
_BY_FIELDS: Final = frozenset(
    {"NodeUnschedulable", "NodeName", "TaintToleration", "NodeAffinity", "NodePorts", "NodeResourcesFit"}
)

# The name of a plugin, and its filter.
Filter: TypeAlias = tuple[str, Callable[..., Status]]
# The same for many nodes.
FilterAll: TypeAlias = tuple[str, Callable[[CycleState, Pod, Sequence[NodeInfo]], Sequence[Status]]]


class Scorer:
    """A score plugin with its weight and its optional abilities."""

    __slots__ = ("cache_key", "name", "normalize", "score_all", "weight")

    def __init__(self, plugin: ScorePlugin, weight: int) -> None:
        self.name = plugin.name
        self.weight = weight
        self.score_all: Callable[[CycleState, Pod, Sequence[NodeInfo]], list[int]] = (
            plugin.score_all
            if isinstance(plugin, BatchScorer) and not is_superseded(plugin, "score_all")
            else _one_by_one(plugin)
        )
        # None if the plugin does not normalize, or its scores are never cached.
        self.normalize: Callable[[CycleState, Pod, list[int]], None] | None = (
            plugin.normalize_scores if isinstance(plugin, ScoreNormalizer) else None
        )
        self.cache_key: Callable[[CycleState], Hashable | None] | None = (
            plugin.score_cache_key
            if isinstance(plugin, CacheableScorer) and not is_superseded(plugin, "score_cache_key")
            else None
        )


# Of a plugin, for Pods that are added to a node or removed from it.
ChangePods: TypeAlias = Callable[[CycleState, Pod, Sequence[PodInfo], NodeInfo], Status]


class PodChanges:
    """The functions of a plugin that update its state for Pods added to a node, or removed from it."""

    __slots__ = ("add_pods", "name", "remove_pods")

    def __init__(self, plugin: PreFilterExtensions, *, bulk: bool) -> None:
        self.name = plugin.name
        self.add_pods: ChangePods = _for_each(plugin.add_pod)
        self.remove_pods: ChangePods = _for_each(plugin.remove_pod)
        if bulk and isinstance(plugin, BulkPreFilterExtensions):
            if not is_superseded(plugin, "add_pods"):
                self.add_pods = plugin.add_pods
            if not is_superseded(plugin, "remove_pods"):
                self.remove_pods = plugin.remove_pods


def _for_each(change_pod: Callable[[CycleState, Pod, PodInfo, NodeInfo], Status]) -> ChangePods:
    def change_pods(state: CycleState, pod: Pod, others: Sequence[PodInfo], node: NodeInfo) -> Status:
        for other in others:
            status = change_pod(state, pod, other, node)
            if not status.is_success:
                return status
        return SUCCESS

    return change_pods


def _filter_all(plugin: FilterPlugin) -> Callable[[CycleState, Pod, Sequence[NodeInfo]], Sequence[Status]]:
    if isinstance(plugin, BulkFilter) and not is_superseded(plugin, "filter_all"):
        return plugin.filter_all
    run = plugin.filter
    return lambda state, pod, nodes: [run(state, pod, node) for node in nodes]


def _is_by_fields(plugin: FilterPlugin) -> bool:
    # Not one that overrides the filter that is known by this name.
    return plugin.name in _BY_FIELDS and not is_superseded(plugin, "name")


def _is_signed(plugin: FilterPlugin) -> TypeGuard[DryRunSignature]:
    return isinstance(plugin, DryRunSignature) and not is_superseded(plugin, "dry_run_signature")


def _one_by_one(plugin: ScorePlugin) -> Callable[[CycleState, Pod, Sequence[NodeInfo]], list[int]]:
    score = plugin.score
    return lambda state, pod, nodes: [score(state, pod, node) for node in nodes]


class ActiveFilters(msgspec.Struct, frozen=True):
    """The filters of plugins whose PreFilter did not return Skip."""

    # The timed ones run on a sample of the nodes of a timed attempt; there are none in others.
    plain: tuple[Filter, ...]
    timed: tuple[Filter, ...]
    # The same as the plain ones.
    bulk: tuple[FilterAll, ...]
    # Those that depend on more than the node and fields of the Pod, and say on what.
    signed: tuple[DryRunSignature, ...]
    # The names of those of which it is not known what they depend on, for example on all other Pods.
    unknown: frozenset[str]


NO_FILTERS: Final = ActiveFilters((), (), (), (), frozenset())


class PluginsAt(Protocol):
    """The plugins of a profile by extension point."""

    def __call__(self, point: ExtensionPoint[P], /) -> Sequence[P]:
        """Return the plugins of an extension point, in order."""


def _plugins_at(points: Mapping[str, Sequence[Plugin]]) -> PluginsAt:
    """Return a method of a dictionary, and no function of its own: it is called for most of the points of each Pod."""
    by_point: dict[ExtensionPoint[Any], Any] = {point: points.get(name, ()) for name, point in EXTENSION_POINTS.items()}
    return by_point.__getitem__


class Profile:
    """Made once at start; `points` has the plugins of every extension point in order."""

    def __init__(
        self,
        scheduler_name: str,
        points: Mapping[str, Sequence[Plugin]],
        weights: Mapping[str, int],
        percentage_of_nodes_to_score: int = 0,
        *,
        timed_points: Mapping[str, Sequence[Plugin]] | None = None,
    ) -> None:
        self.scheduler_name = scheduler_name
        self._points = points
        self._weights = weights
        self.percentage_of_nodes_to_score = percentage_of_nodes_to_score
        # In a timed profile all points but Filter are timed throughout; timed filters run on some nodes only.
        used = points if timed_points is None else {**timed_points, FILTER.name: points[FILTER.name]}
        self.at: PluginsAt = _plugins_at(used)
        self.timed_filter: Sequence[FilterPlugin] = (
            () if timed_points is None else cast("Sequence[FilterPlugin]", timed_points[FILTER.name])
        )
        # Every Pod that is added or removed is timed by itself.
        bulk = timed_points is None
        self.pre_filter_extensions = tuple(
            PodChanges(plugin, bulk=bulk) for plugin in self.at(PRE_FILTER) if isinstance(plugin, PreFilterExtensions)
        )
        self.nomination_extensions = tuple(
            plugin for plugin in self.at(PRE_FILTER) if isinstance(plugin, NominationExtensions)
        )
        self.group_dry_run_extensions = tuple(
            plugin for plugin in self.at(PRE_FILTER) if isinstance(plugin, GroupDryRunExtensions)
        )
        self.group_post_filters = tuple(
            plugin for plugin in points.get(POST_FILTER.name, ()) if isinstance(plugin, GroupPostFilter)
        )
        self.explainers = tuple(plugin for plugin in self.at(FILTER) if isinstance(plugin, RejectionExplainer))
        self.pre_flights = tuple(plugin for plugin in self.at(PRE_BIND) if isinstance(plugin, PreBindPreFlight))
        self._queue_sort = self.at(QUEUE_SORT)[0]
        self.scorers = tuple(Scorer(plugin, weights.get(plugin.name, 1)) for plugin in self.at(SCORE))
        self.plugins: Mapping[str, Plugin] = {item.name: item for items in points.values() for item in items}
        self.placement_feasible = tuple(
            plugin for plugin in self.plugins.values() if isinstance(plugin, PlacementFeasible)
        )
        self.placement_scorers = tuple(
            (plugin, weights.get(plugin.name, 1))
            for plugin in points.get(SCORE.name, ())
            if isinstance(plugin, PlacementScorer)
        )
        self._registrations = {name: _registrations(plugin) for name, plugin in self.plugins.items()}
        self._active_filters: Final = lru_cache(ACTIVE_FILTERS_MAX)(self._make_active_filters)

    def active_filters(self, state: CycleState) -> ActiveFilters:
        """Return the filters of an attempt; called after PreFilter."""
        return self._active_filters(frozenset(state.skip_filter))

    def split_filters(self, state: CycleState) -> tuple[ActiveFilters, ActiveFilters]:
        """Return the filters of which it is known what they depend on, and the others."""
        skipped = frozenset(state.skip_filter)
        filters = self._active_filters(skipped)
        if not filters.unknown:
            return filters, NO_FILTERS
        known = frozenset(name for name, _ in filters.plain) - filters.unknown
        return self._active_filters(skipped | filters.unknown), self._active_filters(skipped | known)

    def _make_active_filters(self, skipped: frozenset[str]) -> ActiveFilters:
        plugins = [plugin for plugin in self.at(FILTER) if plugin.name not in skipped]
        return ActiveFilters(
            plain=tuple((plugin.name, plugin.filter) for plugin in plugins),
            timed=tuple((plugin.name, plugin.filter) for plugin in self.timed_filter if plugin.name not in skipped),
            bulk=tuple((plugin.name, _filter_all(plugin)) for plugin in plugins),
            signed=tuple(plugin for plugin in plugins if _is_signed(plugin)),
            unknown=frozenset(plugin.name for plugin in plugins if not (_is_signed(plugin) or _is_by_fields(plugin))),
        )

    def timed(self, timer: Callable[[], float], observe: Observe) -> Profile:
        """Return a profile with the same decisions that observes the durations of its plugins."""
        return Profile(
            self.scheduler_name,
            self._points,
            self._weights,
            self.percentage_of_nodes_to_score,
            timed_points=timed_points(self._points, timer, observe),
        )

    @property
    def queue_sort_name(self) -> str:
        """Return the name of the QueueSort plugin."""
        return self._queue_sort.name

    # --- For the queue. ---

    def sort_key(self, priority: int, queued_at: float) -> Any:
        """Return the key that active Pods are ordered by."""
        return self._queue_sort.sort_key(priority, queued_at)

    def pre_enqueue(self, pod: Pod) -> Status:
        """Return Success, or the first rejection of a PreEnqueue plugin."""
        for plugin in self.at(PRE_ENQUEUE):
            try:
                status = plugin.pre_enqueue(pod)
            except Exception as failure:  # noqa: BLE001 - a plugin's bug gates the Pod, and must not stop the queue
                _log.exception("PreEnqueue plugin %s", plugin.name)
                status = error(f"{type(failure).__name__}: {failure}")
            if not status.is_success:
                return status.with_plugin(plugin.name)
        return SUCCESS

    def registrations(self) -> Mapping[str, Sequence[EventRegistration]]:
        """Return the event registrations of each plugin."""
        return self._registrations


def explain(profile: Profile, state: CycleState, diagnosis: Diagnosis) -> Diagnosis:
    """Return the rejections with the detailed reasons of plugins that compute them only when no node is feasible."""
    statuses = copy_of(diagnosis.statuses)
    for explainer in profile.explainers if statuses else ():
        explainer.explain_rejections(state, state.pod_info.pod, statuses)
    return replace(diagnosis, statuses=statuses)


def _registrations(plugin: Plugin) -> tuple[EventRegistration, ...]:
    if not isinstance(plugin, EnqueueExtensions):
        return ()
    return tuple(replace(item, hint=_guarded(plugin.name, item.hint)) for item in plugin.events_to_register())


def _guarded(name: str, hint: HintFunction | None) -> HintFunction | None:
    """Return a hint function that requeues the Pod if the plugin's own one fails."""
    if hint is None:
        return None

    def guarded(pod: Pod, old: Any, new: Any) -> Hint:
        try:
            return hint(pod, old, new)
        except Exception:  # noqa: BLE001 - a plugin's bug must not stop the informer's handlers
            _log.exception("queueing hint of plugin %s", name)
            return Hint.QUEUE

    return guarded
