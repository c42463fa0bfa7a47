"""The extension points of the scheduler framework, in the order in which a Pod passes them.

A plugin is an object with a `name` and the methods of the extension points that it implements. Calls up to Permit are
plain functions on the snapshot and must not block; the points that write to the API are coroutines. An exception of a
plugin is an Error of that attempt, never of the scheduler.

A new extension point is a protocol and a row of `EXTENSION_POINTS` here, and its call in the scheduling or binding
cycle; configuration, profiles and metrics follow from the row.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from dray.api.types.core_v1 import Pod
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.framework.cycle_state import CycleState
from dray.framework.events import EventRegistration
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.framework.status import Status

P = TypeVar("P")

# The highest normalized score of a plugin for a node; the lowest is 0.
SCORE_MAX: Final = 100


class Plugin(Protocol):
    """The base of all plugins."""

    name: str


@runtime_checkable
class EnqueueExtensions(Plugin, Protocol):
    """A plugin that rejects Pods, and registers for the events that could make them schedulable."""

    def events_to_register(self) -> Sequence[EventRegistration]:
        """Return the events. Pods rejected by a plugin without this method wait for the periodic flush."""


class PreEnqueuePlugin(Plugin, Protocol):
    """Decides whether a Pod may enter the active queue."""

    def pre_enqueue(self, pod: Pod) -> Status:
        """Return Success, or the reason why the Pod is gated."""


class QueueSortPlugin(Plugin, Protocol):
    """Orders the active queue. A profile has exactly one, and all profiles have the same."""

    def sort_key(self, priority: int, queued_at: float) -> Any:
        """Return the key that Pods are ordered by, lowest first."""


@dataclass(frozen=True, slots=True)
class PreFilterResult:
    """The only nodes that can be feasible."""

    node_names: frozenset[str]


class PreFilterPlugin(Plugin, Protocol):
    """Examines the Pod once, before any node is filtered."""

    def pre_filter(self, state: CycleState, pod: Pod) -> tuple[PreFilterResult | None, Status]:
        """Return Success, Skip (Filter is not called for this Pod), or a rejection for all nodes.

        UnschedulableAndUnresolvable ends the phase. After Unschedulable the other plugins still run, since a dry run
        of preemption needs what they compute. PreFilter itself is not repeated in a dry run, so a rejection that an
        eviction could resolve belongs in Filter.
        """


@runtime_checkable
class PreFilterExtensions(PreFilterPlugin, Protocol):
    """A PreFilter plugin whose state depends on the Pods of nodes, and that can update it for a changed node.

    Called on a copy of the cycle state, never for a plugin whose PreFilter returned Skip. The two are inverses of each
    other in any order; the values that they change in the cycle state must be `StateData`.
    """

    def add_pod(self, state: CycleState, pod: Pod, other: PodInfo, node: NodeInfo) -> Status:
        """Update the state of `pod` as if `other` ran on the node, which already includes it."""

    def remove_pod(self, state: CycleState, pod: Pod, other: PodInfo, node: NodeInfo) -> Status:
        """Update the state of `pod` as if `other` did not run on the node, which does not include it any more."""


@runtime_checkable
class BulkPreFilterExtensions(PreFilterExtensions, Protocol):
    """A plugin that updates its state for many Pods in one call, for speed."""

    def add_pods(self, state: CycleState, pod: Pod, others: Sequence[PodInfo], node: NodeInfo) -> Status:
        """Do what `add_pod` would do for one Pod after the other; called instead of it."""

    def remove_pods(self, state: CycleState, pod: Pod, others: Sequence[PodInfo], node: NodeInfo) -> Status:
        """Do what `remove_pod` would do for one Pod after the other; called instead of it."""


class FilterPlugin(Plugin, Protocol):
    """Rejects nodes."""

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        """Return Success or a rejection; called for many nodes, so it must be fast."""


@runtime_checkable
class BulkFilter(FilterPlugin, Protocol):
    """A filter plugin that filters many nodes in one call, for speed."""

    def filter_all(self, state: CycleState, pod: Pod, nodes: Sequence[NodeInfo]) -> Sequence[Status]:
        """Return what `filter` would return for each node, as in the snapshot; called instead of it."""


@runtime_checkable
class RejectionExplainer(FilterPlugin, Protocol):
    """A filter plugin with detailed reasons that are computed only when no node is feasible."""

    def explain_rejections(self, state: CycleState, pod: Pod, statuses: MutableMapping[str, Status]) -> None:
        """Replace this plugin's statuses by more detailed ones; equal reasons are counted in the condition."""


@dataclass(frozen=True, slots=True)
class PostFilterResult:
    """The node where the Pod is expected to fit later; an empty name clears the nomination."""

    nominated_node_name: str


class PostFilterPlugin(Plugin, Protocol):
    """Tries to make the Pod schedulable when no node is feasible, for example by preemption; may write to the API."""

    async def post_filter(
        self, state: CycleState, pod: Pod, statuses: Mapping[str, Status]
    ) -> tuple[PostFilterResult | None, Status]:
        """Return Success or UnschedulableAndUnresolvable to end this step, Unschedulable to let the next plugin try.

        `statuses` has the rejection of every node that was filtered; preemption does not help on other nodes.
        The nomination stays as it is without a result; of several results the last one counts.
        """


class PlacedMember(NamedTuple):
    """A Pod of a group in one group cycle: its state, and why no node fits; None if it has a place or was not tried."""

    state: CycleState
    rejections: Mapping[str, Status] | None


@runtime_checkable
class PlacementFeasible(Plugin, Protocol):
    """A plugin that decides whether enough Pods of a group have a place."""

    def placement_feasible(self, group: PodGroup, scheduled: int, remaining: int) -> Status:
        """Return Success, Wait if the remaining Pods may suffice, or Unschedulable to end the group cycle."""


@runtime_checkable
class PlacementScorer(Plugin, Protocol):
    """A Score plugin that also compares the domains of a topology in which a group can be placed."""

    def score_placement(self, pods: Sequence[PodInfo], nodes: Sequence[NodeInfo]) -> int:
        """Return a score from 0 to SCORE_MAX for the nodes of a domain, on which the Pods are placed already."""


@runtime_checkable
class GroupPostFilter(Plugin, Protocol):
    """A PostFilter plugin that tries to make a group schedulable; it runs when the group cycle was undone."""

    async def group_post_filter(
        self, group: PodGroup, members: Sequence[PlacedMember], scheduled: int
    ) -> tuple[Mapping[str, str] | None, Status]:
        """Return a status as in `post_filter`, and the nominated nodes of members by uid.

        Without nominations those that exist are removed. `scheduled` is the number of Pods that had a node before.
        """


@runtime_checkable
class NominationExtensions(PreFilterPlugin, Protocol):
    """A PreFilter plugin that keeps more for a nominated Pod than its place on the node."""

    def check_preemption(self, pod: Pod, node: NodeInfo) -> Status:
        """Return Success, or why a Pod that is nominated to the node must not preempt others now."""

    def pod_nominated(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        """Keep what the Pod needs on the node, for as long as it is nominated.

        The state is a copy, without the victims and with the Pods nominated to the node.
        """


@runtime_checkable
class GroupDryRunExtensions(PreFilterPlugin, Protocol):
    """A PreFilter plugin that knows more about scheduled Pods than the snapshot has.

    In the dry run of a group Pods are hidden, as if they were gone. Its calls come between `begin_group_dry_run` and
    `end_group_dry_run`, and nothing else happens meanwhile.
    """

    def begin_group_dry_run(self, members: Sequence[PodInfo]) -> None:
        """Prepare for Pods to be hidden for the members of a group."""

    def hide_pods(self, pods: Sequence[PodInfo], node: NodeInfo) -> None:
        """Leave out Pods on the node."""

    def show_pods(self, pods: Sequence[PodInfo]) -> None:
        """Undo `hide_pods` for some Pods."""

    def member_nominated(self, state: CycleState, pod: Pod, node_name: str) -> None:
        """Keep what is reserved for a member in the dry run, for as long as it is nominated."""

    def end_group_dry_run(self) -> None:
        """Undo `hide_pods` for all Pods."""


@runtime_checkable
class DryRunSignature(FilterPlugin, Protocol):
    """A filter plugin that knows what its decisions depend on, also in dry runs, so that they can be kept."""

    def dry_run_signature(self, state: CycleState) -> Hashable | None:
        """Return everything about the Pod that they depend on; None if they must not be cached."""

    def parts_of(self, node: NodeInfo) -> Iterable[str]:
        """Return names of everything else that they depend on at the node, besides its Pods and those nominated to it.

        Which parts a node has depends on its API object, not on its Pods. If something changes that is no part, the
        change concerns all nodes, and `parts_changed_since` returns None.
        """

    def parts_version(self) -> Hashable:
        """Return a version of all parts."""

    def parts_changed_since(self, version: Any) -> Iterable[str] | None:
        """Return the parts that have changed since a version; None if that is not known, or concerns all nodes."""

    def dry_run_dependencies(self, state: CycleState, removed: Sequence[PodInfo]) -> Sequence[object] | None:
        """Return what else they depend on if Pods are removed from their node; None if not all of it is known.

        No Pod is nominated to the node. Decisions made with equal dependencies are equal.
        """


class PreScorePlugin(Plugin, Protocol):
    """Examines the feasible nodes once, before any is scored."""

    def pre_score(self, state: CycleState, pod: Pod, nodes: Sequence[NodeInfo]) -> Status:
        """Return Success, or Skip (Score is not called for this Pod)."""


class ScorePlugin(Plugin, Protocol):
    """Ranks the feasible nodes."""

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        """Return a score from 0 to SCORE_MAX, or any number if the plugin has `normalize_scores`."""


@runtime_checkable
class ScoreNormalizer(ScorePlugin, Protocol):
    """A score plugin that normalizes its scores when all are computed."""

    def normalize_scores(self, state: CycleState, pod: Pod, scores: list[int]) -> None:
        """Change the scores, which are in the order of the nodes, in place."""


@runtime_checkable
class BatchScorer(ScorePlugin, Protocol):
    """A score plugin that scores many nodes in one call, for speed."""

    def score_all(self, state: CycleState, pod: Pod, nodes: Sequence[NodeInfo]) -> list[int]:
        """Return what `score` would return for each node; called instead of it."""


@runtime_checkable
class CacheableScorer(ScorePlugin, Protocol):
    """A score plugin whose scores are cached until the node changes; not for one that normalizes them."""

    def score_cache_key(self, state: CycleState) -> Hashable | None:
        """Return everything but the node that the scores depend on; None if they must not be cached."""


# Shortcuts that plugins may have: what answers for, or describes, methods of extension points.
_SHORTCUTS: Final[Mapping[str, Sequence[str]]] = {
    "filter_all": ("filter",),
    # It describes dry runs, too, in which Pods are removed and added.
    "dry_run_signature": ("filter", "add_pod", "add_pods", "remove_pod", "remove_pods"),
    "add_pods": ("add_pod",),
    "remove_pods": ("remove_pod",),
    # Of a built-in plugin, it is known what the filter of this name depends on.
    "name": ("filter",),
    "score_all": ("score",),
    # Scores that are normalized depend on those of other nodes.
    "score_cache_key": ("score", "normalize_scores"),
}


def is_superseded(plugin: object, shortcut: str) -> bool:
    """Return whether a plugin inherits a shortcut from a class whose `filter`, for example, a derived class overrides.

    It knows nothing of the method that overrides, and must not be used instead of it.
    """
    position = _position(plugin, shortcut)
    return any(_position(plugin, method) < position for method in _SHORTCUTS.get(shortcut, ()))


def _position(plugin: object, name: str) -> int:
    """Return the position of the class that defines an attribute among those in which it is looked up."""
    classes = type(plugin).__mro__
    return next((at for at, each in enumerate(classes) if name in vars(each)), len(classes))


class ReservePlugin(Plugin, Protocol):
    """Reserves what the Pod will use, in memory; writes nothing to the API."""

    def reserve(self, state: CycleState, pod: Pod, node_name: str) -> Status:
        """Reserve; anything but Success undoes the reservations of all plugins."""

    def unreserve(self, state: CycleState, pod: Pod, node_name: str) -> None:
        """Undo the reservation; may be called without `reserve`, and more than once."""


@runtime_checkable
class AsyncUnreservePlugin(Plugin, Protocol):
    """A reserve plugin that also undoes API writes."""

    async def unreserve_writes(self, state: CycleState, pod: Pod, node_name: str) -> None:
        """Undo the writes; called after every plugin's `unreserve`, and before the Pod is requeued."""


class PermitPlugin(Plugin, Protocol):
    """Approves, denies or delays the binding of a Pod."""

    def permit(self, state: CycleState, pod: Pod, node_name: str) -> tuple[Status, float]:
        """Return Success, a rejection, or Wait with the seconds after which the Pod is rejected."""


class PreBindPlugin(Plugin, Protocol):
    """Prepares what the Pod needs on the node; may write to the API."""

    async def pre_bind(self, state: CycleState, pod: Pod, node_name: str) -> Status:
        """Return Success; anything else undoes the reservations."""


@runtime_checkable
class PreBindPreFlight(PreBindPlugin, Protocol):
    """A PreBind plugin that may have to wait for others, and knows when."""

    def pre_bind_pre_flight(self, state: CycleState, pod: Pod, node_name: str) -> Status:
        """Return Success if `pre_bind` is going to wait, so that the Pod's node is made known before; else Skip."""


class BindPlugin(Plugin, Protocol):
    """Binds the Pod to the node."""

    async def bind(self, state: CycleState, pod: Pod, node_name: str) -> Status:
        """Return Success, a failure, or Skip to leave the Pod to the next plugin."""


class PostBindPlugin(Plugin, Protocol):
    """Is notified of bound Pods."""

    def post_bind(self, state: CycleState, pod: Pod, node_name: str) -> None:
        """Clean up; a failure does not affect the bound Pod."""


@dataclass(frozen=True, eq=False)
class ExtensionPoint(Generic[P]):
    """One extension point, as configuration, profiles and metrics need it; compared by identity."""

    # As in a KubeSchedulerConfiguration.
    name: str
    # A plugin with this method takes part in the point.
    method: str
    # Methods whose duration is observed -> the extension point's label in the metric.
    timed: Mapping[str, str]
    # Called for each node, so that a timed attempt observes only some of the calls.
    sampled: bool = False

    def has(self, plugin: Plugin) -> bool:
        """Return whether the plugin takes part."""
        return callable(getattr(plugin, self.method, None))


# The queue's points belong to no attempt, and are not timed.
PRE_ENQUEUE: Final = ExtensionPoint[PreEnqueuePlugin]("preEnqueue", "pre_enqueue", {})
QUEUE_SORT: Final = ExtensionPoint[QueueSortPlugin]("queueSort", "sort_key", {})
PRE_FILTER: Final = ExtensionPoint[PreFilterPlugin](
    "preFilter",
    "pre_filter",
    {
        "pre_filter": "PreFilter",
        "add_pod": "PreFilterExtensionAddPod",
        "remove_pod": "PreFilterExtensionRemovePod",
    },
)
# The search decides which nodes' filters are timed.
FILTER: Final = ExtensionPoint[FilterPlugin]("filter", "filter", {"filter": "Filter"})
POST_FILTER: Final = ExtensionPoint[PostFilterPlugin]("postFilter", "post_filter", {"post_filter": "PostFilter"})
PRE_SCORE: Final = ExtensionPoint[PreScorePlugin]("preScore", "pre_score", {"pre_score": "PreScore"})
SCORE: Final = ExtensionPoint[ScorePlugin](
    "score",
    "score",
    {"score": "Score", "score_all": "Score", "normalize_scores": "ScoreExtensionNormalize"},
    sampled=True,
)
RESERVE: Final = ExtensionPoint[ReservePlugin]("reserve", "reserve", {"reserve": "Reserve", "unreserve": "Unreserve"})
PERMIT: Final = ExtensionPoint[PermitPlugin]("permit", "permit", {"permit": "Permit"})
PRE_BIND: Final = ExtensionPoint[PreBindPlugin]("preBind", "pre_bind", {"pre_bind": "PreBind"})
BIND: Final = ExtensionPoint[BindPlugin]("bind", "bind", {"bind": "Bind"})
POST_BIND: Final = ExtensionPoint[PostBindPlugin]("postBind", "post_bind", {"post_bind": "PostBind"})

# By name, in the order in which a Pod passes them.
EXTENSION_POINTS: Final[Mapping[str, ExtensionPoint[Any]]] = {
    point.name: point
    for point in (
        PRE_ENQUEUE,
        QUEUE_SORT,
        PRE_FILTER,
        FILTER,
        POST_FILTER,
        PRE_SCORE,
        SCORE,
        RESERVE,
        PERMIT,
        PRE_BIND,
        BIND,
        POST_BIND,
    )
}
