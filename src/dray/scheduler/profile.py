"""One profile: the plugins that place the Pods of one schedulerName, by extension point, in order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

from dray.api.types.core_v1 import Pod
from dray.framework.cycle_state import CycleState
from dray.framework.events import EventRegistration, Hint, HintFunction
from dray.framework.plugins import (
    BindPlugin,
    FilterPlugin,
    PermitPlugin,
    Plugin,
    PostBindPlugin,
    PostFilterPlugin,
    PreBindPlugin,
    PreEnqueuePlugin,
    PreFilterPlugin,
    PreScorePlugin,
    QueueSortPlugin,
    ReservePlugin,
    ScorePlugin,
)
from dray.framework.snapshot import Snapshot
from dray.framework.status import SUCCESS, Status, error
from dray.scheduler.timing import Observe, timed_points

_log = logging.getLogger(__name__)

DEFAULT_SCHEDULER_NAME = "default-scheduler"

# The places from one on of nodes that a filter may accept, in order; None when it can tell of none that it will not.
Promising: TypeAlias = Callable[[CycleState, Snapshot, int], Iterable[int] | None]


class Profile:
    """Made once at start; `points` has the plugins of every extension point in their order."""

    def __init__(
        self,
        scheduler_name: str,
        points: Mapping[str, Sequence[Plugin]],
        weights: Mapping[str, int],
        percentage_of_nodes_to_score: int = 0,
    ) -> None:
        self.scheduler_name = scheduler_name
        self._points = points
        self._weights = weights
        self.percentage_of_nodes_to_score = percentage_of_nodes_to_score
        self._queue_sort = cast(QueueSortPlugin, points["queueSort"][0])
        self._pre_enqueue = cast("Sequence[PreEnqueuePlugin]", points.get("preEnqueue", ()))
        self.pre_filter = cast("Sequence[PreFilterPlugin]", points.get("preFilter", ()))
        self.filter = cast("Sequence[FilterPlugin]", points.get("filter", ()))
        # Twins of the filters for one node in some; only of a profile whose plugins are timed.
        self.timed_filter: Sequence[FilterPlugin] = ()
        # Of the first filter that can tell which nodes are worth asking; see `Cycle`.
        self.promising: Promising | None = next(
            (ask for plugin in self.filter if (ask := getattr(plugin, "promising", None))), None
        )
        self.post_filter = cast("Sequence[PostFilterPlugin]", points.get("postFilter", ()))
        self.pre_score = cast("Sequence[PreScorePlugin]", points.get("preScore", ()))
        score = cast("Sequence[ScorePlugin]", points.get("score", ()))
        self.score = tuple((plugin, weights.get(plugin.name, 1)) for plugin in score)
        self.reserve = cast("Sequence[ReservePlugin]", points.get("reserve", ()))
        self.permit = cast("Sequence[PermitPlugin]", points.get("permit", ()))
        self.pre_bind = cast("Sequence[PreBindPlugin]", points.get("preBind", ()))
        self.bind = cast("Sequence[BindPlugin]", points.get("bind", ()))
        self.post_bind = cast("Sequence[PostBindPlugin]", points.get("postBind", ()))
        self.plugins: Mapping[str, Plugin] = {item.name: item for items in points.values() for item in items}
        self._registrations = {name: _registrations(plugin) for name, plugin in self.plugins.items()}

    def timed(self, timer: Callable[[], float], observe: Observe) -> Profile:
        """A twin that times its plugins; places Pods in the same way."""
        points = timed_points(self._points, timer, observe)
        twin = Profile(self.scheduler_name, points, self._weights, self.percentage_of_nodes_to_score)
        # Of the nodes, of which an attempt has hundreds, most are asked as usual.
        twin.filter, twin.timed_filter = self.filter, twin.filter
        return twin

    @property
    def queue_sort_name(self) -> str:
        """The plugin that orders the queue."""
        return self._queue_sort.name

    # --- What the queue asks. ---

    def sort_key(self, priority: int, queued_at: float) -> Any:
        """What active Pods are ordered by."""
        return self._queue_sort.sort_key(priority, queued_at)

    def pre_enqueue(self, pod: Pod) -> Status:
        """Whether the Pod may be queued; the first no counts."""
        for plugin in self._pre_enqueue:
            try:
                status = plugin.pre_enqueue(pod)
            except Exception as failure:  # noqa: BLE001 - a plugin's bug holds up the Pod, not the queue
                _log.exception("PreEnqueue plugin %s", plugin.name)
                status = error(f"{type(failure).__name__}: {failure}")
            if status is not SUCCESS and not status.is_success:
                return status.said_by(plugin.name)
        return SUCCESS

    def registrations(self) -> Mapping[str, Sequence[EventRegistration]]:
        """The interests of each plugin."""
        return self._registrations


def _registrations(plugin: Plugin) -> tuple[EventRegistration, ...]:
    register = getattr(plugin, "events_to_register", None)
    if register is None:
        return ()
    return tuple(replace(item, hint=_guarded(plugin.name, item.hint)) for item in register())


def _guarded(name: str, hint: HintFunction | None) -> HintFunction | None:
    """A hint that breaks queues the Pod: better tried for nothing than forgotten."""
    if hint is None:
        return None

    def guarded(pod: Pod, old: Any, new: Any) -> Hint:
        try:
            return hint(pod, old, new)
        except Exception:  # noqa: BLE001 - a plugin's bug must not stop the informer that asks
            _log.exception("queueing hint of plugin %s", name)
            return Hint.QUEUE

    return guarded
