"""The resources that the scheduler follows, by the names that plugins' event registrations use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dray.client.informer import Selection
from dray.client.interface import Resource
from dray.client.resources import CLASSIC_CLAIMS, CLASSIC_CLASSES, DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dray.framework import events

# Finished Pods take nothing, so they need not be heard of.
UNFINISHED: Final = Selection(field_selector="status.phase!=Succeeded,status.phase!=Failed")

# Followed when a plugin registers for their events; Pods and nodes always are.
EXTRA: Final[Mapping[str, Resource[Any]]] = {
    events.RESOURCE_CLAIM: RESOURCE_CLAIMS,
    events.RESOURCE_SLICE: RESOURCE_SLICES,
    events.DEVICE_CLASS: DEVICE_CLASSES,
    events.CLASSIC_CLAIM: CLASSIC_CLAIMS,
    events.CLASSIC_CLASS: CLASSIC_CLASSES,
}
