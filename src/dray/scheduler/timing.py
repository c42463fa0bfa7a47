"""A copy of a profile's plugins that observes their durations; used for a sample of the attempts only."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from dray.framework.plugins import EXTENSION_POINTS, ExtensionPoint, Plugin, is_superseded
from dray.framework.status import Status

# Called with (plugin, extension point, status, seconds).
Observe: TypeAlias = Callable[[str, str, str, float], None]

# One attempt in this many is timed, as in Kubernetes.
SAMPLE_EVERY: Final = 10
# In a timed attempt, one call in this many of those made for each node.
SAMPLE_EVERY_NODE: Final = 10


class TimedPlugin:
    """A plugin whose extension point methods are timed; the other methods are the plugin's own."""

    def __init__(self, plugin: Plugin, timer: Callable[[], float], observe: Observe) -> None:
        self.name = plugin.name
        for name in dir(plugin):
            if name.startswith("_") or is_superseded(plugin, name):
                continue
            if callable(method := getattr(plugin, name)):
                setattr(self, name, method)
        for point in EXTENSION_POINTS.values():
            self._time_point(point, timer, observe)

    def _time_point(self, point: ExtensionPoint[Any], timer: Callable[[], float], observe: Observe) -> None:
        for name, label in point.timed.items():
            method = getattr(self, name, None)
            if method is not None:
                wrap = _wrapper(method, sampled=point.sampled and name == point.method)
                setattr(self, name, wrap(method, timer, functools.partial(observe, self.name, label)))


def timed_points(
    points: Mapping[str, Sequence[Plugin]], timer: Callable[[], float], observe: Observe
) -> dict[str, list[Plugin]]:
    """Return the same extension points with timed plugins."""
    timed = {plugin.name: TimedPlugin(plugin, timer, observe) for plugins in points.values() for plugin in plugins}
    return {point: [timed[plugin.name] for plugin in plugins] for point, plugins in points.items()}


def _wrapper(method: Callable[..., Any], *, sampled: bool) -> Callable[..., Callable[..., Any]]:
    if inspect.iscoroutinefunction(method):
        return _timed_coroutine
    return _sampled if sampled else _timed


def _sampled(call: Callable[..., Any], timer: Callable[[], float], observe: Callable[..., None]) -> Callable[..., Any]:
    timed = _timed(call, timer, observe)
    # The first call is timed, so that the metric has every plugin that ran.
    countdown = 1

    def run(*arguments: Any) -> Any:
        nonlocal countdown
        countdown -= 1
        if countdown:
            return call(*arguments)
        countdown = SAMPLE_EVERY_NODE
        return timed(*arguments)

    return run


def _timed(call: Callable[..., Any], timer: Callable[[], float], observe: Callable[..., None]) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        started = timer()
        result = call(*arguments)
        observe(_status_label(result), timer() - started)
        return result

    return run


def _timed_coroutine(
    call: Callable[..., Any], timer: Callable[[], float], observe: Callable[..., None]
) -> Callable[..., Any]:
    async def run(*arguments: Any) -> Any:
        started = timer()
        result = await call(*arguments)
        observe(_status_label(result), timer() - started)
        return result

    return run


def _status_label(result: Any) -> str:
    """Return the code in a result; a result without a status is a success."""
    for part in result if isinstance(result, tuple) else (result,):
        if isinstance(part, Status):
            return part.code.label
    return "Success"
