"""Compatibility groups: which devices can consume from one counter set at the same time.

All devices in use that consume from a counter set must have a group in common. A device without groups is compatible
only with others that have none, as if these had a group of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dray.api.types.resource_v1 import Device

# The groups of a device by counter set.
DeviceGroups = tuple[tuple[str, frozenset[str]], ...]
# By counter set, the groups that all devices in use have in common; a set that nothing consumes from is missing.
CommonGroups = Mapping[str, frozenset[str]]

NO_GROUPS: Final[CommonGroups] = {}
# No group has this name.
_UNGROUPED: Final = frozenset(("",))


def has_groups(spec: Device) -> bool:
    """Return whether the device has groups for any counter set."""
    return any(consumed.compatibility_groups for consumed in spec.consumes_counters)


def device_groups(spec: Device) -> DeviceGroups:
    """Return the groups of a device that consumes counters."""
    return tuple(
        (consumed.counter_set, frozenset(consumed.compatibility_groups) or _UNGROUPED)
        for consumed in spec.consumes_counters
    )


def conflicting_set(common: CommonGroups, groups: DeviceGroups) -> str | None:
    """Return the first counter set whose devices in use are not compatible with one more; None if there is none."""
    for counter_set, own in groups:
        others = common.get(counter_set)
        if others is not None and not others & own:
            return counter_set
    return None


def with_device(common: CommonGroups, groups: DeviceGroups) -> dict[str, frozenset[str]]:
    """Return the common groups with one more device in use; empty ones allow no further device."""
    narrowed = dict(common)
    for counter_set, own in groups:
        narrowed[counter_set] = common[counter_set] & own if counter_set in common else own
    return narrowed
