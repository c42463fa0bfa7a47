"""A twin of a profile whose plugins are timed; some attempts use it, so that the others pay nothing."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from dray.framework.plugins import EXTENSION_POINTS, Plugin
from dray.framework.status import Status

# Told (plugin, extension point, status, seconds) of every call.
Observe: TypeAlias = Callable[[str, str, str, float], None]

# One attempt in so many is timed, as in Kubernetes.
SAMPLE_EVERY: Final = 10
# Of the calls for one node, of which an attempt has hundreds, one in so many.
SAMPLE_EVERY_NODE: Final = 10
# Method -> extension point; the queue's points are not timed, since they belong to no attempt.
_TIMED: Final[Mapping[str, str]] = {
    **{method: point[0].upper() + point[1:] for point, method in EXTENSION_POINTS.items()},
    "score_all": "Score",
    "normalize_scores": "ScoreExtensionNormalize",
    "unreserve": "Unreserve",
}
_UNTIMED: Final = frozenset({"pre_enqueue", "sort_key"})


class TimedPlugin:
    """Stands for a plugin; whatever is not an extension point is the plugin's own."""

    def __init__(self, plugin: Plugin, timer: Callable[[], float], observe: Observe) -> None:
        self.name = plugin.name
        self._plugin = plugin
        for method, point in _TIMED.items():
            call = getattr(plugin, method, None)
            if call is not None and method not in _UNTIMED:
                told = functools.partial(observe, plugin.name, point)
                setattr(self, method, _timed_call(method, call)(call, timer, told))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plugin, name)


def timed_points(
    points: Mapping[str, Sequence[Plugin]], timer: Callable[[], float], observe: Observe
) -> dict[str, list[Plugin]]:
    """The same extension points with timed plugins."""
    twins = {plugin.name: TimedPlugin(plugin, timer, observe) for plugins in points.values() for plugin in plugins}
    return {point: [twins[plugin.name] for plugin in plugins] for point, plugins in points.items()}


def _timed_call(method: str, call: Callable[..., Any]) -> Callable[..., Callable[..., Any]]:
    if inspect.iscoroutinefunction(call):
        return _timed_coroutine
    # Which nodes' filters are timed is decided by the search.
    return _sometimes_timed if method == "score" else _timed


def _sometimes_timed(
    call: Callable[..., Any], timer: Callable[[], float], told: Callable[..., None]
) -> Callable[..., Any]:
    timed = _timed(call, timer, told)
    # The first call is timed, so that every plugin that ran shows.
    waiting = 1

    def run(*arguments: Any) -> Any:
        nonlocal waiting
        waiting -= 1
        if waiting:
            return call(*arguments)
        waiting = SAMPLE_EVERY_NODE
        return timed(*arguments)

    return run


def _timed(call: Callable[..., Any], timer: Callable[[], float], told: Callable[..., None]) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        started = timer()
        answer = call(*arguments)
        told(_status_of(answer), timer() - started)
        return answer

    return run


def _timed_coroutine(
    call: Callable[..., Any], timer: Callable[[], float], told: Callable[..., None]
) -> Callable[..., Any]:
    async def run(*arguments: Any) -> Any:
        started = timer()
        answer = await call(*arguments)
        told(_status_of(answer), timer() - started)
        return answer

    return run


def _status_of(answer: Any) -> str:
    """The code in an answer; answers without one are a success."""
    parts = answer if isinstance(answer, tuple) else (answer,)
    return next((part.code.value for part in parts if isinstance(part, Status)), "Success")
