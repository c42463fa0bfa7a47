"""The extension points, in the order in which a Pod passes them.

A plugin is one object with a `name` that has the methods of the points it wants; nothing else is asked of it.
Calls up to Permit are plain functions on the snapshot and must not wait; points that write to the API are
coroutines. An exception is an Error of that attempt, never of the scheduler.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from dray.api.types.core_v1 import Pod
from dray.framework.cycle_state import CycleState
from dray.framework.events import EventRegistration
from dray.framework.node_info import NodeInfo
from dray.framework.status import Status

# A node's final score of one plugin is between 0 and this.
SCORE_MAX: Final = 100


class Plugin(Protocol):
    """What every plugin has."""

    name: str


class EnqueueExtensions(Plugin, Protocol):
    """For plugins that reject Pods: which events could change their mind."""

    def events_to_register(self) -> Sequence[EventRegistration]:
        """The events; a plugin without this method is asked about none, and its Pods wait for the flush."""


class PreEnqueuePlugin(Plugin, Protocol):
    """Decides whether a Pod may be queued at all."""

    def pre_enqueue(self, pod: Pod) -> Status:
        """Success, or why the Pod is kept out."""


class QueueSortPlugin(Plugin, Protocol):
    """Orders the queue; a profile has exactly one, and all profiles the same."""

    def sort_key(self, priority: int, queued_at: float) -> Any:
        """What Pods are ordered by, lowest first."""


@dataclass(frozen=True, slots=True)
class PreFilterResult:
    """The only nodes worth trying."""

    node_names: frozenset[str]


class PreFilterPlugin(Plugin, Protocol):
    """Looks at the Pod once, before any node."""

    def pre_filter(self, state: CycleState, pod: Pod) -> tuple[PreFilterResult | None, Status]:
        """Success, Skip (then Filter is not called for this Pod), or a no for all nodes."""


class FilterPlugin(Plugin, Protocol):
    """Rejects nodes."""

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        """Called for many nodes: keep it short."""


class RejectionExplainer(FilterPlugin, Protocol):
    """A filter whose reasons can say more, at a price worth paying only when no node fits."""

    def explain_rejections(self, state: CycleState, pod: Pod, statuses: dict[str, Status]) -> None:
        """Replace this plugin's answers for nodes by better ones; the same reason is counted over all its nodes."""


@dataclass(frozen=True, slots=True)
class PostFilterResult:
    """Where the Pod is expected to fit later; empty clears the nomination."""

    nominated_node_name: str


class PostFilterPlugin(Plugin, Protocol):
    """Tries to make room when no node fits; may write to the API."""

    async def post_filter(
        self, state: CycleState, pod: Pod, statuses: Mapping[str, Status]
    ) -> tuple[PostFilterResult | None, Status]:
        """Success ends the search for room; Unschedulable lets the next plugin try.

        `statuses` has the answer for every node that was tried; nodes it lacks were never worth trying.
        """


class PreScorePlugin(Plugin, Protocol):
    """Looks at the feasible nodes once, before any is scored."""

    def pre_score(self, state: CycleState, pod: Pod, nodes: Sequence[NodeInfo]) -> Status:
        """Success, or Skip (then Score is not called for this Pod)."""


class ScorePlugin(Plugin, Protocol):
    """Prefers some nodes to others."""

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        """From 0 to SCORE_MAX, or anything when there is `normalize_scores`."""


class ScoreNormalizer(ScorePlugin, Protocol):
    """A score plugin whose scores are brought into range when all are known."""

    def normalize_scores(self, state: CycleState, pod: Pod, scores: list[int]) -> None:
        """Change the scores in place; they are in the order of the nodes."""


class BatchScorer(ScorePlugin, Protocol):
    """A score plugin that can do many nodes in one call, for speed."""

    def score_all(self, state: CycleState, pod: Pod, nodes: Sequence[NodeInfo]) -> list[int]:
        """What `score` would give for each node; called instead of it."""


class SteadyScorer(ScorePlugin, Protocol):
    """A score plugin whose scores are remembered until the node changes; not for one that normalizes them."""

    def score_needs(self, state: CycleState) -> Hashable | None:
        """What of the Pod the scores follow from, besides the node; None when they follow from more than that."""


class ReservePlugin(Plugin, Protocol):
    """Keeps account of what a Pod will take; no API writes."""

    def reserve(self, state: CycleState, pod: Pod, node_name: str) -> Status:
        """Take it; anything but Success undoes every reservation."""

    def unreserve(self, state: CycleState, pod: Pod, node_name: str) -> None:
        """Give it back; may be called without `reserve`, and more than once."""


class AsyncUnreservePlugin(Plugin, Protocol):
    """A reserve plugin that also has API writes to undo."""

    async def unreserve_writes(self, state: CycleState, pod: Pod, node_name: str) -> None:
        """Called after every plugin's `unreserve`, and before the Pod is queued again."""


class PermitPlugin(Plugin, Protocol):
    """Holds a Pod back before it is bound."""

    def permit(self, state: CycleState, pod: Pod, node_name: str) -> tuple[Status, float]:
        """Success, a no, or Wait with the seconds after which waiting is a no."""


class PreBindPlugin(Plugin, Protocol):
    """Prepares what the Pod needs on the node; writes to the API."""

    async def pre_bind(self, state: CycleState, pod: Pod, node_name: str) -> Status:
        """Anything but Success undoes the reservations."""


class BindPlugin(Plugin, Protocol):
    """Writes the decision."""

    async def bind(self, state: CycleState, pod: Pod, node_name: str) -> Status:
        """Success, a failure, or Skip to leave it to the next plugin."""


class PostBindPlugin(Plugin, Protocol):
    """Is told of bound Pods."""

    def post_bind(self, state: CycleState, pod: Pod, node_name: str) -> None:
        """Clean up; the Pod is bound whatever happens here."""


# Extension point (as in a KubeSchedulerConfiguration) -> the method that makes a plugin take part in it.
EXTENSION_POINTS: Final[Mapping[str, str]] = {
    "preEnqueue": "pre_enqueue",
    "queueSort": "sort_key",
    "preFilter": "pre_filter",
    "filter": "filter",
    "postFilter": "post_filter",
    "preScore": "pre_score",
    "score": "score",
    "reserve": "reserve",
    "permit": "permit",
    "preBind": "pre_bind",
    "bind": "bind",
    "postBind": "post_bind",
}


def takes_part(plugin: Plugin, extension_point: str) -> bool:
    """Whether the plugin has the extension point's method."""
    return callable(getattr(plugin, EXTENSION_POINTS[extension_point], None))
