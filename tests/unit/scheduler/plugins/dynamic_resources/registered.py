"""The plugin without a cluster."""

from __future__ import annotations

from typing import Any

from dray.api.features import FeatureGates
from dray.framework.events import Action
from dray.framework.snapshot import Snapshot
from dray.runtime.metrics import Metrics
from dray.runtime.system import SystemClock
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.dynamic_resources.plugin import DynamicResources


class _Nothing:
    """An informer, its lister, and all informers: of nothing."""

    @property
    def lister(self) -> _Nothing:
        return self

    def informer(self, *_: Any, **__: Any) -> _Nothing:
        return self

    def add_handler(self, _handler: Any) -> None:
        """Nobody will ever tell it anything."""

    def get_key(self, _key: Any) -> None:
        return None

    def by_index(self, _index: str, _value: str) -> tuple[Any, ...]:
        return ()


def handle_of_nothing() -> Handle:
    """A handle whose informers know no objects."""
    nothing: Any = _Nothing()
    return Handle(nothing, nothing, SystemClock(), Metrics(), FeatureGates(), Snapshot(), nothing)


def registered() -> dict[str, Action]:
    """The actions of interest by kind."""
    plugin = DynamicResources({}, handle_of_nothing())
    return {item.event.resource: item.event.action for item in plugin.events_to_register()}
