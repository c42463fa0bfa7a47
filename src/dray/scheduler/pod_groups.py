"""The PodGroups that exist, and their Pods: waiting, assumed and bound. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Final

from dray.api.document import NamespacedName
from dray.api.pod_groups import group_key_of, is_disrupted_as_a_whole
from dray.api.types.core_v1 import Pod
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.framework.pod_info import PodInfo

_NONE: Final[Mapping[str, PodInfo]] = {}


class PodGroups:
    """One per scheduler; follows the informers and the scheduler's cache."""

    def __init__(self) -> None:
        self._groups: dict[NamespacedName, PodGroup] = {}
        # The groups whose Pods are evicted together.
        self._whole: set[NamespacedName] = set()
        # Uids of unfinished Pods, and the scheduled ones among them, assumed or bound.
        self._known: dict[NamespacedName, set[str]] = {}
        self._scheduled: dict[NamespacedName, dict[str, PodInfo]] = {}
        # Uids of the scheduled Pods that are bound, or are being bound together.
        self._bound: dict[NamespacedName, set[str]] = {}

    # --- Changes. ---

    def set(self, key: NamespacedName, group: PodGroup | None) -> None:
        """Add, update or remove a group."""
        if group is None:
            self._groups.pop(key, None)
        else:
            self._groups[key] = group
        if group is not None and is_disrupted_as_a_whole(group):
            self._whole.add(key)
        else:
            self._whole.discard(key)

    def add_pod(self, pod: Pod) -> None:
        """Add an unfinished Pod."""
        key = group_key_of(pod)
        if key is not None:
            self._known.setdefault(key, set()).add(pod.metadata.uid or "")

    def remove_pod(self, pod: Pod) -> None:
        """Remove a Pod that was deleted or has finished."""
        key = group_key_of(pod)
        known = self._known.get(key) if key is not None else None
        if key is None or known is None:
            return
        known.discard(pod.metadata.uid or "")
        if not known:
            del self._known[key]

    def pod_placed(self, info: PodInfo) -> None:
        """Count a Pod that has a node now, assumed or bound."""
        key = group_key_of(info.pod)
        if key is not None:
            self._scheduled.setdefault(key, {})[info.uid] = info

    def pod_unplaced(self, info: PodInfo) -> None:
        """Stop counting a Pod that has no node any more."""
        key = group_key_of(info.pod)
        scheduled = self._scheduled.get(key) if key is not None else None
        if key is None or scheduled is None:
            return
        scheduled.pop(info.uid, None)
        self._bound.get(key, set()).discard(info.uid)
        if not scheduled:
            del self._scheduled[key]
            self._bound.pop(key, None)

    def pod_bound(self, pod: Pod) -> None:
        """Count a scheduled Pod whose binding is written."""
        key = group_key_of(pod)
        if key is not None and pod.metadata.uid in self._scheduled.get(key, _NONE):
            self._bound.setdefault(key, set()).add(pod.metadata.uid or "")

    def gang_bound(self, key: NamespacedName, uids: Set[str]) -> None:
        """Count scheduled Pods that are being bound together: nothing but the server can prevent it any more."""
        found = uids & self._scheduled.get(key, _NONE).keys()
        if found:
            self._bound.setdefault(key, set()).update(found)

    # --- Lookups. ---

    def __bool__(self) -> bool:
        return bool(self._groups)

    @property
    def any_disrupted_as_a_whole(self) -> bool:
        """Return whether there are groups whose Pods are evicted together."""
        return bool(self._whole)

    def get(self, key: NamespacedName) -> PodGroup | None:
        """Return a group."""
        return self._groups.get(key)

    def group_of(self, pod: Pod) -> PodGroup | None:
        """Return the Pod's group, if it has one that exists."""
        key = group_key_of(pod)
        return None if key is None else self._groups.get(key)

    def known_count(self, key: NamespacedName) -> int:
        """Return the number of unfinished Pods of a group."""
        known, scheduled = self._known.get(key), self._scheduled.get(key)
        if not scheduled:
            return len(known or ())
        return len(scheduled.keys() | known) if known else len(scheduled)

    def bound_count(self, key: NamespacedName) -> int:
        """Return the number of Pods of a group that are bound, or are being bound together."""
        return len(self._bound.get(key, ()))

    def all(self) -> tuple[tuple[NamespacedName, PodGroup], ...]:
        """Return all groups."""
        return tuple(self._groups.items())

    def scheduled(self, key: NamespacedName) -> Mapping[str, PodInfo]:
        """Return the Pods of a group that have a node, assumed or bound."""
        return self._scheduled.get(key, _NONE)
