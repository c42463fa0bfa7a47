"""The objects that the informers of a component skip because they do not decode, and who is told: log, metric, events.

One such object must not keep the others of its kind from being seen. What is done about it is up to its users: the
component goes on with the state of it that decoded last, if it has seen one.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from dray.api.document import GroupResource, NamespacedName
from dray.client.event_recorder import EventRecorder, ObjectReference, Source
from dray.client.informer import SkippedListener
from dray.client.interface import Client, Resource, Undecodable
from dray.lib.clock import Clock
from dray.runtime.logs import fields
from dray.runtime.metrics import Metrics

_log = logging.getLogger(__name__)

REASON: Final = "Undecodable"
# Objects that are named where all are summed up.
NAMED_MAX: Final = 10


class SkippedObjects:
    """The objects that a component skips now. `run` writes the events."""

    def __init__(self, client: Client, clock: Clock, metrics: Metrics, component: str) -> None:
        self._component = component
        self._recorder = EventRecorder(client, clock, Source(component))
        self._gauge = metrics.gauge(
            "dray_undecodable_objects",
            "Objects that the component skips because they do not decode.",
            ("component", "group", "resource"),
        )
        # By resource and key, with the informers that skip the object: some need less of it than others.
        self._items: dict[tuple[GroupResource, NamespacedName], tuple[Undecodable, set[int]]] = {}
        self._informers = 0

    async def run(self) -> None:
        """Write events until cancelled."""
        await self._recorder.run()

    def listener(self, resource: Resource[Any]) -> SkippedListener:
        """Return what an informer of the resource calls."""
        self._informers += 1
        informer = self._informers

        def on_skipped(key: NamespacedName, skipped: Undecodable | None) -> None:
            if skipped is None:
                self._remove(resource, key, informer)
            else:
                self._add(resource, skipped, informer)

        return on_skipped

    def names(self) -> list[str]:
        """Return each object and why it does not decode, in order."""
        return sorted(f"{resource} {_name(key)}: {item.problem}" for (resource, key), (item, _) in self._items.items())

    def _add(self, resource: Resource[Any], skipped: Undecodable, informer: int) -> None:
        place = (resource.group_resource, skipped.key)
        known, informers = self._items.get(place, (None, set()))
        self._items[place] = (skipped, informers | {informer})
        if known is not None and known.uid == skipped.uid:
            return
        self._count(resource.group_resource)
        described = fields(resource=str(resource.group_resource), object=_name(skipped.key), problem=skipped.problem)
        _log.error("object does not decode and is ignored until it does", extra=described)
        if skipped.key.name:
            namespace, name = skipped.key
            regarding = ObjectReference(resource.group_version_kind, namespace, name, skipped.uid)
            self._recorder.event_for(
                regarding,
                "Warning",
                REASON,
                f"{self._component} ignores the object until it can be decoded: {skipped.problem}",
            )

    def _remove(self, resource: Resource[Any], key: NamespacedName, informer: int) -> None:
        place = (resource.group_resource, key)
        known, informers = self._items.get(place, (None, set()))
        if known is None:
            return
        informers.discard(informer)
        if not informers:
            del self._items[place]
            self._count(resource.group_resource)
            described = fields(resource=str(resource.group_resource), object=_name(key))
            _log.info("object decodes again, or is deleted", extra=described)

    def _count(self, resource: GroupResource) -> None:
        count = Counter(each for each, _ in self._items)[resource]
        self._gauge.labels(self._component, resource.group, resource.resource).set(count)


def summary(names: Iterable[str]) -> str | None:
    """Return one text about all skipped objects; None if there is none."""
    listed = list(dict.fromkeys(names))
    if not listed:
        return None
    more = f"; and {len(listed) - NAMED_MAX} more" if len(listed) > NAMED_MAX else ""
    count = "1 object is" if len(listed) == 1 else f"{len(listed)} objects are"
    return f"{count} ignored: {'; '.join(listed[:NAMED_MAX])}{more}"


def _name(key: NamespacedName) -> str:
    return f"{key.namespace}/{key.name}" if key.namespace else key.name
