"""Queueing hints of ClassicResources. Pure.

A Pod that waits for a driver is woken by the driver's answer and by nothing else: neither by the scheduler's own
writes nor by what happens to nodes it was not promised to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from dray.api import classic_claims as classic
from dray.api.classic_claims import State
from dray.api.document import NamespacedName
from dray.api.types.cdi_v1alpha1 import ResourceClaim
from dray.api.types.core_v1 import Node, Pod
from dray.framework.events import EventKeys, Hint
from dray.scheduler.plugins.classic_resources.pod_state import FindClaim, HasStructured, claims_of
from dray.scheduler.plugins.dynamic_resources.checks import NotReadyError


class Hints:
    """Queueing hints that read the current claims."""

    def __init__(self, find: FindClaim, has_structured: HasStructured) -> None:
        self._find = find
        self._has_structured = has_structured

    def claim_changed(self, pod: Pod, old: ResourceClaim | None, new: ResourceClaim | None) -> Hint:
        """Queue for changes of the Pod's own claims."""
        if not concerns(pod, old, new):
            return Hint.SKIP
        if old is None or new is None:
            return Hint.QUEUE
        # The Pod's own unreserve does not requeue it.
        return Hint.QUEUE if is_news(classic.without_user(old, pod.metadata.uid or ""), new) else Hint.SKIP

    def node_changed(self, pod: Pod, old: Node | None, new: Node | None) -> Hint:
        """Queue for changes of nodes; after a node was selected only for its deletion."""
        try:
            wanted = claims_of(pod, self._find, self._has_structured)
        except NotReadyError:
            return Hint.SKIP
        waiting = [item.claim for item in wanted if classic.state_of(item.claim) is State.ALLOCATING]
        if not waiting:
            return Hint.QUEUE if new is not None else Hint.SKIP
        gone = old.metadata.name if new is None and old is not None else None
        return Hint.QUEUE if any(classic.selected_node(claim) == gone for claim in waiting) else Hint.SKIP

    def class_added(self, pod: Pod, _old: Any, new: Any) -> Hint:
        """Queue for a class that a claim of the Pod needs."""
        namespace = pod.metadata.namespace or ""
        claims = (self._find(NamespacedName(namespace, name)) for name in classic.claim_names_of(pod))
        classes = {claim.spec.resource_class_name for claim in claims if claim is not None}
        return Hint.QUEUE if new.metadata.name in classes else Hint.SKIP


def is_news(old: ResourceClaim, new: ResourceClaim) -> bool:
    """Return whether a relevant field changed that schedulers do not write."""
    before, after = classic.status_of(old), classic.status_of(new)
    if before.phase != after.phase:
        return after.phase != classic.REALLOCATE_PHASE
    if len(after.reserved_for) < len(before.reserved_for) or _others(old) != _others(new):
        return True
    if classic.state_of(new) is State.ALLOCATING:
        # The driver is still working on it.
        return False
    if classic.selected_node(old) and not classic.selected_node(new):
        return True
    return classic.driver_status(old) != classic.driver_status(new) or classic.has_driver_status(
        old
    ) != classic.has_driver_status(new)


def _others(claim: ResourceClaim) -> tuple[Any, ...]:
    """Return what users and drivers write in any state; conditions say why a driver fails."""
    metadata, status = claim.metadata, classic.status_of(claim)
    return metadata.owner_references, metadata.deletion_timestamp, status.user_limit, status.conditions


def concerns(pod: Pod, old: Any, new: Any) -> bool:
    """Return whether the changed claim is one of the Pod's; events during an attempt are not selected by key."""
    return not set(keys_of_change(old, new)).isdisjoint(keys_of_pod(pod))


def same_name(pod: Pod, old: Any, new: Any) -> Hint:
    """Queue for a claim of the other API group with the name of one of the Pod's."""
    return Hint.QUEUE if concerns(pod, old, new) else Hint.SKIP


def keys_of_pod(pod: Pod) -> Iterator[str]:
    """Yield the keys of the Pod's claims."""
    return (f"{pod.metadata.namespace}/{name}" for name in classic.claim_names_of(pod))


def keys_of_change(old: Any, new: Any) -> tuple[str, ...]:
    """Return the key of the changed claim."""
    claim = new if new is not None else old
    return (f"{claim.metadata.namespace}/{claim.metadata.name}",)


CLAIM_KEYS: Final = EventKeys(keys_of_pod, keys_of_change)
